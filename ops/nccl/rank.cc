#include "ops/nccl/rank.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <string_view>

namespace kolo {

std::string nccl_version_text(int version) {
  return fmt::format("{}.{}.{}", version / 10000, version / 100 % 100, version % 100);
}

void check_nccl(const NcclTable& table, NcclResult rc, NcclComm comm, const char* call, Where where) {
  if (rc == NcclResult::success || rc == NcclResult::in_progress) return;
  const std::string_view file(where.file);
  const char* const last = comm ? table.last_error(comm) : nullptr;
  const std::string detail = last && *last ? fmt::format("; {}", last) : "";
  throw Error(ErrorCode::backend, fmt::format("{} failed ({}{}) at {}:{}", call, table.error_string(rc), detail,
                                              file.substr(file.find_last_of('/') + 1), where.line));
}

std::shared_ptr<std::byte> NcclMemory::allocate(std::size_t bytes, Device device) {
  if (device.kind != DeviceKind::cuda || device.index != gpu_.index()) return nullptr;
  try {
    return allocate_or_throw(bytes);
  } catch (const Error&) {
    return nullptr;
  }
}

std::shared_ptr<std::byte> NcclMemory::allocate_or_throw(std::size_t bytes) {
  const GpuGuard selected(gpu_);
  void* data = nullptr;
  bytes = std::max<std::size_t>(bytes, 1);
  check_nccl(table_, table_.allocate(&data, bytes), nullptr, "ncclMemAlloc");
  std::shared_ptr<std::byte> piece(static_cast<std::byte*>(data), [self = shared_from_this()](std::byte* begin) {
    {
      const std::lock_guard lock(self->mutex_);
      self->pieces_.erase(begin);
    }
    const GpuGuard gpu(self->gpu_, std::nothrow);
    (void)self->table_.release(begin);
  });
  {
    const std::lock_guard lock(mutex_);
    pieces_[piece.get()] = {piece, bytes};
  }
  gpu_.clear(piece.get(), bytes);
  return piece;
}

std::pair<std::shared_ptr<std::byte>, std::size_t> NcclMemory::piece_of(const void* data) const {
  const auto* const begin = static_cast<const std::byte*>(data);
  const std::lock_guard lock(mutex_);
  const auto after = pieces_.upper_bound(begin);
  if (after == pieces_.begin()) return {};
  const auto& [start, piece] = *std::prev(after);
  if (begin >= start + piece.second) return {};
  return {piece.first.lock(), piece.second};
}

}  // namespace kolo
