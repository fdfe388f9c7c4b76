// Collectives in two levels, on made-up placements of the ranks of MPI_COMM_WORLD.

#include "ops/two_level/backend.h"

#include <algorithm>
#include <array>
#include <numeric>
#include <optional>
#include <string>
#include <utility>

#include "ops/mpi/backend.h"
#include "ops/registry/mpi_processes.h"
#include "ops/two_level/node_placement.h"
#include "tests/ops/backend_conformance.h"
#include "tests/support/environment.h"

namespace kolo {

namespace {

constexpr MpiTuning tiny{{1024, 256}, 128, 3};

/// A placement of all ranks, and the backend that it makes.
class Nodes {
 public:
  /// Within nodes over shared memory, or, to hold MPI's order there to account, over MPI in chunks as small.
  Nodes(std::vector<int> node_of, const MpiTuning& tuning, bool shared) {
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    for (std::size_t r = 0; r < node_of.size(); ++r) {
      std::size_t node = 0;  // numbered by their lowest ranks
      while (node < members.size() && node_of[static_cast<std::size_t>(members[node][0])] != node_of[r]) ++node;
      if (node == members.size()) members.emplace_back();
      members[node].push_back(static_cast<int>(r));
    }
    auto all_ranks = mpi_backend(MPI_COMM_WORLD, tuning, {node_of});
    std::unique_ptr<Backend> node;
    MpiGathering gathering(MPI_COMM_WORLD);
    if (shared)
      node = node_backend({gathering, node_of, {}, [](const std::string& line) { ADD_FAILURE() << line; }},
                          MPI_COMM_WORLD);
    backend = two_level_backend(std::move(all_ranks), std::move(node), node_of, rank, tuning.chunks);
  }

  void run(Call call) {
    call.nodes = members;
    int ranks = 0;
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    EXPECT_TRUE(backend->supports(call.signature)) << to_string(call.signature);
    Job job(call, rank, ranks);
    job.start(*backend);
    job.finish();
    job.verify();
  }

  int rank = 0;
  std::vector<std::vector<int>> members;
  std::unique_ptr<Backend> backend;
};

int ranks_of_world() {
  int ranks = 0;
  MPI_Comm_size(MPI_COMM_WORLD, &ranks);
  return ranks;
}

std::vector<std::vector<int>> placements() {
  switch (ranks_of_world()) {
    case 3: return {{0, 0, 1}, {0, 1, 0}, {7, 3, 3}};
    case 4: return {{0, 0, 1, 1}, {0, 0, 0, 1}, {0, 1, 0, 1}, {0, 1, 1, 2}};
    case 5: return {{0, 0, 1, 1, 1}, {1, 0, 1, 0, 1}, {0, 0, 1, 1, 2}};
    case 6: return {{0, 0, 1, 1, 2, 2}, {0, 1, 2, 0, 1, 2}, {0, 0, 0, 1, 1, 2}, {0, 1, 2, 3, 3, 4}};
    default: return {};
  }
}

/// As a world's list: what the first backend refuses the next one runs. Sums have the same bits on both.
class InTurn final : public Backend {
 public:
  explicit InTurn(BackendList backends) : backends_(std::move(backends)) {}
  std::string_view name() const override { return "in turn"; }
  bool supports(const Signature& signature) const override { return chosen(signature) != nullptr; }
  std::unique_ptr<Operation> start(const Bucket& bucket) override { return chosen(bucket.signature)->start(bucket); }
  std::unique_ptr<Backend> for_group(const GroupInfo&) override { return nullptr; }
  void abandon() noexcept override {}

 private:
  Backend* chosen(const Signature& signature) const {
    const auto found = std::ranges::find_if(backends_, [&](const auto& one) { return one->supports(signature); });
    return found == backends_.end() ? nullptr : found->get();
  }

  BackendList backends_;
};

class TwoLevelHarness final : public Harness {
 public:
  TwoLevelHarness(const std::vector<int>& node_of, const MpiTuning& tuning, bool shared)
      : nodes_(node_of, tuning, shared), ranks_(static_cast<int>(node_of.size())) {
    BackendList list;
    list.push_back(std::move(nodes_.backend));
    list.push_back(mpi_backend(MPI_COMM_WORLD, tuning, {node_of}));
    backend_ = std::make_unique<InTurn>(std::move(list));
  }
  int ranks() const override { return ranks_; }
  std::vector<std::vector<int>> nodes() const override { return nodes_.members; }
  void run(const std::function<void(int rank, Backend& backend)>& body) override { body(nodes_.rank, *backend_); }

