#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "bench/kolo_bench/measure/context.h"
#include "ops/kernels/copy.h"

namespace kolo::bench {
namespace {

/// Copies with non-temporal stores: each byte is then read and written once, where an ordinary copy also reads
/// the destination.
class Copies final : public Candidate {
 public:
  Copies(std::size_t bytes, bool huge)
      : bytes_(bytes), from_(Storage::private_pages(bytes, huge)), to_(Storage::private_pages(bytes, huge)) {}

  std::string_view name() const override { return "copy"; }
  void run() override {
    copy(to_.data(), from_.data(), bytes_, CopyTo::memory);
    finish_copies();
  }

 private:
  std::size_t bytes_;
  Storage from_, to_;
};

/// Type, operation and root of a part of the sweep.
std::vector<Signature> signatures_of(const Options& options, int ranks) {
  const OpKind kind = options.collective->kind;
  std::vector<int> roots{options.root.value_or(0)};
  for (int root = 1; has_root(kind) && !options.root && root < ranks; ++root) roots.push_back(root);
  std::vector<Signature> all;
  for (const DType dtype : options.dtypes) {
    for (const ReduceOp op : options.ops) {
      if (reduces(kind) && !reducible(op, dtype)) continue;
      if (!reduces(kind) && op != options.ops.front()) continue;
      for (const int root : roots)
        all.push_back({.kind = kind, .op = reduces(kind) ? op : ReduceOp::sum, .dtype = dtype, .root = root});
    }
  }
  return all;
}

std::vector<bool> placements_of(const Options& options) {
  const OpKind kind = options.collective->kind;
  std::vector<bool> all;
  if (options.placements != Placements::in_place && kind != OpKind::broadcast) all.push_back(false);
  if (options.placements != Placements::out_of_place && kind != OpKind::send_recv) all.push_back(true);
  return all;
}

class Sweep {
 public:
  explicit Sweep(BenchContext& context)
      : context_(context),
        options_(context.options()),
        ranks_(context.ranks()),
        signatures_(signatures_of(options_, ranks_.size())) {}

  void run() {
    cli::collectively(ranks_, [&] { check(); });
    make_room();
    context_.begin(context_.peers());
    for (const Signature& signature : signatures_) measure_sizes(signature);
    if (context_.report().results.empty()) context_.note("no size has an element for every rank; nothing was measured");
  }

 private:
  void check() const {
    const OpKind kind = options_.collective->kind;
    if (kind == OpKind::send_recv && ranks_.size() < 2)
      throw UsageError("send_recv needs two ranks; start them with mpirun -np 2");
    if (options_.root && *options_.root >= ranks_.size()) {
      throw UsageError(
          fmt::format("-r is {}, and the ranks are 0 to {}; name one of them", *options_.root, ranks_.size() - 1));
    }
    const Peer* const peer = context_.peer();
    if (!peer) return;
    const auto refuses = [&](const Signature& signature) {
      return peer->refuses(make_work(signature, 1 << 10, options_.placements == Placements::in_place, 0, 1, {}));
    };
    if (!std::ranges::all_of(signatures_, [&](const Signature& one) { return refuses(one).has_value(); })) return;
    throw UsageError(fmt::format("--compare {0}: {1}; leave it out, or measure what {0} can do", peer->name(),
                                 *refuses(signatures_.front())));
  }

