#pragma once

#include <cstddef>
#include <memory>
#include <variant>

#include "models/compute/compute.h"
#include "models/compute/cuda/attention_bf16_back_kernels.h"
#include "models/compute/cuda/attention_bf16_kernels.h"
#include "models/compute/cuda/attention_kernels.h"
#include "models/compute/cuda/attentions.h"
#include "models/compute/cuda/basic_kernels.h"
#include "models/compute/cuda/embedding_kernels.h"
#include "models/compute/cuda/image_kernels.h"
#include "models/compute/cuda/sequence_kernels.h"
#include "models/compute/cuda/tile_kernels.h"
#include "models/compute/cuda/update_kernels.h"

namespace kolo::models::cuda {

/// All kernels.
using Kernel =
    std::variant<Fill, Cast, Add, BiasParts, SumParts, PlainProduct, Embed, MakeKeys, SortStep, SortPieces,
                 EmbedBackward, JoinEmbeddings, RmsNorm, RmsNormBackward, SplitHeads, MergeHeads, Swiglu,
                 SwigluBackward, CrossEntropy, SumRows, Attend<2>, Attend<4>, Attend<8>, AttendInner, AttendBf16Inner,
                 AttendBackwardKeys<2>, AttendBackwardKeys<4>, AttendBackwardKeys<8>, AttendBackwardRows<2>,
                 AttendBackwardRows<4>, AttendBackwardRows<8>, AttendBf16<2>, AttendBf16<4>, AttendBf16<8>,
                 AttendBf16BackwardKeys<2>, AttendBf16BackwardKeys<4>, AttendBf16BackwardKeys<8>,
                 AttendBf16BackwardRows<2>, AttendBf16BackwardRows<4>, AttendBf16BackwardRows<8>, Convolve,
                 ConvolveBackwardFilters, ConvolveBackwardImages, Pool, PoolBackward, ChannelSums, ChannelProducts,
                 NormSquares, NormFold, NormFoldBackward, SquareParts, SquareTotals, Clip, SgdUpdate, AdamUpdate>;

/// A point in the order of what a GPU was told.
class Point {
 public:
  virtual ~Point() = default;
  /// Waits until all before it has run.
  virtual void wait() = 0;
};

/// A GPU as CudaCompute needs it. All that it is told, but for copy_beside(), runs in the order in which it was told,
/// on the default stream, which everything of a process on one GPU shares: so it is in order with other Computes, too.
///
/// Errors: ModelError with the call's name.
class ComputeDevice {
 public:
  virtual ~ComputeDevice() = default;

  /// Null if there is none. Aligned to 256 bytes.
  virtual void* allocate(std::size_t bytes) = 0;
  /// Waits for what may use it.
  virtual void release(void* memory) noexcept = 0;
  /// Between memory of the GPU and of the host, in any direction. Host memory may be used again once this returns,
  /// unless it is pinned.
  virtual void copy(void* to, const void* from, std::size_t bytes) = 0;
  /// From pinned memory of the host, beside what runs: behind `behind`, a point of this GPU, alone. What is told from
  /// now on runs behind the result, the copy's end.
  virtual std::unique_ptr<Point> copy_beside(void* to, const void* pinned, std::size_t bytes, Point& behind) = 0;
  /// Waits for all that was told before.
  virtual void wait() = 0;
  virtual std::unique_ptr<Point> mark() = 0;
  /// Of the host, for copies that wait for nothing; null if there is none.
  virtual void* allocate_pinned(std::size_t bytes) = 0;
  virtual void release_pinned(void* memory) noexcept = 0;

  virtual void launch(const Kernel& kernel) = 0;
  /// A product by a library; false, and nothing done, where it has none for it.
  virtual bool multiply(const PlainProduct& product) = 0;
  /// Attention by a library; null where there is none.
  virtual AttentionLibrary* attention() = 0;
};

/// Whether the GPU that is current has attention by a library: for plans. Of the same files.
bool has_attention_library();

/// Of cuda_device.cu, or in tests a pretended one. Errors: ModelError if there is no such GPU.
std::unique_ptr<ComputeDevice> open_device(int index);

}  // namespace kolo::models::cuda
