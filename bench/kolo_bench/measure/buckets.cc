// The communication of a training step: all gradients are submitted in the order of the list, each under its name, and
// then waited for. The peers are programs without a runtime: they pack gradients into 64 MiB, reduce and unpack, or
// reduce each gradient in-place.

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include <kolo/detail/hash.h>

#include "bench/kolo_bench/measure/bucket_list.h"
#include "bench/kolo_bench/measure/context.h"

namespace kolo::bench {
namespace {

class FusedMpi final : public Candidate {
 public:
  FusedMpi(MPI_Comm comm, const Work& work, Storage buffer, std::size_t room)
      : comm_(comm),
        work_(work),
        type_(mpi_type(work.signature.dtype)),
        op_(mpi_op(work.signature.op, work.signature.dtype)),
        buffer_(std::move(buffer)),
        room_(room) {}

  std::string_view name() const override { return "mpi_fused"; }

  void run() override {
    for (Position at; at.tensor < work_.lanes.size();) {
      Position packed = at, unpacked = at;
      const std::size_t bytes =
          walk(packed, [](std::byte* staged, std::byte* tensor, std::size_t n) { std::memcpy(staged, tensor, n); });
      const auto count = static_cast<int>(bytes / size_of(work_.signature.dtype));
      check_mpi(MPI_Allreduce(MPI_IN_PLACE, buffer_.data(), count, type_, op_, comm_), "MPI_Allreduce");
      walk(unpacked, [](std::byte* staged, std::byte* tensor, std::size_t n) { std::memcpy(tensor, staged, n); });
      at = unpacked;
    }
  }

 private:
  struct Position {
    std::size_t tensor = 0;
    std::size_t offset = 0;  // bytes
  };

  /// Calls copy(in the buffer, in a tensor, bytes) for what fits into the buffer from `at` on, and advances `at`.
  template <class Copy>
  std::size_t walk(Position& at, Copy copy) {
    std::size_t filled = 0;
    while (at.tensor < work_.lanes.size() && filled < room_) {
      const Tensor& tensor = work_.lanes[at.tensor].out;
      const std::size_t bytes = std::min(tensor.bytes() - at.offset, room_ - filled);
      copy(buffer_.data() + filled, static_cast<std::byte*>(tensor.data) + at.offset, bytes);
      filled += bytes;
      at.offset += bytes;
      if (at.offset == tensor.bytes()) at = {at.tensor + 1, 0};
    }
    return filled;
  }

