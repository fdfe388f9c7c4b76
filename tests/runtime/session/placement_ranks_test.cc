// What a world has for backends, ranks as processes, under mpirun and over a store: on real nodes, or on those that
// KOLO_FAKE_NODES pretends.

#include <algorithm>
#include <map>

#include <kolo/world.h>

#include "ops/introductions.h"
#include "tests/ops/backend_conformance.h"
#include "tests/support/processes.h"
#include "tests/support/thread_ranks.h"

namespace kolo {

namespace {

/// All backends of a world as one: a bucket goes to the first that supports it.
class FirstOf final : public Backend {
 public:
  explicit FirstOf(const BackendList& backends) : backends_(backends) {}
  std::string_view name() const override { return "first"; }
  bool supports(const Signature& signature) const override { return find(signature) != nullptr; }
  std::unique_ptr<Operation> start(const Bucket& bucket) override {
    Backend& backend = *find(bucket.signature);
    return backend.start(bucket);
  }
  std::unique_ptr<Backend> for_group(const GroupInfo&) override { return nullptr; }
  void abandon() noexcept override {}

 private:
  Backend* find(const Signature& signature) const {
    const auto found =
        std::ranges::find_if(backends_, [&](const auto& backend) { return backend->supports(signature); });
    return found == backends_.end() ? nullptr : found->get();
  }
  const BackendList& backends_;
};

/// The ranks of each node, by the placement that KOLO_FAKE_NODES pretends or by the real one.
std::vector<std::vector<int>> members_of_nodes() {
  const int size = testing::processes().size();
  std::vector<int> lowest;                                      // rank of each one's node
  for (const char count : testing::test_config().fake_nodes) {  // single figures and commas
    const auto first = static_cast<int>(lowest.size());
    for (int i = 0; count != ',' && i < count - '0'; ++i) lowest.push_back(first);
  }
  if (lowest.empty()) lowest = testing::processes().all_values(testing::processes().lowest_on_node());
  std::map<int, std::vector<int>> members;
  for (int other = 0; other < size; ++other) members[lowest[static_cast<std::size_t>(other)]].push_back(other);
  std::vector<std::vector<int>> nodes;
  for (auto& [first, ranks] : members) nodes.push_back(std::move(ranks));
  return nodes;
}

class Placed final : public Harness {
 public:
  Placed() : nodes_(members_of_nodes()), world_(launcher_world(testing::test_config())), backend_(world_.backends()) {}
  int ranks() const override {
    std::size_t sum = 0;
    for (const auto& node : nodes_) sum += node.size();
    return static_cast<int>(sum);
  }
  std::vector<std::vector<int>> nodes() const override { return nodes_; }
  void run(const std::function<void(int rank, Backend& backend)>& body) override {
    body(testing::processes().rank(), backend_);
  }

 private:
  std::vector<std::vector<int>> nodes_;
  World world_;
  FirstOf backend_;
};

const auto harnesses = ::testing::Values(HarnessFactory{"world", [] { return std::make_unique<Placed>(); }, 4});
INSTANTIATE_TEST_SUITE_P(Placed, BackendConformance, harnesses, name_of_harness);
INSTANTIATE_TEST_SUITE_P(Placed, ExactConformance, harnesses, name_of_harness);

TEST(Placement, ChoosesTwoLevelsWhereNodesHaveSeveralRanks) {
  const World world = launcher_world(testing::test_config());
  const auto nodes = members_of_nodes();
  const bool shared = std::ranges::any_of(nodes, [](const auto& node) { return node.size() > 1; });
  const char* const expected = nodes.size() > 1 ? (shared ? "nodes" : "mpi") : shared ? "shm" : "local";
  EXPECT_EQ(world.backends().front()->name(), expected);
}

/// Groups of ranks of one node, of some of several nodes, and of one on each.
TEST(Placement, ServesEveryGroup) {
  const World world = launcher_world(testing::test_config());
  const auto nodes = members_of_nodes();
  const int rank = testing::processes().rank(), size = testing::processes().size();
  for (unsigned subset = 1; subset < 1u << size; ++subset) {
    GroupInfo group{static_cast<GroupId>(subset), "some", {}, -1};
    for (int other = 0; other < size; ++other) {
      if (other == rank && (subset >> other & 1) != 0) group.rank = group.size();
      if ((subset >> other & 1) != 0) group.ranks.push_back(other);
    }
    BackendList backends;
    for (const auto& backend : world.backends()) {
      if (auto made = group.member() ? backend->for_group(group) : nullptr) backends.push_back(std::move(made));
    }
    const auto said = all_introductions(testing::processes(), introduction_of(backends));
    if (!group.member()) continue;
    std::vector<Introduction> members;
    for (int member : group.ranks) members.push_back(said[static_cast<std::size_t>(member)]);
    introduce(backends, members);
    FirstOf backend(backends);
    for (const DType dtype : {DType::f32, DType::bf16, DType::i64}) {
      Call call{all_reduce_of(dtype, ReduceOp::average), {70'001, 3}, subset % 2 == 0, subset};
      for (const auto& node : nodes) {
        std::vector<int> here;  // as ranks of the group
        for (int i = 0; i < group.size(); ++i) {
          if (std::ranges::find(node, group.ranks[static_cast<std::size_t>(i)]) != node.end()) here.push_back(i);
        }
        if (!here.empty()) call.nodes.push_back(here);
      }
      Job job(call, group.rank, group.size());
      job.start(backend);
      job.finish();
      job.verify();
    }
  }
}

}  // namespace
}  // namespace kolo
