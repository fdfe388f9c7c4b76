#pragma once

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include <kolo/tensor.h>

#include "models/compute/buffer.h"
#include "models/compute/compute.h"
#include "models/compute/views.h"
#include "models/layers/rotations.h"
#include "models/model/model.h"
#include "models/model/store.h"

namespace kolo::models {

/// How a parameter begins: all a constant, uniform in ±number, or normal with that deviation.
struct Initial {
  enum class Kind : unsigned char { constant, uniform, normal };
  Kind kind = Kind::constant;
  double number = 0;

  static Initial constant(double value) { return {Kind::constant, value}; }
  static Initial normal(double deviation) { return {Kind::normal, deviation}; }
  /// Uniform in ±1/√inputs, which is what PyTorch's layers begin with (Kaiming with a = √5).
  static Initial uniform(std::int64_t inputs);
};

/// The parameters of a model in the order in which its layers were made, which declare them.
struct ParameterList {
  std::vector<Parameter> all;
  std::vector<Initial> initial;

  /// Returns the parameter's index. Matrices decay, biases and norms do not.
  std::size_t add(std::string name, const Shape& shape, Initial from, bool decays);
  /// The same of one that is not trained.
  std::size_t add_buffer(std::string name, const Shape& shape, double value);
};

/// What passes from layer to layer, forward and back: a tensor, and what is still to be done to it. A layer that does
/// both at once saves a pass over memory.
struct Flow {
  Tensor x;
  Tensor more{};     ///< forward: to be added to x (a residual stream); empty: nothing
  Tensor rounded{};  ///< back: x in the dtype of products, if it is known
};

/// What a layer keeps of a micro-batch from its pass forward to its pass back.
class Kept {
 public:
  virtual ~Kept() = default;
  virtual std::size_t bytes() const = 0;
};

std::size_t bytes_of(std::initializer_list<const Buffer*> buffers);

/// Scratch memory, shared by the layers of a model: valid until the next layer.
struct Workspace {
  Buffer gradient[2];                                  ///< of a layer's output, and of its input
  Buffer output;                                       ///< of a layer whose successor uses it up at once
  Buffer wide, items;                                  ///< within a layer, f32 and in the dtype of products
  Buffer d_items;                                      ///< a gradient in the dtype of products
  Buffer residual_items;                               ///< the same of the residual stream
  std::map<std::vector<double>, Rotations> rotations;  ///< by their steps

  /// Memory for a gradient that is computed from another one.
  Tensor beside(Compute& compute, const Tensor& other, const Shape& shape, DType dtype = DType::f32);
  /// Whether beside() may return the memory of x.
  bool lends(const Tensor& x) const { return x.data == gradient[0].data() || x.data == gradient[1].data(); }
  std::size_t bytes() const;
};

/// A pass, as a layer sees it. A layer with others inside that uses what these return says in a copy who takes it.
struct Context {
  Compute& compute;
  ParameterStore& store;
  Workspace& workspace;
  DType items = DType::f32;  ///< of products' operands
  bool training = false;
  bool repeat = false;         ///< forward: only what is kept is needed, not the output
  bool passing = false;        ///< forward: the next layer uses the output up at once
  bool to_kept = false;        ///< forward: the next layer takes the output in kept()
  bool input_gradient = true;  ///< back: whether the gradient of the input is needed
  bool gradient_kept = false;  ///< back: what uses that gradient takes it in kept()
  Pass pass{};
  const GradReady* grad_ready = nullptr;

  /// Compute::kept() of these products.
  DType kept() const { return compute.kept(items); }
  /// The gradient of a parameter is final.
  void finish(std::size_t parameter) const;
  /// Memory for a layer's output: `kept`, or if the output is passing scratch memory, of dtype `passing_as`. Else it is
  /// f32, or what the next layer takes.
  Tensor output(Buffer& kept, const Shape& shape, std::string_view what, DType passing_as = DType::f32) const;
  /// Memory for the gradient of a layer's input, which is computed from `d`.
  Tensor gradient(const Tensor& d, const Shape& shape) const;
  /// x in the dtype of products: itself, or rounded into `memory`.
  Tensor rounded(const Tensor& x, Buffer& memory, std::string_view what) const;
};

/// Values of parameters, asked of the store for as long as this lives.
class Values {
 public:
  Values(const Context& context, std::size_t first, std::size_t count, DType dtype, const Shape& shape);
  Values(const Context& context, std::size_t index, const Shape& shape)
      : Values(context, index, 1, DType::f32, shape) {}
  ~Values() { store_->release(first_, count_); }
  Values(const Values&) = delete;
  Values& operator=(const Values&) = delete;

  operator const Tensor&() const { return tensor_; }  // NOLINT(google-explicit-constructor): is a tensor

 private:
  ParameterStore* store_;
  std::size_t first_, count_;
  Tensor tensor_;
};

/// A step of a model, forward and back. A layer has no state but its extents: parameters are in the store, and what a
/// micro-batch keeps is a Kept, so that several can be under way.
class Layer {
 public:
  virtual ~Layer() = default;

  virtual std::unique_ptr<Kept> make_kept() const = 0;

  /// Returns the output, which stays valid until the pass back unless it is passing; so must `in`.
  virtual Flow forward(const Flow& in, Kept& kept, const Context& context) = 0;

  /// d is the gradient of the output, which may be overwritten. Returns that of the input, in `kept` or scratch memory.
  /// What was kept is used up.
  virtual Flow backward(const Flow& d, Kept& kept, const Context& context) = 0;

  /// Adds the layer's parameters in the order in which backward() finishes them.
  virtual void backward_order(std::vector<std::size_t>& order) const = 0;

  /// The passes of a rank without examples, where others have some: only a layer that sums over ranks has work to do.
  virtual void forward_absent(Kept&, const Context&) {}
  virtual void backward_absent(Kept&, const Context&) {}

  virtual bool takes_more() const { return false; }      ///< adds Flow::more itself
  virtual bool takes_kept() const { return false; }      ///< its input, and d, may be in Context::kept()
  virtual bool keeps_gradient() const { return false; }  ///< backward() does not overwrite d
};

/// x [rows, width], of a tensor whose rows have `width` numbers.
Tensor as_rows(const Tensor& tensor, std::int64_t width);

}  // namespace kolo::models
