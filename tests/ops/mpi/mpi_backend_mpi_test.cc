#include "ops/mpi/backend.h"

#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <numeric>
#include <set>

#include "tests/ops/backend_conformance.h"

namespace kolo {
namespace {

/// Ranks on nodes: what sums depend on.
class MpiHarness final : public Harness {
 public:
  explicit MpiHarness(const MpiTuning& tuning, const std::vector<int>& node_of = {})
      : backend_(mpi_backend(MPI_COMM_WORLD, tuning, {node_of})) {
    MPI_Comm_rank(MPI_COMM_WORLD, &rank_);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks_);
    for (std::size_t rank = 0; rank < node_of.size(); ++rank) {
      const auto same = [&](const auto& node) { return node_of[static_cast<std::size_t>(node[0])] == node_of[rank]; };
      auto node = std::ranges::find_if(nodes_, same);
      if (node == nodes_.end()) node = nodes_.insert(node, std::vector<int>());
      node->push_back(static_cast<int>(rank));
    }
  }
  int ranks() const override { return ranks_; }
  std::vector<std::vector<int>> nodes() const override { return nodes_; }
  void run(const std::function<void(int rank, Backend& backend)>& body) override { body(rank_, *backend_); }

  /// By rank: the ranks of a node one after the other, or dealt to the nodes in turn.
  static std::vector<int> each_alone() {
    return placed([](int rank, int) { return rank; });
  }
  static std::vector<int> dealt_to_three() {
    return placed([](int rank, int) { return rank % 3; });
  }

 private:
  template <class NodeOf>
  static std::vector<int> placed(NodeOf node) {
    int ranks = 1;
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    std::vector<int> node_of;
    for (int rank = 0; rank < ranks; ++rank) node_of.push_back(node(rank, ranks));
    return node_of;
  }

  int rank_ = 0;
  int ranks_ = 1;
  std::vector<std::vector<int>> nodes_;
  std::unique_ptr<Backend> backend_;
};

// Tiny chunks: every path, every border, and many chunks, with little data. Few ranks send directly, or more along
// trees.
constexpr MpiTuning tiny{{1024, 256}, 128, 3, 2048, 512};
constexpr MpiTuning tiny_trees{{1024, 256}, 128, 3, 2048, 512, 1};
constexpr MpiTuning trees{MpiTuning{}.chunks, 16 << 10, 4, 0, 0, 2};

const auto on_one_node =
    ::testing::Values(HarnessFactory{"default", [] { return std::make_unique<MpiHarness>(MpiTuning{}); }, 8},
                      HarnessFactory{"tiny", [] { return std::make_unique<MpiHarness>(tiny); }, 4, 10});
INSTANTIATE_TEST_SUITE_P(Mpi, BackendConformance, on_one_node, name_of_harness);
INSTANTIATE_TEST_SUITE_P(Mpi, ExactConformance, on_one_node, name_of_harness);

const auto between_them = ::testing::Values(
    HarnessFactory{"alone", [] { return std::make_unique<MpiHarness>(trees, MpiHarness::each_alone()); }, 4},
    HarnessFactory{"alone_direct", [] { return std::make_unique<MpiHarness>(tiny, MpiHarness::each_alone()); }, 2, 10},
    HarnessFactory{"alone_tiny", [] { return std::make_unique<MpiHarness>(tiny_trees, MpiHarness::each_alone()); }, 4,
                   10},
    HarnessFactory{"dealt", [] { return std::make_unique<MpiHarness>(tiny_trees, MpiHarness::dealt_to_three()); }, 2,
                   10});
INSTANTIATE_TEST_SUITE_P(MpiNodes, BackendConformance, between_them, name_of_harness);
INSTANTIATE_TEST_SUITE_P(MpiNodes, ExactConformance, between_them, name_of_harness);

TEST(MpiBackend, SurvivesBeingAbandoned) {
  int ranks = 0;
  MPI_Comm_size(MPI_COMM_WORLD, &ranks);
  int rank = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  const auto backend = mpi_backend(MPI_COMM_WORLD);
  Job finished({all_reduce_of(DType::f32, ReduceOp::sum), {1000}, true, 1}, rank, ranks);
  finished.start(*backend);
  finished.finish();
  finished.verify();
  backend->abandon();
  Job late({all_reduce_of(DType::f32, ReduceOp::sum), {1000}, true, 1}, rank, ranks);
  late.start(*backend);
  try {
    (void)late.step();
    FAIL() << "an abandoned backend went on";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::aborted);
  }
}

