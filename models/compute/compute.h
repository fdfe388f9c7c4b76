#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include <kolo/tensor.h>

namespace kolo::models {

enum class Activation : bool { none, relu };

/// c [m, n] = op(a)·op(b), and what is done with it before it is written.
struct Product {
  bool transpose_a = false;  ///< a is stored as [k, m]
  bool transpose_b = false;  ///< b is stored as [n, k]
  bool add = false;          ///< c += the product; without a bias
  Tensor bias{};             ///< [n], of c's dtype, added to each row; empty: none
  Activation activation = Activation::none;
  Tensor sums{};  ///< f32 [m]: becomes, or with `add` gets, the sums of the columns of an a that is f32 or kept, and
                  ///< transposed; without bias and activation; empty: not wanted
};

/// Attention's heads. A row of all heads is queries, keys and values: [(heads + 2·kv_heads) · head_dim].
struct Heads {
  std::int64_t heads = 0;
  std::int64_t kv_heads = 0;
  std::int64_t head_dim = 0;  ///< even

  /// Elements of a row of one head in q, k and v: head_dim rounded up for vectors; those beyond head_dim are 0.
  std::int64_t width() const { return (head_dim + 15) / 16 * 16; }
  std::int64_t row() const { return (heads + 2 * kv_heads) * head_dim; }
};

/// Cosines and sines of rotary positions (Su et al. 2021, arXiv:2104.09864), f32 [positions, head_dim / 2] or more
/// rows: pair (i, i + head_dim/2) at a position is rotated by the angle at [position, i].
struct RotationTables {
  Tensor cosine, sine;
};

/// Queries, keys and values of all sequences, kept, [sequences, heads or kv_heads, positions, width]. Queries and keys
/// are rotated, queries also divided by √head_dim.
struct HeadTensors {
  Tensor q, k, v;
};

/// A convolution with square filters.
struct Convolution {
  std::int64_t stride = 1;
  std::int64_t padding = 0;  ///< rows and columns of zeros on each side

  auto operator<=>(const Convolution&) const = default;
};

/// Max-pooling; a window of 1 with a stride of 1 leaves images as they are.
struct Pooling {
  std::int64_t window = 1;   ///< at most 255
  std::int64_t stride = 0;   ///< 0: the window
  std::int64_t padding = 0;  ///< rows and columns on each side that are never the largest; at most half the window

  std::int64_t step() const { return stride > 0 ? stride : window; }
  auto operator<=>(const Pooling&) const = default;
};

/// What is done to images [examples, channels, rows, columns] in one go, each while it is in a cache: a convolution,
/// the norm that is known as x·scale + shift, an activation and max-pooling.
struct ImageStage {
  Convolution convolution{};
  Tensor filters;   ///< [filters, channels, kernel, kernel]
  Tensor bias{};    ///< [filters]; empty: none
  Tensor scale{};   ///< [filters]; empty: no norm
  Tensor shift{};   ///< [filters]
  Tensor slope{};   ///< [filters], of the pass back: the gradient of the convolution's output is
  Tensor offset{};  ///< [filters]      scale·d + slope·output + offset, where d is that of the norm's output
  /// Compute::convolved(): what batch_sums() keeps for the operations after it; empty: each convolves again
  Tensor convolved{};
  Activation activation = Activation::none;
  Pooling pooling{};

