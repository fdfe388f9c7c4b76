#include "ops/staged/pipeline.h"

#include <algorithm>
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

StagedPipeline::StagedPipeline(Gpu& gpu, BackendList hosts, int ranks, int rank, const StagedTuning& tuning)
    : gpu_(gpu),
      hosts_(std::move(hosts)),
      ranks_(ranks),
      rank_(rank),
      rule_{tuning.chunk_bytes, tuning.chunk_bytes},
      in_(gpu, true),
      out_(gpu, true),
      pack_(gpu, in_.get()),
      unpack_(gpu, out_.get()),
      slots_(tuning.chunks) {
  const auto bytes = static_cast<std::size_t>(tuning.chunk_bytes) +
                     64 * static_cast<std::size_t>(ranks);  // an element of each rank's block at least
  for (Slot& slot : slots_) slot.memory = GpuBuffer(gpu, bytes, GpuBuffer::Kind::pinned);
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
  for (auto& flight : in_flight_) {
    if (!flight->started) {
      if (held || !flight->copied_in->passed()) break;  // hosts need the same order everywhere
      start(*flight);
    }
    if (!flight->copied_out && flight->operation->step()) finish(*flight);
    held |= flight->operation && flight->operation->holds_backend();
  }
  while (!in_flight_.empty() && in_flight_.front()->copied_out && in_flight_.front()->copied_out->passed()) {
    --in_flight_.front()->job->under_way;
    if (in_flight_.front()->slot) in_flight_.front()->slot->used = false;
    in_flight_.pop_front();
    begin_chunks();
  }
}

void StagedPipeline::begin_chunks() {
  while (!waiting_.empty()) {
    Slot* const slot = free_slot();
    if (!slot) return;
    StagedJob& job = *waiting_.front();
    begin(job, slot);
    if (job.all_begun) waiting_.pop_front();
  }
}

StagedPipeline::Slot* StagedPipeline::free_slot() {
  const auto found = std::ranges::find_if(slots_, [](const Slot& slot) { return !slot.used; });
  return found == slots_.end() ? nullptr : &*found;
}

void StagedPipeline::begin(StagedJob& job, Slot* slot) {
  const Bucket& bucket = *job.bucket;
  if (!std::exchange(job.ordered, true)) {
    for (const auto& ready : bucket.ready) ready->order(in_.get());
  }
  auto flight = std::make_unique<InFlight>();
  flight->job = &job;
  if (bucket.signature.op == ReduceOp::adasum && reduces(bucket.signature.kind)) {
    flight->own = GpuBuffer(gpu_, std::max<std::size_t>(bucket.bytes(), 1), GpuBuffer::Kind::pinned);
    flight->slot = nullptr;
    flight->memory = flight->own.data();
    job.all_begun = true;
    describe_whole(*flight);
  } else {
    flight->chunk = chunk_at(bucket, ranks_, job.next, rule_);
    job.next = flight->chunk.next;
    job.all_begun = chunk_at(bucket, ranks_, job.next, rule_).count == 0;
    slot->used = true;
    flight->slot = slot;
    flight->memory = slot->memory.data();
    describe(*flight);
  }
  ++job.under_way;
  copy(*flight, true);
  flight->copied_in = gpu_.mark(in_.get());
  in_flight_.push_back(std::move(flight));
}

/// On the host a chunk is one tensor, in place; where ranks have blocks, these are equally long: shorter ones
/// are padded.
void StagedPipeline::describe(InFlight& flight) {
  const Bucket& bucket = *flight.job->bucket;
  const OpKind kind = bucket.signature.kind;
  const std::int64_t count = flight.chunk.count;
  const auto size = static_cast<std::int64_t>(size_of(bucket.signature.dtype));
  flight.bucket = {on_host(bucket.signature), {}, bucket.absent, bucket.divide_by};
  const Tensor all{flight.memory, Shape{has_blocks(kind) ? count * ranks_ : count}, bucket.signature.dtype, {}};
  const Tensor mine{
      flight.memory + (has_blocks(kind) ? rank_ * count * size : 0), Shape{count}, bucket.signature.dtype, {}};
  const bool joins = traits(kind).in == Rows::own;
  const bool deals = traits(kind).out == Rows::dealt;
  flight.bucket.tensors.push_back({joins ? mine : all, deals ? mine : all});
  flight.bucket.signature.shape = flight.bucket.tensors.front().in.shape;
}

/// Every tensor counts for itself.
void StagedPipeline::describe_whole(InFlight& flight) {
  const Bucket& bucket = *flight.job->bucket;
  flight.bucket = {on_host(bucket.signature), {}, bucket.absent, bucket.divide_by};
  flight.chunk = {{}, bucket.elements(), false, {}};
  std::byte* next = flight.memory;
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
      std::byte* const host = flight.memory + (peer * flight.chunk.count + place) * size;
      std::byte* const device = address(in ? tensor.in : tensor.out, block.begin + segment.offset);
      items.push_back(in ? PackItem{device, host, count * size} : PackItem{host, device, count * size});
      staged_bytes_ += static_cast<std::uint64_t>(count * size);
    }
    place += segment.count;
  });
  run(items, in);
}

void StagedPipeline::run(std::vector<PackItem>& items, bool in) {
  if (items.size() > few_segments) return (in ? pack_ : unpack_).run(std::move(items), {DType::u8, DType::u8});
  for (const PackItem& item : items)
    gpu_.copy(item.to, item.from, static_cast<std::size_t>(item.count), (in ? in_ : out_).get());
}

void StagedPipeline::start(InFlight& flight) {
  Backend& host = *host_for(flight.job->bucket->signature);
  flight.started = true;
  flight.operation = host.supports(flight.bucket.signature) ? host.start(flight.bucket)
                                                            : start_adasum(host, flight.bucket, ranks_, rank_);
}

void StagedPipeline::finish(InFlight& flight) {
  flight.operation.reset();
  copy(flight, false);
  flight.copied_out = gpu_.mark(out_.get());
  const bool last =
      std::ranges::all_of(in_flight_, [&](const auto& other) { return other->job != flight.job || other->copied_out; });
  if (flight.job->all_begun && last) flight.job->result = gpu_.mark(out_.get());
}

void StagedPipeline::abandon() noexcept {
  if (std::exchange(abandoned_, true)) return;
  for (auto& flight : in_flight_) flight->own.leak();  // hosts and GPU may still use them
  for (Slot& slot : slots_) {
    if (slot.used) slot.memory.leak();
  }
  in_flight_.clear();
  waiting_.clear();
  for (const auto& host : hosts_) host->abandon();
}

}  // namespace kolo
