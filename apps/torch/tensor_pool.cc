#include "apps/torch/tensor_pool.h"

#include <bit>
#include <map>
#include <mutex>
#include <utility>

#include <kolo/error.h>

namespace kolo_torch {
namespace {

constexpr std::size_t least_bytes = 64 << 10;  // smaller buckets are copied anyway

/// Rounded up to an eighth of the power of two below, so that sizes that are nearly the same share pieces.
std::size_t size_class(std::size_t bytes) {
  const std::size_t step = std::max(least_bytes, std::bit_floor(bytes) / 8);
  return (bytes + step - 1) / step * step;
}

}  // namespace

struct TensorPool::Kept {
  explicit Kept(std::size_t most) : most_bytes(most) {}

  void give_back(kolo::Memory memory) {
    const std::lock_guard lock(mutex);
    if (bytes + memory.bytes() > most_bytes) return;
    bytes += memory.bytes();
    pieces.emplace(memory.bytes(), std::move(memory));
  }

  kolo::Memory take(std::size_t size) {
    const std::lock_guard lock(mutex);
    const auto found = pieces.find(size);
    if (found == pieces.end()) return {};
    kolo::Memory memory = std::move(found->second);
    pieces.erase(found);
    bytes -= size;
    return memory;
  }

  const std::size_t most_bytes;
  std::mutex mutex;
  std::size_t bytes = 0;
  std::multimap<std::size_t, kolo::Memory> pieces;
};

TensorPool::TensorPool(std::size_t most_kept_bytes) : kept_(std::make_shared<Kept>(most_kept_bytes)) {}

at::Tensor TensorPool::allocate(kolo::Session& session, std::int64_t elements, const at::TensorOptions& options) {
  const std::size_t bytes = static_cast<std::size_t>(elements) * options.dtype().itemsize();
  if (!options.device().is_cpu() || bytes < least_bytes) return at::empty({elements}, options);
  const std::size_t size = size_class(bytes);
  auto memory = std::make_unique<kolo::Memory>(kept_->take(size));
  if (memory->bytes() == 0) {
    try {
      *memory = session.allocate(size);
    } catch (const kolo::Error&) {  // no files, or no memory, are left for it
      return at::empty({elements}, options);
    }
  }
  std::byte* const data = memory->data();
  const auto give_back = [kept = kept_](void* piece) {
    const std::unique_ptr<kolo::Memory> owned(static_cast<kolo::Memory*>(piece));
    kept->give_back(std::move(*owned));
  };
  return at::from_blob(
      data, {elements}, [give_back, piece = memory.release()](void*) { give_back(piece); }, options);
}

}  // namespace kolo_torch
