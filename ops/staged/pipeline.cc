#include "ops/staged/pipeline.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "ops/adasum/adasum.h"

namespace kolo {
namespace {

/// Up to this many segments are copied one by one; more by one kernel, which reads and writes pinned memory.
constexpr std::size_t few_segments = 4;

Signature on_host(Signature signature) {
  signature.device = DeviceKind::cpu;
  return signature;
}

}  // namespace

std::shared_ptr<ChunkPool::Claim> ChunkPool::claim() {
  if (free_.size() <= without_) {
    try {
      free_.push_back(make(chunk_bytes_));
    } catch (const Error& error) {
      throw Error(ErrorCode::backend, fmt::format("there is no pinned memory for {} bytes ({}); free memory on the "
                                                  "host, or lower KOLO_GPU_STAGING_BYTES",
                                                  chunk_bytes_, error.what()));
    }
    ++made_;
  }
  std::shared_ptr<Claim> claim(new Claim, [pool = shared_from_this()](Claim* ended) {
    if (ended->held == 0) --pool->without_;  // else its group was abandoned with what it held
    delete ended;
  });
  ++without_;
  return claim;
}

std::optional<GpuBuffer> ChunkPool::take(Claim& claim) {
  if (claim.held == 0) {
    --without_;
  } else if (free_.size() <= without_) {
    if (made_ >= chunks_) return std::nullopt;
    try {
      free_.push_back(make(chunk_bytes_));
    } catch (const Error&) {  // then it goes on with those it holds
      return std::nullopt;
    }
    ++made_;
  }
  ++claim.held;
  std::optional<GpuBuffer> chunk(std::move(free_.back()));
  free_.pop_back();
  return chunk;
}

void ChunkPool::give_back(Claim& claim, GpuBuffer chunk) {
  free_.push_back(std::move(chunk));
  if (--claim.held == 0) ++without_;
}

StagedPipeline::StagedPipeline(Gpu& gpu, std::shared_ptr<ChunkPool> pool, BackendList hosts, int ranks, int rank,
                               std::int64_t chunk_bytes)
    : gpu_(gpu),
      pool_(std::move(pool)),
      hosts_(std::move(hosts)),
      ranks_(ranks),
      rank_(rank),
      rule_{chunk_bytes, chunk_bytes} {}

std::shared_ptr<ChunkPool::Claim> StagedPipeline::reserve() {
  if (!out_) gpu_.load_kernels();
  for (auto* const stream : {&in_, &out_}) {
    if (!*stream) stream->emplace(gpu_, StreamPriority::highest);
  }
  auto claim = claim_.lock();
  if (!claim) claim_ = claim = pool_->claim();
  return claim;
}

Backend* StagedPipeline::host_for(const Signature& signature) const {
  const Signature host = on_host(signature);
  for (const auto& backend : hosts_) {
    if (backend->supports(host) || serves_adasum(*backend, host)) return backend.get();
  }
  return nullptr;
}

void StagedPipeline::advance() {
  if (abandoned_) throw Error(ErrorCode::aborted, "an operation of the group was left unfinished");
  begin_chunks();
  bool held = false;
  moved_ = false;
  for (auto& flight : in_flight_) {
    if (!flight->started) {
      if (held || !has_come(*flight)) break;  // hosts need the same order everywhere
      start(*flight);
    }
    if (flight->operation) {
      const bool complete = flight->operation->step();
      moved_ |= complete || flight->operation->moved();
      if (complete) flight->operation.reset();
    }
    if (!flight->operation && !flight->copied_out) copy_out(*flight);
    held |= flight->operation && flight->operation->holds_backend();
  }
  while (!in_flight_.empty() && in_flight_.front()->copied_out && in_flight_.front()->copied_out->passed()) {
    end_oldest();
    begin_chunks();
  }
}

void StagedPipeline::end_oldest() {
  InFlight& oldest = *in_flight_.front();
  --oldest.job->under_way;
  pool_->give_back(*oldest.job->claim, std::move(oldest.memory));
  in_flight_.pop_front();
}

void StagedPipeline::begin_chunks() {
  while (!waiting_.empty()) {
    StagedJob& job = *waiting_.front();
    auto memory = pool_->take(*job.claim);
    if (!memory) return;
    begin(job, std::move(*memory));
    if (job.all_begun) waiting_.pop_front();
  }
}

void StagedPipeline::begin(StagedJob& job, GpuBuffer memory) {
  const Bucket& bucket = *job.bucket;
  in_flight_.push_back(std::make_unique<InFlight>(InFlight{&job, std::move(memory)}));
  InFlight& flight = *in_flight_.back();
  ++job.under_way;
  if (!std::exchange(job.ordered, true)) {
    for (const auto& ready : bucket.ready) ready->order(in_->get());
  }
  flight.chunk = chunk_at(bucket, ranks_, job.next, rule_);
  if (bucket.signature.op == ReduceOp::adasum && reduces(bucket.signature.kind)) {
    flight.whole = Whole{HostBuffer(std::max<std::size_t>(bucket.bytes(), 1))};
    job.all_begun = true;
    describe_whole(flight);
  } else {
    job.next = flight.chunk.next;
    job.all_begun = chunk_at(bucket, ranks_, job.next, rule_).count == 0;
    describe(flight);
  }
  copy_in(flight);
}

void StagedPipeline::copy_in(InFlight& flight) {
  copy(flight, true);
  flight.copied_in = gpu_.mark(in_->get());
}

/// Whether all that the host works on is there; brings one more chunk of what is not cut.
bool StagedPipeline::has_come(InFlight& flight) {
  if (!flight.copied_in || !flight.copied_in->passed()) return false;
  if (!flight.whole) return true;
  const Bucket& bucket = *flight.job->bucket;
  const auto bytes = static_cast<std::size_t>(flight.chunk.count) * size_of(bucket.signature.dtype);
  std::memcpy(flight.whole->memory.data() + flight.whole->come, flight.memory.data(), bytes);
  flight.whole->come += bytes;
  moved_ = true;
  flight.chunk = chunk_at(bucket, ranks_, flight.chunk.next, rule_);
  if (flight.chunk.count == 0) return true;
  copy_in(flight);
  return false;
}

/// On the host a chunk is one tensor, in place; where ranks have blocks, these are equally long: shorter ones
/// are padded.
void StagedPipeline::describe(InFlight& flight) {
  const Bucket& bucket = *flight.job->bucket;
  const OpKind kind = bucket.signature.kind;
  const std::int64_t count = flight.chunk.count;
  const auto size = static_cast<std::int64_t>(size_of(bucket.signature.dtype));
  flight.bucket = {on_host(bucket.signature), {}, bucket.absent, bucket.divide_by};
  std::byte* const memory = flight.memory.data();
  const Tensor all{memory, Shape{has_blocks(kind) ? count * ranks_ : count}, bucket.signature.dtype, {}};
  const Tensor mine{memory + (has_blocks(kind) ? rank_ * count * size : 0), Shape{count}, bucket.signature.dtype, {}};
  const bool joins = traits(kind).in == Rows::own;
  const bool deals = traits(kind).out == Rows::dealt;
  flight.bucket.tensors.push_back({joins ? mine : all, deals ? mine : all});
  flight.bucket.signature.shape = flight.bucket.tensors.front().in.shape;
}

/// Every tensor counts for itself.
void StagedPipeline::describe_whole(InFlight& flight) {
  const Bucket& bucket = *flight.job->bucket;
  flight.bucket = {on_host(bucket.signature), {}, bucket.absent, bucket.divide_by};
  std::byte* next = flight.whole->memory.data();
  for (const BucketTensor& tensor : bucket.tensors) {
    const Tensor host{next, tensor.in.shape, tensor.in.dtype, {}};
    flight.bucket.tensors.push_back({host, host});
    next += host.bytes();
  }
}

/// What this rank reads or writes of the chunk, between the GPU and its place on the host.
void StagedPipeline::copy(InFlight& flight, bool in) {
  const Bucket& bucket = *flight.job->bucket;
  const OpKind kind = bucket.signature.kind;
  const bool is_root = bucket.signature.root == rank_;
  const bool reads = kind == OpKind::broadcast ? is_root : uses(traits(kind).reads, is_root);
  if (in ? !reads : !uses(traits(kind).writes, is_root)) return;
  const auto size = static_cast<std::int64_t>(size_of(bucket.signature.dtype));
  const bool one_block = in ? traits(kind).in == Rows::own : traits(kind).out == Rows::dealt;
  std::vector<PackItem> items;
  std::int64_t place = 0;
  for_each_segment(bucket, ranks_, flight.chunk.position, flight.chunk.count, [&](const Segment& segment) {
    const BucketTensor& tensor = bucket.tensors[segment.tensor];
    for (int peer = 0; peer < (has_blocks(kind) ? ranks_ : 1); ++peer) {
      if (one_block && peer != rank_) continue;
      const ElementRange block =
          in ? in_block(kind, tensor, ranks_, rank_, peer) : out_block(kind, tensor, ranks_, rank_, peer);
      const std::int64_t count = std::min(segment.count, block.count() - segment.offset);
      if (count <= 0) continue;
      std::byte* const host = flight.memory.data() + (peer * flight.chunk.count + place) * size;
      std::byte* const device = address(in ? tensor.in : tensor.out, block.begin + segment.offset);
      items.push_back(in ? PackItem{device, host, count * size} : PackItem{host, device, count * size});
      staged_bytes_ += static_cast<std::uint64_t>(count * size);
    }
    place += segment.count;
  });
  run(items, (in ? in_ : out_)->get());
}

/// As many at a time as a launch takes as its arguments: a table would take memory, which may be missing.
void StagedPipeline::run(const std::vector<PackItem>& items, void* stream) {
  if (items.size() <= few_segments) {
    for (const PackItem& item : items) gpu_.copy(item.to, item.from, static_cast<std::size_t>(item.count), stream);
    return;
  }
  constexpr Conversion bytes{DType::u8, DType::u8};
  for (auto next = items.begin(); next != items.end();) {
    const auto count = std::min(items.end() - next, static_cast<std::ptrdiff_t>(most_items_passed));
    std::vector<PackItem> some(next, next + count);
    next += count;
    const std::int64_t tiles = lay_tiles(some, bytes);
    gpu_.pack(some.data(), some.size(), tiles, bytes, stream);
  }
}

void StagedPipeline::start(InFlight& flight) {
  Backend& host = *host_for(flight.job->bucket->signature);
  flight.started = true;
  flight.operation = host.supports(flight.bucket.signature) ? host.start(flight.bucket)
                                                            : start_adasum(host, flight.bucket, ranks_, rank_);
}

void StagedPipeline::copy_out(InFlight& flight) {
  if (flight.whole) return copy_out_whole(flight);
  copy(flight, false);
  finish(flight);
}

/// One more chunk, once the memory is free of the one before.
void StagedPipeline::copy_out_whole(InFlight& flight) {
  Whole& whole = *flight.whole;
  if (whole.left && !whole.left->passed()) return;
  const Bucket& bucket = *flight.job->bucket;
  if (!whole.left) whole.come = 0;
  flight.chunk = chunk_at(bucket, ranks_, whole.left ? flight.chunk.next : BucketPosition(), rule_);
  if (flight.chunk.count == 0) return finish(flight);
  const auto bytes = static_cast<std::size_t>(flight.chunk.count) * size_of(bucket.signature.dtype);
  std::memcpy(flight.memory.data(), whole.memory.data() + whole.come, bytes);
  whole.come += bytes;
  moved_ = true;
  copy(flight, false);
  whole.left = gpu_.mark(out_->get());
}

void StagedPipeline::finish(InFlight& flight) {
  flight.copied_out = gpu_.mark(out_->get());
  const bool last =
      std::ranges::all_of(in_flight_, [&](const auto& other) { return other->job != flight.job || other->copied_out; });
  if (flight.job->all_begun && last) flight.job->result = gpu_.mark(out_->get());
}

void StagedPipeline::abandon() noexcept {
  if (std::exchange(abandoned_, true)) return;
  for (auto& flight : in_flight_) {  // hosts and GPU may still use it
    flight->memory.leak();
    if (flight->whole) flight->whole->memory.leak();
  }
  in_flight_.clear();
  waiting_.clear();
  for (const auto& host : hosts_) host->abandon();
}

}  // namespace kolo