  MPI_Comm comm_;
  Work work_;
  MPI_Datatype type_;
  MPI_Op op_;
  Storage buffer_;
  std::size_t room_;
};

constexpr std::size_t fused_bytes = std::size_t{64} << 20;
constexpr std::size_t apart =
    64;  // gradients that were allocated one by one do not touch each other; those of an arena do

struct Gradients {
  Storage storage;
  Work work;
};

Gradients make_gradients(BenchContext& context, const BucketList& list, const Signature& signature) {
  const bool arena = context.options().memory == BufferMemory::session;
  std::size_t total = 0;
  const auto room_of = [&](std::int64_t elements) {
    const std::size_t bytes = static_cast<std::size_t>(elements) * size_of(signature.dtype);
    return arena ? bytes : (bytes + apart - 1) / apart * apart + apart;
  };
  for (const std::int64_t elements : list.elements) total += room_of(elements);
  context.place().check_room(context.ranks(), total + fused_bytes, "use a smaller list, or fewer ranks");
  Gradients gradients{context.storage(total),
                      {signature, true, {}, fmt::format("{} {}", list.name, to_string(signature.dtype))}};
  std::byte* next = gradients.storage.data();
  for (const std::int64_t elements : list.elements) {
    const Tensor tensor{next, Shape{elements}, signature.dtype, context.place().device()};
    gradients.work.lanes.push_back({tensor, tensor});
    next += room_of(elements);
  }
  gradients.work.signature.shape = gradients.work.lanes.front().in.shape;
  return gradients;
}

/// A program on hosts without kolo.
std::vector<std::unique_ptr<Candidate>> with_mpi(BenchContext& context, const Work& work) {
  std::vector<std::unique_ptr<Candidate>> all;
  const MPI_Comm comm = context.ranks().comm();
  if (const auto reason = no_mpi_call(work)) {
    context.note(fmt::format("{}; the step is not compared with MPI", *reason));
    return all;
  }
  const std::size_t element = size_of(work.signature.dtype), room = fused_bytes / element * element;
  all.push_back(
      std::make_unique<FusedMpi>(comm, work, Storage::private_pages(fused_bytes, context.options().huge_pages), room));
  all.push_back(raw_mpi(comm, work, "mpi_per_tensor"));
  return all;
}

/// On GPUs: NCCL's in-place call for each gradient, launched as one group, and one by one.
std::vector<std::unique_ptr<Candidate>> with_peer(BenchContext& context, const Work& work) {
  std::vector<std::unique_ptr<Candidate>> all;
  Peer* const peer = context.peer();
  if (!peer) return all;
  if (const auto reason = peer->refuses(work)) {
    context.note(fmt::format("{}; the step is not compared", *reason));
    return all;
  }
  all.push_back(peer->candidate(work, peer->name() + "_one_group"));
  all.push_back(peer->candidate(work, peer->name() + "_per_tensor", false));
  return all;
}

}  // namespace

void run_buckets(BenchContext& context) {
  const Options& options = context.options();
  const Ranks& ranks = context.ranks();
  BucketList list;
  cli::collectively(ranks, [&] { list = bucket_list(options.buckets); });
  std::string all;
  for (const std::int64_t elements : list.elements) all += fmt::format("{},", elements);
  const cli::Agreed agreed{"the list of --buckets",
                           fmt::format("{} tensors, {:016x}", list.elements.size(), detail::Hash().add(all).value())};
  cli::check_same(ranks, {&agreed, 1});

  const Signature signature{
      .kind = OpKind::all_reduce, .op = options.ops.front(), .dtype = options.dtypes.front(), .device = options.device};
  const Gradients gradients = make_gradients(context, list, signature);
  const Work& work = gradients.work;
  const auto bytes = list.total() * static_cast<std::int64_t>(size_of(signature.dtype));

  std::vector<std::unique_ptr<Candidate>> owned;
  owned.push_back(context.kolo(work));
  for (auto& one : options.device == DeviceKind::cpu ? with_mpi(context, work) : with_peer(context, work))
    owned.push_back(std::move(one));
  std::vector<Candidate*> candidates;
  std::vector<std::string> peers;
  for (const auto& one : owned) {
    if (!candidates.empty()) peers.emplace_back(one->name());
    candidates.push_back(one.get());
  }
  context.watch().begin(work.name);
  Schedule schedule = schedule_for(options, bytes, candidates.size() == 1);
  constexpr std::int64_t to_learn = 56;  // steps until the runtime has planned them, and tuned the fusion threshold
  if (!options.warm_up) schedule.warm_up = std::max(schedule.warm_up, to_learn);
  Options shown = options;
  shown.sizes = {bytes, bytes};
  shown.iterations = schedule.iterations;
  shown.warm_up = schedule.warm_up;
  context.begin(peers, shown);
  context.fill(work);
  TimedCheck check(context, work, *candidates[0]);
  const auto series = measure(ranks, candidates, schedule, &check);

  Result result = make_result(context, work, candidates, series);
  result.bytes = bytes;
  result.count = list.total();
  result.buckets = list.name;
  result.tensors = static_cast<std::int64_t>(list.elements.size());
  fill_in_bandwidth(result, signature.kind, ranks.size());
  result.wrong = check.all_wrong();
  for (std::size_t i = 0; i < result.compare.size(); ++i)
    result.compare[i].wrong = context.wrong_elements(work, *candidates[i + 1], true);
  context.add({result});
}

}  // namespace kolo::bench
