#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include <kolo/tensor.h>

#include "models/compute/buffer.h"
#include "models/compute/compute.h"
#include "models/model/model.h"

namespace kolo::models {

/// Where a model's parameters are. A layer asks for its values before it uses them and for where its gradients go, and
/// says when it is done with either: between these calls a store may hold them elsewhere, as shards of many ranks.
///
/// Parameters are named by their index in Model::parameters(); `count` of them from `first` on are one tensor of one
/// dimension, one behind the other.
class ParameterStore {
 public:
  virtual ~ParameterStore() = default;

  /// A pass forward begins: values may have changed since the last one.
  virtual void begin_forward() = 0;

  /// Values, as f32 or rounded to the dtype of products; valid until release(). To be read only, but for
  /// buffers, which are written as f32.
  virtual Tensor acquire(std::size_t first, std::size_t count, DType dtype) = 0;
  virtual void release(std::size_t first, std::size_t count) = 0;

  /// Where the gradients go; valid until finish() of each. In a pass that adds they hold what is added to.
  virtual Tensor gradients(std::size_t first, std::size_t count) = 0;
  /// The gradient of one parameter is final.
  virtual void finish(std::size_t index) = 0;
};

/// Keeps all parameters, and a copy of those that products take in 16 bits.
class KeepAll final : public ParameterStore {
 public:
  /// parameters  bound to storage, one behind the other; they and `compute` must outlive this
  KeepAll(std::span<const Parameter> parameters, Compute& compute);

  void begin_forward() override { ++pass_; }
  Tensor acquire(std::size_t first, std::size_t count, DType dtype) override;
  void release(std::size_t, std::size_t) override {}
  Tensor gradients(std::size_t first, std::size_t count) override;
  void finish(std::size_t) override {}

 private:
  struct Rounded {
    Buffer memory;
    std::size_t pass = 0;  // whose values it has
  };

  std::int64_t elements(std::size_t first, std::size_t count) const;

  std::span<const Parameter> parameters_;
  Compute* compute_;
  std::size_t pass_ = 0;
  std::vector<Rounded> rounded_;  // by the first parameter
};

}  // namespace kolo::models
