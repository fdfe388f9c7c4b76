// Every rank cuts each tensor into n slices, and gets slice `rank` of all ranks' tensors (all_to_all). It multiplies
// those with each other; their sums over the ranks (all_reduce) are the dot products of the tensors, and give every
// rank the same weights. It adds its slices, weighted, and all ranks gather the sums (all_gather). Tensors of f64
// agree on their largest magnitudes first (all_reduce).
//
// Slices of all tensors of the bucket lie side by side in a block; `blocks_` has one block per rank: before the
// exchange what goes to that rank, then what came from it, in the end its part of the result. All blocks are of equal
// length: short slices are followed by zeros, which change no product.

#include "ops/adasum/adasum.h"

#include <algorithm>
#include <cstring>
#include <span>
#include <utility>
#include <vector>

#include "ops/adasum/slices.h"
#include "ops/adasum/weights.h"
#include "ops/bucket.h"
#include "ops/host/host_buffer.h"

namespace kolo {
namespace {

/// Of an operation that is a stage.
Signature stage_signature(OpKind kind, ReduceOp op, DType dtype) {
  Signature signature;
  signature.kind = kind;
  signature.op = op;
  signature.dtype = dtype;
  return signature;
}

class AdasumOperation final : public Operation {
 public:
  AdasumOperation(Backend& backend, Bucket bucket, int ranks, int rank);
  AdasumOperation(const AdasumOperation&) = delete;
  AdasumOperation& operator=(const AdasumOperation&) = delete;
  ~AdasumOperation() override;

  bool step() override;
  bool needs_polling() const override { return running_ && running_->needs_polling(); }
  bool moved() const override { return running_ && running_->moved(); }
  bool holds_backend() const override {
    return (stage_ != Stage::result && stage_ != Stage::complete) || (running_ && running_->holds_backend());
  }

 private:
  enum class Stage { exchange, exponents, products, result, complete };

  void advance();
  void start(OpKind kind, ReduceOp op, const Tensor& in, const Tensor& out);
  void find_exponents();
  void multiply();
  void add();

  /// Of a block, or of a tensor's slice in it.
  std::byte* block(int rank) const {
    return blocks_.data() + static_cast<std::size_t>(rank * block_elements_) * element_bytes_;
  }
  std::byte* slice(int rank, std::size_t tensor) const {
    return block(rank) + static_cast<std::size_t>(slices_[tensor].begin) * element_bytes_;
  }
  /// The same tensor's slice of every rank, into `sources_`.
  void find_slices(std::size_t tensor);
  /// One per rank and tensor, and the products of a tensor, tensor by tensor.
  std::span<double> exponents() const {
    return {reinterpret_cast<double*>(numbers_.data()), slices_.size() * sources_.size()};
  }
  std::span<double> products() const {
    return {exponents().data() + exponents().size(), slices_.size() * products_each()};
  }
  std::size_t products_each() const { return Gram::product_count(sources_.size()); }
  Gram gram(std::size_t tensor) const {
    return {exponents().subspan(tensor * sources_.size(), sources_.size()),
            products().subspan(tensor * products_each(), products_each())};
  }
  Tensor blocks_as_tensor(int first, int count) const {
    return {block(first), Shape{count * block_elements_}, bucket_.signature.dtype, {}};
  }

  /// Calls copy(part of the tensor, its slice of block `rank`, bytes) for every slice of one side of the bucket.
  template <class Copy>
  void for_each_slice(Tensor BucketTensor::*side, Copy copy) const;
  void pack() const;
  void unpack() const;