  /// Extents of what it makes of images, without checking that they are positive.
  Shape output(const Shape& images) const;
};

/// Rows, or columns, behind a convolution or pooling; 0 if it does not fit.
constexpr std::int64_t extent_behind(std::int64_t extent, std::int64_t kernel, std::int64_t stride,
                                     std::int64_t padding) {
  return extent + 2 * padding < kernel ? 0 : (extent + 2 * padding - kernel) / stride + 1;
}

/// What one pass of a batch norm (Ioffe & Szegedy 2015, arXiv:1502.03167) knows of its channels. `sums` holds the sum
/// of each channel and then the count of numbers in each; both are summed over ranks between the calls.
struct BatchStatistics {
  Tensor sums;      ///< f64 [channels + 1]
  Tensor squares;   ///< f64 [channels]: of differences to the mean
  Tensor own;       ///< f64 [2·channels + 1], of this rank alone: means, squares, count
  Tensor mean;      ///< f32 [channels]
  Tensor inverse;   ///< f64 [channels]: 1 / deviation
  Tensor products;  ///< f64 [2·channels], of the pass back: Σd, Σ d·(x − mean)
};

/// Parameters of a batch norm, f32 [channels].
struct BatchNormValues {
  Tensor gain, bias, running_mean, running_variance;
};

/// A tensor that an optimizer updates, element by element; all have as many elements.
struct UpdatedTensor {
  Tensor value, gradient;
  Tensor first;      ///< SGD's velocity, or Adam's mean
  Tensor second{};   ///< Adam's square
  double decay = 0;  ///< Adam's weight decay
};

struct SgdStep {
  float lr = 0;
  float momentum = 0;
  Tensor gradient_scale;  ///< f32 [2]: the factor of gradients; and 1, or 0 if nothing is to be updated
};

/// What makes a norm at most `most`; as PyTorch's clip_grad_norm_, whose 1e-6 keeps a norm of 0 from dividing.
constexpr double clip_factor(double norm, double most) {
  const double factor = most / (norm + 1e-6);
  return factor < 1 ? factor : 1;
}

struct AdamStep {
  double lr = 0;
  double beta1 = 0, beta2 = 0, eps = 0;
  std::int64_t step = 1;  ///< from 1
  bool decoupled = true;  ///< AdamW: decay is subtracted from the value; else it is added to the gradient
  Tensor gradient_scale;
};

/// Numbers on their way to the host.
class Reading {
 public:
  virtual ~Reading() = default;
  /// Waits until they are there. They stay as long as this lives.
  virtual const void* wait() = 0;
};

/// Device::index of a GPU that is not there: operations compute nothing, and what they would take is counted.
inline constexpr int planned_gpu = -1;

/// Whole-tensor operations of one device: all the arithmetic of models. An implementation is chosen at run time, with
/// make_compute().
///
/// Tensors are contiguous and lie on this device. "items" are in the dtype of products: f32, bf16 or f16, the same for
/// all of a call. Everything else is f32 unless it says otherwise; sums are f32 or wider. Images are
/// [examples, channels, rows, columns].
///
/// Denormal numbers (below 1.2e-38 in f32) may count as 0; while other code runs they do not.
///
/// An operation may return before it has run; they run in the order of the calls, and read() waits. The same shapes and
/// the same numbers give the same bits in every run on one machine. One thread at a time.
/// Errors: ModelError if there is no memory, or a library fails.
class Compute {
 public:
  virtual ~Compute() = default;

  virtual Device device() const = 0;

  /// The dtype of what operations of a model pass to each other ("kept" below) where products are of `items`: f32, or
  /// less where moving numbers takes more time than calculating with them.
  virtual DType kept(DType) const { return DType::f32; }

  // Memory.

  /// Of a planned GPU: what must be reserved for all that was allocated.
  virtual std::size_t planned_bytes() const { return 0; }
  /// Takes memory, once, of which allocate() then gives pieces as long as there is room. A host reserves nothing.
  virtual void reserve(std::size_t) {}
  /// Null if there is none. Aligned to a cache line at least.
  virtual void* allocate(std::size_t bytes) = 0;
  virtual void release(void* memory) noexcept = 0;
  /// Bytes of scratch memory that operations hold.
  virtual std::size_t scratch_bytes() const = 0;

  /// to = from, of equal dtype and size; either may be on the host.
  virtual void copy(const Tensor& from, const Tensor& to) = 0;
  /// Copies tensors of the host, each to the one at its place, while what was called before still runs; what is called
  /// later finds them. What was called since the last copy_ahead() must not use `to`; `in_order`: it may, and is waited
  /// for.
  virtual void copy_ahead(std::span<const Tensor> from, std::span<const Tensor> to, bool in_order) {
    (void)in_order;
    for (std::size_t i = 0; i < from.size(); ++i) copy(from[i], to[i]);
  }
  /// As copy(), into host memory, waiting until it is there.
  virtual void read(const Tensor& from, void* to) = 0;
  /// The same without waiting: of what `from` is when all before has run. The result must not outlive this.
  virtual std::unique_ptr<Reading> read_later(const Tensor& from) = 0;
  /// Sets every element, f32 or f64, to a number.
  virtual void fill(const Tensor& x, double value) = 0;
  /// to = from, rounded or widened: one of them is f32.
  virtual void cast(const Tensor& from, const Tensor& to) = 0;
  /// sum = a + b; b is kept.
  virtual void add(const Tensor& a, const Tensor& b, const Tensor& sum) = 0;

