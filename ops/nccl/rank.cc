#include "ops/nccl/rank.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <string_view>
#include <thread>

namespace kolo {
namespace {

constexpr auto finalize_timeout = std::chrono::seconds(5);  // peers may end their communicators later

/// The GPU is waited for before memory is unmapped: again, if it could not be; then the memory stays.
bool waits_for_all(Gpu& gpu) noexcept {
  for (int turn = 0; turn < 100; ++turn) {
    if (gpu.wait_for_all()) return true;
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  return false;
}

}  // namespace

std::string nccl_version_text(int version) {
  return fmt::format("{}.{}.{}", version / 10000, version / 100 % 100, version % 100);
}

void check_nccl(const NcclTable& table, NcclResult rc, NcclComm comm, const char* call, Where where) {
  if (rc == NcclResult::success || rc == NcclResult::in_progress) return;
  const std::string_view file(where.file);
  const char* const last = comm ? table.last_error(comm) : nullptr;
  const std::string detail = last && *last ? fmt::format("; {}", last) : "";
  const ErrorCode code = rc == NcclResult::remote_error ? ErrorCode::aborted : ErrorCode::backend;
  throw Error(code, fmt::format("{} failed ({}{}) at {}:{}", call, table.error_string(rc), detail,
                                file.substr(file.find_last_of('/') + 1), where.line));
}

std::shared_ptr<std::byte> NcclMemory::allocate(std::size_t bytes, Device device) {
  if (device.kind != DeviceKind::cuda || device.index != gpu_.index()) return nullptr;
  try {
    bytes = std::max<std::size_t>(bytes, 1);
    auto piece = allocate_or_throw(bytes);
    gpu_.clear(piece.get(), bytes);
    return piece;
  } catch (const Error&) {
    return nullptr;
  }
}

std::shared_ptr<std::byte> NcclMemory::allocate_or_throw(std::size_t bytes) {
  const GpuGuard selected(gpu_);
  void* data = nullptr;
  NcclResult result = table_.allocate(&data, bytes);
  if (result != NcclResult::success) {
    std::vector<std::future<void>> releases;
    {
      const std::lock_guard lock(mutex_);
      releases.swap(releases_);
    }
    if (!std::exchange(releases, {}).empty()) result = table_.allocate(&data, bytes);
  }
  check_nccl(table_, result, nullptr, "ncclMemAlloc");
  std::shared_ptr<std::byte> piece(static_cast<std::byte*>(data),
                                   [self = shared_from_this()](std::byte* begin) { self->release_later(begin); });
  {
    const std::lock_guard lock(mutex_);
    pieces_[piece.get()] = {piece, bytes};
  }
  return piece;
}

/// Whoever drops the last reference may be the one whom other ranks wait for: it must not wait for what runs with them.
void NcclMemory::release_later(std::byte* begin) noexcept {
  const std::lock_guard lock(mutex_);
  pieces_.erase(begin);
  try {
    std::erase_if(releases_, [](const auto& release) {
      return release.wait_for(std::chrono::seconds(0)) == std::future_status::ready;
    });
    releases_.push_back(std::async(std::launch::async, [&table = table_, &gpu = gpu_, begin] {
      if (!waits_for_all(gpu)) return;
      const GpuGuard selected(gpu, std::nothrow);
      (void)table.release(begin);
    }));
  } catch (const std::exception&) {  // no thread: the memory stays
  }
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

std::size_t NcclRank::lane_of(const Bucket& bucket, int ranks) const {
  std::int64_t bytes = 0;
  for (const BucketTensor& tensor : bucket.tensors) bytes += agreed_bytes(bucket.signature, tensor, ranks);
  return bucket.signature.priority > 0 || bytes <= tuning.small_bytes ? urgent_lane : bulk_lane;
}

void NcclRank::open() {
  if (lanes.back().unpacker) return;
  gpu.load_kernels();
  for (NcclLane& lane : lanes) lane.open(gpu);
}

void NcclLane::open(Gpu& gpu) {
  if (unpacker) return;
  made_stream.emplace(gpu, priority);
  for (auto* const stream : {&made_pack_stream, &made_unpack_stream}) {
    if (overlaps) stream->emplace(gpu, priority);
  }
  packer.emplace(gpu, pack_stream());
  unpacker.emplace(gpu, unpack_stream());
}

std::vector<std::shared_ptr<const DevicePoint>> NcclLane::marks(Gpu& gpu) const {
  std::vector<std::shared_ptr<const DevicePoint>> marks{gpu.mark(stream())};
  if (overlaps) marks.insert(marks.end(), {gpu.mark(pack_stream()), gpu.mark(unpack_stream())});
  return marks;
}

const std::shared_ptr<std::byte>& NcclRank::staging() {
  if (staging_) return staging_;
  open();
  try {
    staging_ = memory->allocate_or_throw(static_cast<std::size_t>(tuning.staging_bytes + urgent_staging_bytes()));
    auto& bulk = lanes[bulk_lane].parts;
    bulk[0].staging = {staging_.get(), bulk_staging_bytes()};
    bulk[1].staging = {staging_.get() + bulk_staging_bytes(), bulk_staging_bytes()};
    lanes[urgent_lane].parts[0].staging = {staging_.get() + tuning.staging_bytes, urgent_staging_bytes()};
  } catch (const Error& error) {
    throw Error(ErrorCode::backend,
                fmt::format("there is no memory for the pack buffer on GPU {} ({}); free memory there, or set "
                            "KOLO_GPU_PACK_BYTES to less than {}",
                            gpu.index(), error.what(), tuning.staging_bytes));
  }
  return staging_;
}

void RetiredComms::add(NcclMember&& member) {
  all_.push_back({std::move(member), std::chrono::steady_clock::now() + finalize_timeout});
  advance();
}

void RetiredComms::advance() noexcept {
  if (all_.empty()) return;
  const GpuGuard selected(gpu_, std::nothrow);
  std::erase_if(all_, [this](Retired& one) { return ends(one); });
}

bool RetiredComms::ends_by_helper(Retired& one) const {
  if (std::exchange(one.finalized, true)) return !one.helper.busy() || std::chrono::steady_clock::now() > one.deadline;
  one.helper.start(gpu_, [&table = table_, member = one.member] {
    NcclOutcome end{NcclResult::success, "ncclCommFinalize"};
    (void)table.async_error(member.comm, &end.result);
    if (end.result == NcclResult::success) {
      for (void* handle : member.handles) (void)table.deregister_memory(member.comm, handle);
      end.result = table.finalize(member.comm);
    }
    (void)(end.result == NcclResult::success ? table.destroy(member.comm) : table.abort(member.comm));
    return end;
  });
  return false;
}

bool RetiredComms::ends(Retired& one) const noexcept {
  if (blocking_) return ends_by_helper(one);
  const NcclComm comm = one.member.comm;
  NcclResult state = NcclResult::success;
  if (table_.async_error(comm, &state) != NcclResult::success) state = NcclResult::internal_error;
  if (state == NcclResult::success && !std::exchange(one.finalized, true)) {
    for (void* handle : one.member.handles) (void)table_.deregister_memory(comm, handle);
    state = table_.finalize(comm);
  }
  if (state == NcclResult::in_progress && std::chrono::steady_clock::now() < one.deadline) return false;
  (void)(state == NcclResult::success ? table_.destroy(comm) : table_.abort(comm));
  return true;
}

void RetiredComms::finish() noexcept {
  for (advance(); !all_.empty(); advance()) std::this_thread::yield();
}

void RetiredComms::abort() noexcept {
  const GpuGuard selected(gpu_, std::nothrow);
  for (const Retired& one : all_) {
    if (!blocking_ || !one.finalized) (void)table_.abort(one.member.comm);
  }
  all_.clear();
}

}  // namespace kolo
