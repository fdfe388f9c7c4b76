#include "ops/staged/pipeline.h"

#include <algorithm>
#include <utility>

#include "ops/adasum/adasum.h"

namespace kolo {
namespace {

/// Up to this many pieces are copied one by one; more by one kernel, which reads and writes pinned memory.
constexpr std::size_t few_pieces = 4;

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
  for (auto& chunk : chunks_) {
    if (!chunk->started) {
      if (held || !chunk->copied_in->passed()) break;  // hosts need the same order everywhere
      start(*chunk);
    }
    if (!chunk->copied_out && chunk->operation->step()) finish(*chunk);
    held |= chunk->operation && chunk->operation->holds_backend();
  }
  while (!chunks_.empty() && chunks_.front()->copied_out && chunks_.front()->copied_out->passed()) {
    --chunks_.front()->job->under_way;
    if (chunks_.front()->slot) chunks_.front()->slot->used = false;
    chunks_.pop_front();
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
  auto chunk = std::make_unique<Chunk>();
  chunk->job = &job;
  if (bucket.signature.op == ReduceOp::adasum && reduces(bucket.signature.kind)) {
    chunk->own = GpuBuffer(gpu_, std::max<std::size_t>(bucket.bytes(), 1), GpuBuffer::Kind::pinned);
    chunk->slot = nullptr;
    chunk->memory = chunk->own.data();
    job.all_begun = true;
    describe_whole(*chunk);
  } else {
    chunk->segment = segment_at(bucket, ranks_, job.next, rule_);
    job.next = chunk->segment.next;
    job.all_begun = segment_at(bucket, ranks_, job.next, rule_).count == 0;
    slot->used = true;
    chunk->slot = slot;
    chunk->memory = slot->memory.data();
    describe(*chunk);
  }
  ++job.under_way;
  copy(*chunk, true);
  chunk->copied_in = gpu_.mark(in_.get());
  chunks_.push_back(std::move(chunk));
}

/// On the host a chunk is one tensor, in place; where ranks have blocks, these are equally long: shorter ones
/// are padded.
void StagedPipeline::describe(Chunk& chunk) {
  const Bucket& bucket = *chunk.job->bucket;
  const OpKind kind = bucket.signature.kind;
  const std::int64_t count = chunk.segment.count;
  const auto size = static_cast<std::int64_t>(size_of(bucket.signature.dtype));
  chunk.bucket = {on_host(bucket.signature), {}, bucket.absent, bucket.divide_by};
  const Tensor all{chunk.memory, Shape{has_blocks(kind) ? count * ranks_ : count}, bucket.signature.dtype, {}};
  const Tensor mine{
      chunk.memory + (has_blocks(kind) ? rank_ * count * size : 0), Shape{count}, bucket.signature.dtype, {}};
  const bool joins = kind == OpKind::all_gather || kind == OpKind::gather;
  const bool deals = kind == OpKind::reduce_scatter || kind == OpKind::scatter;
  chunk.bucket.tensors.push_back({joins ? mine : all, deals ? mine : all});
  chunk.bucket.signature.shape = chunk.bucket.tensors.front().in.shape;
}

/// Every tensor counts for itself.
void StagedPipeline::describe_whole(Chunk& chunk) {
  const Bucket& bucket = *chunk.job->bucket;
  chunk.bucket = {on_host(bucket.signature), {}, bucket.absent, bucket.divide_by};
  chunk.segment = {{}, bucket.elements(), false, {}};
  std::byte* next = chunk.memory;
  for (const BucketTensor& tensor : bucket.tensors) {
    const Tensor host{next, tensor.in.shape, tensor.in.dtype, {}};
    chunk.bucket.tensors.push_back({host, host});
    next += host.bytes();
  }
}

/// What this rank reads or writes of the chunk, between the GPU and its place on the host.
void StagedPipeline::copy(Chunk& chunk, bool in) {
  const Bucket& bucket = *chunk.job->bucket;
  const OpKind kind = bucket.signature.kind;
  const bool is_root = bucket.signature.root == rank_;
  const bool reads = kind == OpKind::send_recv || kind == OpKind::broadcast || kind == OpKind::scatter ? is_root : true;
  const bool writes =
      kind == OpKind::reduce || kind == OpKind::gather ? is_root : kind != OpKind::send_recv || !is_root;
  if (in ? !reads : !writes) return;
  const auto size = static_cast<std::int64_t>(size_of(bucket.signature.dtype));
  const bool one_block = in ? kind == OpKind::all_gather || kind == OpKind::gather
                            : kind == OpKind::reduce_scatter || kind == OpKind::scatter;
  std::vector<PackItem> items;
  std::int64_t place = 0;
  for_each_piece(bucket, ranks_, chunk.segment.position, chunk.segment.count, [&](const Piece& piece) {
    const BucketTensor& tensor = bucket.tensors[piece.tensor];
    for (int peer = 0; peer < (has_blocks(kind) ? ranks_ : 1); ++peer) {
      if (one_block && peer != rank_) continue;
      const Slice block =
          in ? in_block(kind, tensor, ranks_, rank_, peer) : out_block(kind, tensor, ranks_, rank_, peer);
      const std::int64_t count = std::min(piece.count, block.count() - piece.offset);
      if (count <= 0) continue;
      std::byte* const host = chunk.memory + (peer * chunk.segment.count + place) * size;
      std::byte* const device = address(in ? tensor.in : tensor.out, block.begin + piece.offset);
      items.push_back(in ? PackItem{device, host, count * size} : PackItem{host, device, count * size});
      staged_bytes_ += static_cast<std::uint64_t>(count * size);
    }
    place += piece.count;
  });
  run(items, in);
}

void StagedPipeline::run(std::vector<PackItem>& items, bool in) {
  if (items.size() > few_pieces) return (in ? pack_ : unpack_).run(std::move(items), {DType::u8, DType::u8});
  for (const PackItem& item : items)
    gpu_.copy(item.to, item.from, static_cast<std::size_t>(item.count), (in ? in_ : out_).get());
}

void StagedPipeline::start(Chunk& chunk) {
  Backend& host = *host_for(chunk.job->bucket->signature);
  chunk.started = true;
  chunk.operation = host.supports(chunk.bucket.signature) ? host.start(chunk.bucket)
                                                          : start_adasum(host, chunk.bucket, ranks_, rank_);
}

void StagedPipeline::finish(Chunk& chunk) {
  chunk.operation.reset();
  copy(chunk, false);
  chunk.copied_out = gpu_.mark(out_.get());
  const bool last =
      std::ranges::all_of(chunks_, [&](const auto& other) { return other->job != chunk.job || other->copied_out; });
  if (chunk.job->all_begun && last) chunk.job->result = gpu_.mark(out_.get());
}

void StagedPipeline::abandon() noexcept {
  if (std::exchange(abandoned_, true)) return;
  for (auto& chunk : chunks_) chunk->own.leak();  // hosts and GPU may still use them
  for (Slot& slot : slots_) {
    if (slot.used) slot.memory.leak();
  }
  chunks_.clear();
  waiting_.clear();
  for (const auto& host : hosts_) host->abandon();
}

}  // namespace kolo