 private:
  Nodes nodes_;
  int ranks_;
  std::unique_ptr<Backend> backend_;
};

/// Of the placement of that number; nothing where there are fewer.
HarnessFactory on_placement(std::size_t number, bool shared, std::size_t one_of) {
  const auto make = [=]() -> std::unique_ptr<Harness> {
    const auto all = placements();
    if (number >= all.size()) return nullptr;
    return std::make_unique<TwoLevelHarness>(all[number], shared ? between_nodes : tiny, shared);
  };
  return {fmt::format("{}{}", shared ? "shared" : "tiny", number), make, 2, shared ? 1 : 10, one_of};
}

const auto harnesses =
    ::testing::Values(on_placement(0, true, 1), on_placement(1, true, 3), on_placement(0, false, 3),
                      on_placement(1, false, 3), on_placement(2, false, 3), on_placement(3, false, 3));
INSTANTIATE_TEST_SUITE_P(TwoLevel, BackendConformance, harnesses, name_of_harness);
INSTANTIATE_TEST_SUITE_P(TwoLevel, ExactConformance, harnesses, name_of_harness);

TEST(TwoLevel, ServesOnlyPlacementsWithSomethingToShare) {
  EXPECT_FALSE(spans_shared_nodes({0, 1}));
  EXPECT_FALSE(spans_shared_nodes({0, 0}));
  EXPECT_FALSE(spans_shared_nodes({5}));
  EXPECT_TRUE(spans_shared_nodes({0, 1, 0}));
}

/// Every size with every op and type on the first placement; elsewhere they take turns.
TEST(TwoLevel, EveryOpTypeAndSize) {
  const std::vector<std::vector<std::int64_t>> all_sizes{{}, {0}, {1}, {2}, {7, 0, 1, 500}, {5'003}, {20'001, 3, 60}};
  for (const auto& node_of : placements()) {
    for (const bool shared : {true, false}) {
      const bool first = shared && node_of == placements().front();
      Nodes nodes(node_of, shared ? between_nodes : tiny, shared);
      std::uint64_t seed = 0;
      for (const DType dtype : all_types) {
        for (const ReduceOp op : all_reduce_ops) {
          const bool exceeds_all = op == ReduceOp::average && (dtype == DType::i64 || dtype == DType::u64);
          EXPECT_EQ(nodes.backend->supports(all_reduce_of(dtype, op)), reducible(op, dtype) && !exceeds_all);
          if (!nodes.backend->supports(all_reduce_of(dtype, op))) continue;
          for (std::size_t turn = 0; turn < (first ? all_sizes.size() : 2); ++turn) {
            ++seed;
            Call call{all_reduce_of(dtype, op), all_sizes[seed % all_sizes.size()], seed % 2 == 0, seed};
            if (scalable(op, dtype)) call.signature.prescale = seed % 3 == 0 ? 0.5 : 1;
            if (scalable(op, dtype)) call.signature.postscale = seed % 5 == 0 ? 3 : 1;
            nodes.run(call);
          }
        }
      }
      if (::testing::Test::HasFailure()) return;
    }
  }
}

// Nobody waits for a large operation longer than for a step of it.
TEST(TwoLevel, AStepOfALargeOperationMovesAPart) {
  for (const auto& node_of : placements()) {
    Nodes nodes(node_of, between_nodes, true);
    Call call{all_reduce_of(DType::f32, ReduceOp::sum), std::vector<std::int64_t>(1000, 5'000), true, 1};  // staged
    call.nodes = nodes.members;
    Job job(call, nodes.rank, static_cast<int>(node_of.size()));
    job.start(*nodes.backend);
    std::uint64_t before = nodes.backend->staged_bytes(), most = 0;
    for (bool complete = false; !complete;) {
      complete = job.step();
      const std::uint64_t after = nodes.backend->staged_bytes();
      most = std::max(most, after - std::exchange(before, after));
    }
    EXPECT_LE(most, std::uint64_t{1280} << 10) << "the budget, and a chunk of 512 KiB for each of two stripes";
    job.verify();
  }
}

TEST(TwoLevel, AbsentRanksAndNodes) {
  for (const auto& node_of : placements()) {
    Nodes nodes(node_of, tiny, true);
    const int ranks = static_cast<int>(node_of.size());
    for (int subset = 1; subset + 1 < 1 << ranks; ++subset) {
      std::vector<int> absent;
      for (int rank = 0; rank < ranks; ++rank) {
        if (subset >> rank & 1) absent.push_back(rank);
      }
      for (const ReduceOp op : {ReduceOp::sum, ReduceOp::average, ReduceOp::min, ReduceOp::product}) {
        Call call{all_reduce_of(DType::f64, op), {300, 5}, subset % 2 == 0, static_cast<std::uint64_t>(subset)};
        call.absent = absent;
        call.signature.divide_by_group = subset % 3 == 0;
        nodes.run(call);
      }
      if (::testing::Test::HasFailure()) return;
    }
  }
}

TEST(TwoLevel, LargerThanManyChunks) {
  for (const auto& node_of : placements()) {
    Nodes nodes(node_of, between_nodes, true);
    nodes.run({all_reduce_of(DType::f32, ReduceOp::average), {2'500'001, 5, 500'000}, true, 1});
    nodes.run({all_reduce_of(DType::i32, ReduceOp::sum), std::vector<std::int64_t>(300, 4'999), false, 2});
  }
}

/// Groups over MPI alone, whose members come at very different times; then two at once, which odd ranks start and step
/// in the opposite order.
TEST(TwoLevel, GroupsAreMadeWithoutTheOthers) {
  for (const auto& node_of : placements()) {
    Nodes nodes(node_of, tiny, false);
    const int ranks = static_cast<int>(node_of.size());
    GroupInfo group{0, "group", std::vector<int>(node_of.size()), nodes.rank};
    std::iota(group.ranks.begin(), group.ranks.end(), 0);
    const auto make = [&] { return ++group.id, nodes.backend->for_group(group); };
    const auto make_and_end = [&] {
      for (int i = 0; i < 50; ++i) (void)make();
    };
    if (nodes.rank == 0) make_and_end();
    MPI_Barrier(MPI_COMM_WORLD);
    if (nodes.rank != 0) make_and_end();
    const std::array groups{make(), make()};
    MpiGathering gathering(MPI_COMM_WORLD);
    for (const auto& made : groups) EXPECT_TRUE(made->introduce(all_introductions(gathering, made->introduction())));
    std::vector<std::unique_ptr<Job>> jobs;
    for (std::uint64_t seed = 1; seed <= 2; ++seed) {
      Call call{all_reduce_of(seed == 1 ? DType::f32 : DType::f16, ReduceOp::sum), {3'000, 7}, true, seed};
      call.nodes = nodes.members;
      jobs.push_back(std::make_unique<Job>(call, nodes.rank, ranks));
    }
    const std::size_t first = static_cast<std::size_t>(nodes.rank) % 2;
    for (const std::size_t i : {first, 1 - first}) jobs[i]->start(*groups[i]);
    for (bool complete = false; !complete;) {
      complete = true;
      for (const std::size_t i : {first, 1 - first}) complete &= jobs[i]->step();
    }
    for (const auto& job : jobs) job->verify();
  }
}

/// Caches within nodes: shared memory adds in the order that MPI's sums have.
TEST(TwoLevel, DomainsWithinNodesAddInOneOrder) {
  std::vector<RankPlaces> all;
  const auto ranks = static_cast<std::size_t>(ranks_of_world());
  if (ranks == 3) all = {{{0, 0, 0}, {0, 1, 0}}, {{0, 0, 0}, {0, 1, 1}}};
  if (ranks == 4) all = {{{0, 0, 0, 0}, {0, 0, 1, 1}}, {{0, 0, 0, 0}, {0, 1, 2, 1}}, {{0, 0, 0, 1}, {0, 1, 1, 2}}};
  if (ranks == 6) all = {{{0, 0, 0, 1, 1, 1}, {0, 0, 1, 2, 3, 3}}, {{0, 0, 0, 0, 0, 0}, {0, 1, 2, 0, 1, 2}}};
  for (const RankPlaces& places : all) {
    int rank = 0;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    const auto over_mpi = mpi_backend(MPI_COMM_WORLD, between_nodes, places);
    auto all_ranks = mpi_backend(MPI_COMM_WORLD, between_nodes, places);
    MpiGathering gathering(MPI_COMM_WORLD);
    const auto fail = [](const std::string& line) { ADD_FAILURE() << line; };
    auto backend = node_backend({gathering, places.node_of, {}, fail, {}, places.domain_of}, MPI_COMM_WORLD);
    if (spans_shared_nodes(places.node_of))
      backend = two_level_backend(std::move(all_ranks), std::move(backend), places.node_of, rank, between_nodes.chunks);
    int different_from_rank_order = 0;
    for (const OpKind kind : {OpKind::all_reduce, OpKind::reduce, OpKind::reduce_scatter}) {
      for (const std::int64_t size : {1, 7, 1000, 70'000, 1'000'000}) {
        const Signature signature = signature_of(kind, DType::f32);
        std::vector<float> in(static_cast<std::size_t>(size) * ranks);
        for (std::size_t i = 0; i < in.size(); ++i)
          in[i] = element_value<float>(5, static_cast<std::uint64_t>(rank), 0, i);
        const std::size_t results = kind == OpKind::reduce_scatter ? in.size() / ranks : in.size();
        std::vector<float> out(results), expected(results);
        for (auto [by, to] : {std::pair{backend.get(), &out}, std::pair{over_mpi.get(), &expected}}) {
          const Bucket bucket{signature, {{view(in), view(*to)}}};
          const auto operation = by->start(bucket);
          while (!operation->step()) std::this_thread::yield();
        }
        if (kind == OpKind::reduce && rank != 0) continue;
        EXPECT_EQ(out, expected) << to_string(kind) << " of " << size;
        std::vector<float> linear(ranks);
        for (std::size_t i = 0; i < results; ++i) {
          const std::size_t at = kind == OpKind::reduce_scatter ? static_cast<std::size_t>(rank) * results + i : i;
          for (std::size_t r = 0; r < ranks; ++r) linear[r] = element_value<float>(5, r, 0, at);
          different_from_rank_order += std::accumulate(linear.begin() + 1, linear.end(), linear[0]) != expected[i];
        }
      }
    }
    EXPECT_GT(different_from_rank_order, 0) << "the order of sums makes no difference here";
  }
}

/// A node whose ranks cannot share memory says so, and uses MPI; the others do as ever.
TEST(TwoLevel, WithoutSharedMemoryOnOneNode) {
  for (const auto& node_of : placements()) {
    int rank = 0;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    std::string line;
    std::string_view name;
    auto all_ranks = mpi_backend(MPI_COMM_WORLD, between_nodes, {node_of});
    std::optional<NoDescriptors> handicap;
    if (rank == 0) handicap.emplace();
    MpiGathering gathering(MPI_COMM_WORLD);
    auto node = node_backend({gathering, node_of, {}, [&](const std::string& text) { line = text; }}, MPI_COMM_WORLD);
    handicap.reset();
    if (node) name = node->name();
    const auto backend = two_level_backend(std::move(all_ranks), std::move(node), node_of, rank, between_nodes.chunks);
    const auto peers = std::ranges::count(node_of, node_of[static_cast<std::size_t>(rank)]);
    const bool of_the_first = node_of[static_cast<std::size_t>(rank)] == node_of[0];
    EXPECT_EQ(name, peers == 1 ? "" : of_the_first ? "mpi" : "shm");
    EXPECT_EQ(line.find("no shared memory for group"), rank == 0 && peers > 1 ? 0 : std::string::npos) << line;
    std::vector<float> values(50'000, 1);
    const Bucket bucket{all_reduce_of(DType::f32, ReduceOp::sum), {{view(values), view(values)}}};
    const auto operation = backend->start(bucket);
    while (!operation->step()) std::this_thread::yield();
    EXPECT_EQ(values, std::vector<float>(values.size(), static_cast<float>(node_of.size())));
  }
}

}  // namespace
}  // namespace kolo