  void make_room() {
    std::size_t in = 0, out = 0, largest = 0;
    cli::collectively(ranks_, [&] {
      for (const Signature& signature : signatures_) {
        const Extent extent = extent_of(signature.kind, options_.sizes.max, signature.dtype, ranks_.size());
        const std::size_t bytes = size_of(signature.dtype);
        in = std::max(in, checked_product(static_cast<std::size_t>(extent.in), bytes));
        out = std::max(out, checked_product(static_cast<std::size_t>(extent.out), bytes));
      }
      constexpr std::size_t apart = 4096;  // lanes begin on pages
      area_.in_stride = checked_sum(in, apart) / apart * apart;
      area_.out_stride = checked_sum(out, apart) / apart * apart;
      area_.lanes = options_.lanes;
      in = checked_product(area_.in_stride, static_cast<std::size_t>(area_.lanes));
      out = checked_product(area_.out_stride, static_cast<std::size_t>(area_.lanes));
      largest = options_.copy_limit ? checked_product(2, static_cast<std::size_t>(options_.sizes.max)) : 0;
      checked_sum(checked_sum(in, out), largest);
    });
    context_.place().check_room(ranks_, in + out + largest, "use a smaller -e or -m, or fewer ranks");
    in_ = context_.storage(in);
    out_ = context_.storage(out);
    area_.in = in_.data();
    area_.out = out_.data();
    area_.device = context_.place().device();
  }

  void measure_sizes(const Signature& signature) {
    std::int64_t measured = 0;  // elements: sizes that hold as many are one
    for (const std::int64_t bytes : options_.sizes.all()) {
      const std::int64_t count = extent_of(signature.kind, bytes, signature.dtype, ranks_.size()).count;
      if (count == 0) {
        context_.note(fmt::format("a size of {} is less than one {} per block, and is left out", bytes,
                                  to_string(signature.dtype)));
      } else if (std::exchange(measured, count) != count) {
        measure_size(signature, bytes);
      }
    }
  }

  void measure_size(const Signature& signature, std::int64_t bytes) {
    std::vector<Result> results;
    for (const bool in_place : placements_of(options_)) {
      results.push_back(measure_work(make_work(signature, bytes, in_place, ranks_.rank(), ranks_.size(), area_)));
    }
    context_.add(std::move(results));
  }

  Result measure_work(const Work& work) {
    context_.watch().begin(work.name);
    std::vector<std::unique_ptr<Candidate>> all;
    const std::size_t bytes = std::max(work.bytes_in(), work.bytes_out());
    all.push_back(context_.kolo(work));
    if (Peer* const peer = context_.peer()) {
      if (const auto reason = peer->refuses(work)) {
        context_.note(fmt::format("{}; that is not compared", *reason));
      } else {
        all.push_back(peer->candidate(work, peer->name()));
        for (auto& one : peer->alternatives(work)) all.push_back(std::move(one));
      }
    }
    if (options_.copy_limit) all.push_back(std::make_unique<Copies>(bytes, options_.huge_pages));
    std::vector<Candidate*> candidates;
    for (const auto& one : all) candidates.push_back(one.get());

    context_.fill(work);
    TimedCheck check(context_, work, *candidates[0]);
    const Schedule schedule = schedule_for(options_, static_cast<std::int64_t>(bytes), candidates.size() == 1);
    const auto series = measure(ranks_, candidates, schedule, &check);
    Result result = make_result(context_, work, candidates, series);
    result.wrong = check.all_wrong();
    finish_peers(work, candidates, result);
    return result;
  }

  /// Checks the peers' results; of several ways of one peer, adds the fastest.
  void finish_peers(const Work& work, const std::vector<Candidate*>& candidates, Result& result) {
    auto& peers = result.compare;
    if (peers.empty()) return;
    const Peer& peer = *context_.peer();
    for (std::size_t i = 0; peer.checkable(work) && i < peers.size(); ++i)
      peers[i].wrong = context_.wrong_elements(work, *candidates[i + 1], true);
    if (!options_.mpi_algorithms) return;
    peers[0].algorithm = "default";
    for (std::size_t i = 1; i < peers.size(); ++i) peers[i].algorithm = peers[i].name.substr(peer.name().size() + 1);
    add_best_peer(result, peer.name() + "-best");
  }

  BenchContext& context_;
  const Options& options_;
  const Ranks& ranks_;
  std::vector<Signature> signatures_;
  Storage in_, out_;
  Area area_;
};

}  // namespace

void run_sweep(BenchContext& context) {
  Sweep(context).run();
}

}  // namespace kolo::bench