  // Products.

  /// Whether products of f32 may round their operands to tf32, with 10 bits of mantissa, where the device is faster
  /// then; at first they may not.
  virtual void allow_tf32(bool) {}
  /// a, b  items of two dimensions; c f32 or kept. No extent is 0.
  virtual void product(const Product& how, const Tensor& a, const Tensor& b, const Tensor& c) = 0;
  /// Zeroes the elements of dy [rows, n] whose y is not positive (an empty y: none), and writes the sum of the rows to
  /// dbias [n], or adds it; an empty dbias is left out. y, dy  f32 or kept.
  virtual void bias_backward(const Tensor& y, const Tensor& dy, bool add, const Tensor& dbias) = 0;

  // Sequences.

  /// x [tokens, dim] = the rows of `table` that i32 `tokens` name.
  virtual void embed(const Tensor& table, const Tensor& tokens, const Tensor& x) = 0;
  /// d_table += the rows of d, by their tokens.
  virtual void embed_backward(const Tensor& tokens, const Tensor& d, const Tensor& d_table) = 0;

  /// sum = x + more (kept; an empty one: sum is not written); h (items) = sum / rms(sum) · gain; inverse [rows] = 1 /
  /// rms, where rms = √(mean of a row's squares + eps).
  virtual void rms_norm(const Tensor& x, const Tensor& more, const Tensor& sum, const Tensor& gain, double eps,
                        const Tensor& h, const Tensor& inverse) = 0;
  /// d += the gradient of x, given dh (kept); d_gain += that of gain; d_items = d, rounded, unless empty.
  virtual void rms_norm_backward(const Tensor& x, const Tensor& gain, const Tensor& inverse, const Tensor& dh,
                                 const Tensor& d, const Tensor& d_gain, const Tensor& d_items) = 0;

  /// Divides rows of all heads, qkv [sequences, positions, row] (kept), into heads.
  virtual void split_heads(const Heads& heads, const RotationTables& rotations, const Tensor& qkv,
                           const HeadTensors& to) = 0;
  /// Causal attention within each sequence. out [sequences·positions, heads·head_dim] items; log_sums [sequences,
  /// heads, positions]: of each row's exponentials.
  virtual void attend(const Heads& heads, const HeadTensors& of, const Tensor& out, const Tensor& log_sums) = 0;
  /// d_qkv (items, as qkv of split_heads) from d_out (kept).
  virtual void attend_backward(const Heads& heads, const RotationTables& rotations, const HeadTensors& of,
                               const Tensor& out, const Tensor& log_sums, const Tensor& d_out, const Tensor& d_qkv) = 0;

  /// s (items) = silu(gate) · up. A row of gate_up [rows, 2·n] (kept) is gate, then up.
  virtual void swiglu(const Tensor& gate_up, const Tensor& s) = 0;
  /// d_gate_up (items) from ds (kept), and s again; in kept() of less than f32 an empty s is left out. In f32 d_gate_up
  /// may be gate_up, and s may be ds.
  virtual void swiglu_backward(const Tensor& gate_up, const Tensor& ds, const Tensor& d_gate_up, const Tensor& s) = 0;

  /// Cross-entropy of softmax(logits [rows, classes], f32 or kept) against i32 targets [rows] in -1 … classes-1.
  ///
  /// d_logits  as logits, overwritten: the gradient of scale·sum; may be `logits`; empty if not wanted
  /// sums      f64 [3]; added to: the losses of rows whose target is not -1, the rows whose target has the largest
  /// logit
  ///           (of equal ones the first counts), and the rows with a target
  virtual void cross_entropy(const Tensor& logits, const Tensor& targets, float scale, const Tensor& d_logits,
                             const Tensor& sums) = 0;