/// A channel of all ranks, its backend, and groups of it.
class MpiGroups : public ::testing::Test {
 protected:
  int rank() const { return channel_->rank(); }
  int ranks() const { return channel_->ranks(); }
  GroupInfo group(GroupId id, std::vector<int> members) const {
    const int mine = static_cast<int>(std::ranges::find(members, rank()) - members.begin());
    return {id, fmt::format("g{}", id), std::move(members), mine};
  }
  std::vector<int> all() const {
    std::vector<int> members(static_cast<std::size_t>(ranks()));
    std::iota(members.begin(), members.end(), 0);
    return members;
  }
  std::unique_ptr<Backend> make(GroupId id, std::vector<int> members) {
    return backend_->for_group(group(id, std::move(members)));
  }
  /// The same, introduced: all ranks call it, and all are members, in some order.
  std::unique_ptr<Backend> made(GroupId id, const std::vector<int>& members) {
    auto backend = make(id, members);
    MpiGathering gathering(MPI_COMM_WORLD);
    const auto said = all_introductions(gathering, backend->introduction());
    std::vector<Introduction> by_member;
    for (const int member : members) by_member.push_back(said[static_cast<std::size_t>(member)]);
    EXPECT_TRUE(backend->introduce(by_member));
    return backend;
  }
  /// A job of a group of all ranks.
  Job job(const Signature& signature, std::int64_t elements, std::uint64_t seed = 1) const {
    return Job({signature, {elements}, seed % 2 == 0, seed}, rank(), ranks());
  }
  Job sum(std::int64_t elements, std::uint64_t seed = 1) const {
    return job(all_reduce_of(DType::f32, ReduceOp::sum), elements, seed);
  }
  std::size_t buffers() { return channel_->staging().bytes() / channel_->buffer_bytes(); }
  static std::size_t most_buffers() { return 2 * tiny.in_flight; }

  std::shared_ptr<MpiChannel> channel_ = std::make_shared<MpiChannel>(MPI_COMM_WORLD, tiny);
  std::unique_ptr<Backend> backend_ = mpi_backend(channel_);
};