  Backend& backend_;
  Bucket bucket_;
  int ranks_;
  int rank_;
  std::size_t element_bytes_;
  std::vector<ElementRange> slices_;  // of each tensor, within a block
  std::int64_t block_elements_ = 0;
  HostBuffer blocks_;
  HostBuffer numbers_;                     // of type f64
  std::vector<const std::byte*> sources_;  // one per rank
  Stage stage_ = Stage::complete;
  Bucket stage_bucket_;
  std::unique_ptr<Operation> running_;  // last: dies before the memory that it uses
};

AdasumOperation::AdasumOperation(Backend& backend, Bucket bucket, int ranks, int rank)
    : backend_(backend),
      bucket_(std::move(bucket)),
      ranks_(ranks),
      rank_(rank),
      element_bytes_(size_of(bucket_.signature.dtype)),
      sources_(static_cast<std::size_t>(ranks)) {
  for (const BucketTensor& tensor : bucket_.tensors) {
    const std::int64_t elements = tensor.in.elements();
    const std::int64_t length = elements / ranks + (elements % ranks != 0);
    slices_.push_back({block_elements_, block_elements_ + length});
    block_elements_ += length;
  }
  if (block_elements_ == 0) return;
  blocks_ = HostBuffer(static_cast<std::size_t>(ranks * block_elements_) * element_bytes_);
  numbers_ = HostBuffer(slices_.size() * (sources_.size() + products_each()) * sizeof(double));
  pack();
  stage_ = Stage::exchange;
  start(OpKind::all_to_all, ReduceOp::sum, blocks_as_tensor(0, ranks_), blocks_as_tensor(0, ranks_));
}

AdasumOperation::~AdasumOperation() {
  if (!needs_polling()) return;
  blocks_.leak();  // MPI cannot withdraw what is on its way
  numbers_.leak();
}

bool AdasumOperation::step() {
  while (running_ && running_->step()) {
    running_.reset();
    advance();
  }
  return stage_ == Stage::complete;
}

/// What is running has arrived.
void AdasumOperation::advance() {
  switch (stage_) {
    case Stage::exchange:
      find_exponents();
      stage_ = Stage::exponents;
      if (bucket_.signature.dtype == DType::f64) {
        start(OpKind::all_reduce, ReduceOp::max, view(exponents()), view(exponents()));
        break;
      }
      [[fallthrough]];  // those of other types are 0 on every rank
    case Stage::exponents:
      multiply();
      stage_ = Stage::products;
      start(OpKind::all_reduce, ReduceOp::sum, view(products()), view(products()));
      break;
    case Stage::products:
      add();
      stage_ = Stage::result;
      start(OpKind::all_gather, ReduceOp::sum, blocks_as_tensor(rank_, 1), blocks_as_tensor(0, ranks_));
      break;
    case Stage::result:
      unpack();
      stage_ = Stage::complete;
      break;
    case Stage::complete: break;
  }
}

void AdasumOperation::start(OpKind kind, ReduceOp op, const Tensor& in, const Tensor& out) {
  stage_bucket_.signature = stage_signature(kind, op, in.dtype);
  stage_bucket_.signature.shape = in.shape;
  stage_bucket_.tensors = {{in, out}};
  running_ = backend_.start(stage_bucket_);
}

void AdasumOperation::find_slices(std::size_t tensor) {
  for (int rank = 0; rank < ranks_; ++rank) sources_[static_cast<std::size_t>(rank)] = slice(rank, tensor);
}

void AdasumOperation::find_exponents() {
  for (std::size_t tensor = 0; tensor < slices_.size(); ++tensor) {
    find_slices(tensor);
    std::ranges::transform(sources_, gram(tensor).exponents.begin(), [&](const std::byte* slice) {
      return exponent_of(bucket_.signature.dtype, slice, slices_[tensor].count());
    });
  }
}

void AdasumOperation::multiply() {
  for (std::size_t tensor = 0; tensor < slices_.size(); ++tensor) {
    find_slices(tensor);
    multiply_slices(bucket_.signature.dtype, sources_, slices_[tensor].count(), gram(tensor));
  }
}

void AdasumOperation::add() {
  const double scale = bucket_.signature.prescale * bucket_.signature.postscale;
  for (std::size_t tensor = 0; tensor < slices_.size(); ++tensor) {
    find_slices(tensor);
    add_weighted(bucket_.signature.dtype, sources_, slices_[tensor].count(), adasum_weights(gram(tensor), scale),
                 slice(rank_, tensor));
  }
}

template <class Copy>
void AdasumOperation::for_each_slice(Tensor BucketTensor::*side, Copy copy) const {
  for (std::size_t t = 0; t < slices_.size(); ++t) {
    const Tensor& tensor = bucket_.tensors[t].*side;
    const std::int64_t length = slices_[t].count();
    for (int rank = 0; rank < ranks_; ++rank) {
      const std::int64_t begin = std::min(rank * length, tensor.elements());
      const std::int64_t end = std::min(begin + length, tensor.elements());
      copy(address(tensor, begin), slice(rank, t), static_cast<std::size_t>(end - begin) * element_bytes_,
           static_cast<std::size_t>(length) * element_bytes_);
    }
  }
}

void AdasumOperation::pack() const {
  for_each_slice(&BucketTensor::in,
                 [&](const std::byte* part, std::byte* slice, std::size_t bytes, std::size_t slice_bytes) {
                   if (bytes > 0) std::memcpy(slice, part, bytes);
                   std::memset(slice + bytes, 0, slice_bytes - bytes);
                 });
}

void AdasumOperation::unpack() const {
  for_each_slice(&BucketTensor::out, [&](std::byte* part, const std::byte* slice, std::size_t bytes, std::size_t) {
    if (bytes > 0) std::memcpy(part, slice, bytes);
  });
}

}  // namespace

bool serves_adasum(const Backend& backend, const Signature& signature) {
  if (signature.kind != OpKind::all_reduce || signature.op != ReduceOp::adasum) return false;
  if (!is_floating_point(signature.dtype)) return false;
  const auto serves = [&](OpKind kind, ReduceOp op, DType dtype) {
    return backend.supports(stage_signature(kind, op, dtype));
  };
  return signature.device == DeviceKind::cpu && serves(OpKind::all_to_all, ReduceOp::sum, signature.dtype) &&
         serves(OpKind::all_gather, ReduceOp::sum, signature.dtype) &&
         serves(OpKind::all_reduce, ReduceOp::sum, DType::f64) && serves(OpKind::all_reduce, ReduceOp::max, DType::f64);
}

std::unique_ptr<Operation> start_adasum(Backend& backend, Bucket bucket, int ranks, int rank) {
  return std::make_unique<AdasumOperation>(backend, std::move(bucket), ranks, rank);
}

}  // namespace kolo