  // Images: x, y, their gradients d and dx, and ImageStage::convolved are f32 or kept, each.

  /// Extents of the u16 that convolve() keeps for the pass back: which pixel of each window was the largest.
  virtual Shape choices(const ImageStage& stage, const Shape& images) const = 0;
  /// y (extents: stage.output()) = what a stage makes of x: the first of the largest pixels of each window, NaN if one
  /// is.
  virtual void convolve(const ImageStage& stage, const Tensor& x, const Tensor& y, const Tensor& chosen) = 0;
  /// Overwrites, or adds to, dw and dbias by d, the gradient of y; overwrites dx. dbias and dx may be empty.
  virtual void convolve_backward(const ImageStage& stage, const Tensor& x, const Tensor& chosen, const Tensor& d,
                                 bool add, const Tensor& dw, const Tensor& dbias, const Tensor& dx) = 0;

  /// Max-pooling alone, of x as it is; `chosen` has choices() of a stage without filters.
  virtual void pool(const Pooling& how, const Tensor& x, const Tensor& y, const Tensor& chosen) = 0;
  virtual void pool_backward(const Pooling& how, const Tensor& chosen, const Tensor& d, const Tensor& dx) = 0;

  // The norm of a stage, over all examples and places of what it convolves; x may have no examples.

  /// Extents of what batch_sums() keeps of the convolution, for the rest of a pass of training; of no elements
  /// where it takes less time to convolve again.
  virtual Shape convolved(const ImageStage& stage, const Shape& images) const = 0;
  /// Overwrites statistics.sums and statistics.own, and stage.convolved.
  virtual void batch_sums(const ImageStage& stage, const Tensor& x, const BatchStatistics& statistics) = 0;
  /// From sums (over all ranks): the mean; and overwrites squares by those of this rank.
  virtual void batch_squares(const BatchStatistics& statistics) = 0;
  /// The norm as x·scale + shift. In training from sums and squares (over all ranks), and the running mean and variance
  /// move a tenth of the way to the batch's (the variance as that of a sample, as PyTorch does) unless there was none;
  /// else from the running ones.
  virtual void batch_fold(bool training, double eps, const BatchStatistics& statistics, const BatchNormValues& values,
                          const Tensor& scale, const Tensor& shift) = 0;
  /// Overwrites products by those of this rank, given the gradient of the stage's output; and writes, or adds, its
  /// d_gain and d_bias.
  virtual void batch_products(const ImageStage& stage, const Tensor& x, const Tensor& chosen, const Tensor& d,
                              const BatchStatistics& statistics, bool add, const Tensor& d_gain,
                              const Tensor& d_bias) = 0;
  /// The stage's slope and offset, from products (over all ranks).
  virtual void batch_fold_backward(const BatchStatistics& statistics, const Tensor& gain, const Tensor& slope,
                                   const Tensor& offset) = 0;

  // Updates.

  /// sums[i] (f64) = the sum of the squares of tensor i, in f64, in an order that depends on its size only.
  virtual void sums_of_squares(std::span<const Tensor> tensors, const Tensor& sums) = 0;
  /// scale, as SgdStep::gradient_scale, of gradients whose sums of squares (f64) are known: `factor`, or less where the
  /// norm factor·√Σ is above `most`, so that it is not; and nothing is updated where the norm is not finite.
  virtual void clip(double factor, double most, const Tensor& squares, const Tensor& scale) = 0;
  /// The steps of Sgd and Adam (models/optim/optimizer.h). Unless `squares` is empty it gets sums_of_squares() of the
  /// gradients, which are then read once.
  virtual void sgd(const SgdStep& step, std::span<const UpdatedTensor> tensors, const Tensor& squares) = 0;
  virtual void adam(const AdamStep& step, std::span<const UpdatedTensor> tensors, const Tensor& squares) = 0;
};

/// The implementation for a device. Errors: ModelError for a device that this build has none for.
std::unique_ptr<Compute> make_compute(Device device = {});

/// That of a GPU. Errors: ModelError where the program is linked with no_cuda_compute.cc.
std::unique_ptr<Compute> make_cuda_compute(Device device);

}  // namespace kolo::models