/// The last rank makes its groups when the others have ended theirs, and the first ends some after the last.
TEST_F(MpiGroups, AreMadeAndEndedWithoutTheOthers) {
  constexpr GroupId many = 300;
  const auto make_and_end = [&] {
    for (GroupId id = 1; id <= many; ++id) (void)make(id, all());
  };
  if (rank() + 1 < ranks()) make_and_end();
  MPI_Barrier(MPI_COMM_WORLD);
  if (rank() + 1 == ranks()) make_and_end();
  std::vector<std::unique_ptr<Backend>> groups;
  for (GroupId id = many + 1; id <= many + 20; ++id) {
    groups.push_back(made(id, all()));
    Job mine = sum(3'000, id);
    mine.start(*groups.back());
    mine.finish();
    mine.verify();
    if (rank() != 0) groups.pop_back();
  }
  MPI_Barrier(MPI_COMM_WORLD);
}

/// Two groups of the same ranks, whose operations are started and finished in opposite orders by odd and even ranks; in
/// one, ranks count backwards.
TEST_F(MpiGroups, OverlapInAnyOrder) {
  std::vector<int> backwards = all();
  std::ranges::reverse(backwards);
  const auto forward = made(1, all()), backward = made(2, backwards);
  const int place = ranks() - 1 - rank();
  for (std::uint64_t seed = 1; seed <= 40; ++seed) {
    std::vector<std::unique_ptr<Job>> jobs;
    std::vector<Call> calls;
    for (const OpKind kind : {OpKind::all_reduce, OpKind::broadcast, OpKind::all_to_all, OpKind::reduce_scatter})
      calls.push_back({signature_of(kind, DType::i32), {static_cast<std::int64_t>(seed * 97)}, seed % 2 == 0, seed});
    for (const Call& call : calls) {
      jobs.push_back(std::make_unique<Job>(call, rank(), ranks()));
      jobs.push_back(std::make_unique<Job>(call, place, ranks()));
    }
    const std::size_t first = static_cast<std::size_t>(rank()) % 2;
    for (const std::size_t parity : {first, 1 - first}) {
      for (std::size_t i = parity; i < jobs.size(); i += 2) jobs[i]->start(parity == 0 ? *forward : *backward);
    }
    std::vector<bool> done(jobs.size());
    for (std::size_t left = jobs.size(), i = rank() % 2 ? jobs.size() : 0; left > 0;) {
      i = rank() % 2 ? (i + jobs.size() - 1) % jobs.size() : (i + 1) % jobs.size();
      if (done[i] || !jobs[i]->step()) continue;
      done[i] = true;
      --left;
    }
    for (const auto& job : jobs) job->verify();
  }
}

/// Down a tree, and, where there are as many chunks as ranks, down a chain.
TEST_F(MpiGroups, BroadcastFromEveryRank) {
  for (int root = 0; root < ranks(); ++root) {
    for (const std::int64_t elements : {1, 200, 255 * ranks(), 300 * ranks()}) {
      Job mine = job(broadcast_of(DType::f32, root), elements, static_cast<std::uint64_t>(root));
      mine.start(*backend_);
      mine.finish();
      mine.verify();
    }
  }
}

/// The first member gives each of its groups tags of their own, as long as it has some.
TEST_F(MpiGroups, HaveTagsOfTheirOwn) {
  MpiChannel few(MPI_COMM_WORLD, tiny);
  std::set<std::uint64_t> taken;
  const std::uint64_t tried = std::min<std::uint64_t>(few.blocks_of_rank(), 1000);
  for (std::uint64_t i = 0; i < tried; ++i) taken.insert(few.take_block("g"));
  EXPECT_EQ(taken.size(), tried);
  for (const std::uint64_t block : taken) {
    EXPECT_GE(block, 1u);
    EXPECT_EQ((block - 1) % static_cast<std::uint64_t>(ranks()), static_cast<std::uint64_t>(rank()));
    few.give_back(block);
  }
  if (few.blocks_of_rank() > 100'000) return;  // MPI has tags for more groups than a test makes
  for (std::uint64_t i = 0; i < few.blocks_of_rank(); ++i) (void)few.take_block("g");
  EXPECT_THROW((void)few.take_block("g"), Error);
}

/// Chunks of many groups are on their way at once, or one after the other: what is kept is what one group needs.
TEST_F(MpiGroups, ShareStaging) {
  const Signature scattered = signature_of(OpKind::reduce_scatter, DType::f32);
  std::vector<std::unique_ptr<Backend>> groups;
  for (GroupId id = 1; id <= 10; ++id) groups.push_back(made(id, all()));
  EXPECT_EQ(buffers(), 2U);
  for (const auto& group : groups) {
    Job mine = job(scattered, 5'000);
    mine.start(*group);
    while (!mine.step()) EXPECT_LE(buffers(), most_buffers());
    mine.verify();
  }
  EXPECT_LE(buffers(), most_buffers());
  std::vector<std::unique_ptr<Job>> jobs;
  for (const auto& group : groups) {
    jobs.push_back(std::make_unique<Job>(job(scattered, 5'000, jobs.size())));
    jobs.back()->start(*group);
    (void)jobs.back()->step();
    EXPECT_LE(buffers(), most_buffers() + 2 * jobs.size());
  }
  for (std::size_t i = 0; i < jobs.size(); ++i) {  // each rank waits for another one first
    const auto& mine = jobs[(i + static_cast<std::size_t>(rank())) % jobs.size()];
    while (!mine->step()) {
      for (const auto& other : jobs) (void)other->step();
    }
    mine->verify();
  }
  EXPECT_EQ(channel_->staging().in_use(), 0U);
  EXPECT_LE(buffers(), most_buffers());
}

/// While alive, the process gets no more than 4 MiB of memory.
class LittleMemory {
 public:
  LittleMemory() {
    getrlimit(RLIMIT_AS, &before_);
    rlim_t pages = 0;
    std::ifstream("/proc/self/statm") >> pages;
    const rlimit limit{pages * static_cast<rlim_t>(getpagesize()) + (4 << 20), before_.rlim_max};
    setrlimit(RLIMIT_AS, &limit);
  }
  ~LittleMemory() { setrlimit(RLIMIT_AS, &before_); }
  LittleMemory(const LittleMemory&) = delete;
  LittleMemory& operator=(const LittleMemory&) = delete;

 private:
  rlimit before_{};
};

/// Staging of one chunk is reserved: with no more memory chunks travel one or two at a time; with none at all that is
/// an error, also of the operation after it.
TEST_F(MpiGroups, NeedTheStagingOfOneChunk) {
  if (ranks() == 1) return;
  const auto channel = std::make_shared<MpiChannel>(MPI_COMM_WORLD, MpiTuning{{8 << 20, 1 << 15}, 16 << 10, 4});
  const auto backend = mpi_backend(channel);
  const auto group = backend->for_group(this->group(1, all())), other = backend->for_group(this->group(2, all()));
  MpiGathering gathering(MPI_COMM_WORLD);
  for (Backend* const made : {group.get(), other.get()})
    EXPECT_TRUE(made->introduce(all_introductions(gathering, made->introduction())));
  std::vector<float> values((40 << 20) / sizeof(float), 1);
  const Bucket bucket{all_reduce_of(DType::f32, ReduceOp::sum), {{view(values), view(values)}}};
  const auto operation = group->start(bucket);
  {
    const LittleMemory little;
    while (!operation->step()) EXPECT_EQ(channel->staging().in_use() + channel->staging().unused(), 2U);
    const auto all_of_it = [&] { return channel->staging().take(channel->buffer_bytes()); };
    HostBuffer one = all_of_it(), two = all_of_it();
    for (int attempt = 0; attempt < 2; ++attempt) {
      const auto late = other->start(bucket);
      try {
        (void)late->step();
        ADD_FAILURE() << "there is no staging";
      } catch (const Error& error) {
        EXPECT_EQ(error.code(), ErrorCode::backend);
        EXPECT_EQ(std::string_view(error.what()).find("cannot allocate"), 0U) << error.what();
      }
    }
    channel->staging().give_back(std::move(one));
    channel->staging().give_back(std::move(two));
  }
  EXPECT_EQ(values, std::vector<float>(values.size(), static_cast<float>(ranks())));
  MPI_Barrier(MPI_COMM_WORLD);
}

/// An operation that failed is gone, and the program has freed its tensor: the message that comes nevertheless stays
/// outside.
class MpiAbandoned : public MpiGroups {
 protected:
  /// Rank 1 begins to receive from rank 0 in `group`, of these two, and gives up; then rank 0 sends.
  void expect_outside(const GroupInfo& group, OpKind kind) {
    if (ranks() == 1) return;
    std::vector<float> tensor(100, rank() == 0 ? 1.0F : 7.0F);
    const Bucket bucket{.signature = signature_of(kind, DType::f32), .tensors = {{view(tensor), view(tensor)}}};
    const auto backend = rank() < 2 ? backend_->for_group(group) : nullptr;
    if (rank() == 1) {
      EXPECT_FALSE(backend->start(bucket)->step());
    }
    MPI_Barrier(MPI_COMM_WORLD);
    if (rank() == 0) {
      const auto operation = backend->start(bucket);
      while (!operation->step()) continue;
    }
    if (rank() == 1) {
      std::vector<float> elsewhere(tensor.size());
      MPI_Recv(elsewhere.data(), static_cast<int>(elsewhere.size()), MPI_FLOAT, 0, MPI_ANY_TAG, channel_->comm(),
               MPI_STATUS_IGNORE);
      EXPECT_EQ(elsewhere, std::vector<float>(tensor.size(), 1));
      EXPECT_EQ(tensor, std::vector<float>(tensor.size(), 7));
    }
    EXPECT_EQ(channel_->staging().in_use(), 0U);
    MPI_Barrier(MPI_COMM_WORLD);
  }
};

TEST_F(MpiAbandoned, PairsReceiveNothingAnyMore) {
  GroupInfo pair = group(1, {0, 1});
  pair.kind = GroupKind::pair;
  expect_outside(pair, OpKind::send_recv);
}

TEST_F(MpiAbandoned, GroupsReceiveNothingAnyMore) {
  expect_outside(group(1, {0, 1}), OpKind::broadcast);
}

/// Chunks are on their way to all ranks but one, which never comes. Staging is given back, and other groups go on.
TEST_F(MpiAbandoned, OtherGroupsGoOn) {
  if (ranks() == 1) return;
  const auto broken = made(1, all());
  if (rank() != 0) {
    Job unfinished = sum(20'000), late = sum(10);
    unfinished.start(*broken);
    EXPECT_FALSE(unfinished.step());
    EXPECT_GT(channel_->staging().in_use(), 0U);
    unfinished.abandon();
    EXPECT_EQ(channel_->staging().in_use(), 0U);
    late.start(*broken);
    EXPECT_THROW((void)late.step(), Error);
  }
  const auto other = made(2, all());
  Job mine = sum(20'000);
  mine.start(*other);
  mine.finish();
  mine.verify();
}

TEST(MpiBackend, ReportsMpiErrorsWithTheirPlace) {
  try {
    check_mpi(MPI_ERR_COUNT, "MPI_Test");
    FAIL() << "no error";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::backend);
    const std::string expected = fmt::format("at mpi_backend_mpi_test.cc:{}", __LINE__ - 4);
    EXPECT_NE(std::string(error.what()).find("MPI_Test failed (MPI_ERR_COUNT"), std::string::npos) << error.what();
    EXPECT_NE(std::string(error.what()).find(expected), std::string::npos) << error.what();
  }
}

}  // namespace
}  // namespace kolo
