// A kernel writes one or two destinations. If there are more, they get copies, block by block, while a block is in the
// first-level cache. All sources of a block are read before any destination is written, hence in-place works.

#include "ops/kernels/reduce.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>

#include "ops/kernels/copy.h"
#include "ops/kernels/reduce_kernels.h"

namespace kolo {
namespace {

constexpr std::size_t block_bytes = 8192;
constexpr std::size_t line = 64;

// A single source that nothing changes, as in a world of one.
bool is_copy(const Reduction& reduction, std::size_t sources) {
  if (is_logical(reduction.op) || reduction.dtype == DType::boolean) return false;  // these give 0 or 1
  const bool divides = reduction.op == ReduceOp::average && reduction.divide_by != 1;
  return sources == 1 && reduction.prescale == 1 && reduction.postscale == 1 && !divides;
}

ReduceKernel kernel_for(const Reduction& reduction) {
  static const FindReduceKernel find = reduce_kernels(detail::instruction_set());
  const ReduceKernel kernel = find(reduction);
  return kernel ? kernel : wide_kernel(reduction);
}

/// Of one or two places.
ReduceOutputs outputs_of(std::span<void* const> destinations, std::span<void* const> streamed) {
  if (streamed.empty()) return {destinations[0], destinations.size() > 1 ? destinations[1] : nullptr};
  if (streamed.size() == 1) return {destinations.empty() ? nullptr : destinations[0], streamed[0], false, true};
  return {streamed[0], streamed[1], true, true};
}

/// What goes past the cache does so from the first whole cache line of the second output on.
void run(ReduceKernel kernel, const Reduction& reduction, std::span<const void* const> sources, ReduceOutputs outputs,
         std::size_t count) {
  const std::size_t size = size_of(reduction.dtype);
  const auto until_line = [](const void* at) { return (line - reinterpret_cast<std::uintptr_t>(at) % line) % line; };
  std::size_t head = 0;  // elements
  if (outputs.streams_second) {
    const std::size_t bytes = until_line(outputs.second);
    outputs.streams_second = bytes % size == 0 && bytes / size < count;
    outputs.streams_first &= outputs.streams_second && until_line(outputs.first) == bytes;
    if (outputs.streams_second) head = bytes / size;
  }
  if (head > 0) kernel(reduction, sources.data(), sources.size(), 0, {outputs.first, outputs.second}, head);
  if (outputs.first) outputs.first = static_cast<std::byte*>(outputs.first) + head * size;
  if (outputs.second) outputs.second = static_cast<std::byte*>(outputs.second) + head * size;
  kernel(reduction, sources.data(), sources.size(), head * size, outputs, count - head);
}

/// Copies bytes [at, at + bytes) of a result, which lie at `source`, to the destinations where they are not yet.
void copy_to_all(const void* source, std::span<void* const> destinations, CopyTo where, std::size_t at,
                 std::size_t bytes) {
  for (void* destination : destinations) {
    void* const to = static_cast<std::byte*>(destination) + at;
    if (to != source) copy(to, source, bytes, where);
  }
}

}  // namespace

FindReduceKernel reduce_kernels(detail::InstructionSet instructions) {
  if constexpr (detail::on_x86) {
    if (instructions == detail::InstructionSet::avx512) return find_avx512_kernel;
    if (instructions == detail::InstructionSet::avx2) return find_avx2_kernel;
  }
  return find_baseline_kernel;
}

std::optional<DType> carried_type(const Signature& signature) {
  const bool scales = signature.prescale != 1 || signature.postscale != 1;
  const bool average = signature.op == ReduceOp::average;
  switch (signature.dtype) {
    case DType::f16:
    case DType::bf16:
      return !scales && (signature.op == ReduceOp::min || signature.op == ReduceOp::max) ? signature.dtype : DType::f32;
    case DType::i8:
    case DType::i16:
    case DType::i32: return scales || average ? DType::i64 : signature.dtype;
    case DType::u8:
    case DType::u16:
    case DType::u32: return scales || average ? DType::u64 : signature.dtype;
    case DType::i64:
    case DType::u64:
      if (average) return std::nullopt;
      return signature.dtype;
    case DType::f64:
    case DType::f32:
    case DType::boolean: break;
  }
  return signature.dtype;
}

void reduce(const Reduction& reduction, std::span<const void* const> sources, std::span<void* const> destinations,
            std::size_t count, std::span<void* const> streamed) {
  if (count == 0) return;
  const std::size_t size = size_of(reduction.dtype);
  if (is_copy(reduction, sources.size())) {
    copy_to_all(sources[0], destinations, CopyTo::cache, 0, count * size);
    return copy_to_all(sources[0], streamed, CopyTo::memory, 0, count * size);
  }
  const ReduceKernel kernel = kernel_for(reduction);
  if (destinations.size() + streamed.size() <= 2) {
    return run(kernel, reduction, sources, outputs_of(destinations, streamed), count);
  }
  alignas(64) std::array<std::byte, block_bytes> buffer;
  for (std::size_t at = 0; at < count * size; at += block_bytes) {
    const std::size_t bytes = std::min(block_bytes, count * size - at);
    void* const first = destinations.empty() ? buffer.data() : static_cast<std::byte*>(destinations[0]) + at;
    kernel(reduction, sources.data(), sources.size(), at, {first}, bytes / size);
    copy_to_all(first, destinations, CopyTo::cache, at, bytes);
    copy_to_all(first, streamed, CopyTo::memory, at, bytes);
  }
}

}  // namespace kolo
