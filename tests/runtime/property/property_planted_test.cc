// The property test finds bugs: each of these plants one and counts the programs it takes to find it.

#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>
#include <list>
#include <memory>
#include <optional>
#include <utility>
#include <variant>

#include "runtime/coordinator/groups.h"
#include "runtime/negotiation/messages.h"
#include "runtime/world/parts.h"
#include "tests/runtime/property/property_player.h"

namespace kolo {
namespace {

constexpr std::uint64_t most_programs = 1000;

using Fault = std::function<void(Bucket&)>;

/// Does something to a bucket before another backend runs it; in all else it is that one, as the other ranks' is.
class FaultyBackend final : public Backend {
 public:
  FaultyBackend(std::unique_ptr<Backend> real, Fault fault) : real_(std::move(real)), fault_(std::move(fault)) {}

  std::string_view name() const override { return "faulty"; }
  bool supports(const Signature& signature) const override { return real_->supports(signature); }
  std::string refusal(const Signature& signature) const override { return real_->refusal(signature); }
  std::shared_ptr<const void> reserve(const Signature& signature) override { return real_->reserve(signature); }
  std::unique_ptr<Operation> start(const Bucket& bucket) override {
    fault_(buckets_.emplace_back(bucket));
    return real_->start(buckets_.back());
  }
  std::unique_ptr<Backend> for_group(const GroupInfo& group) override { return around(real_->for_group(group)); }
  bool compares_tokens() const override { return real_->compares_tokens(); }
  std::unique_ptr<ByteLane> lane(int peer) override { return real_->lane(peer); }
  Introduction introduction() override { return real_->introduction(); }
  bool introduce(std::span<const Introduction> members) override { return real_->introduce(members); }
  std::uint64_t staged_bytes() const override { return real_->staged_bytes(); }
  std::shared_ptr<MemorySource> memory() override { return real_->memory(); }
  bool must_be_called() const override { return real_->must_be_called(); }
  void progress(bool in_flight) override { real_->progress(in_flight); }
  bool settled() override { return real_->settled(); }
  void abandon() noexcept override { real_->abandon(); }

 private:
  std::unique_ptr<Backend> around(std::unique_ptr<Backend> real) const {
    return real ? std::make_unique<FaultyBackend>(std::move(real), fault_) : nullptr;
  }

  std::list<Bucket> buckets_;  // that were started
  std::unique_ptr<Backend> real_;
  Fault fault_;
};

/// Loses what asks for an incomplete bucket to be cut.
class LossyChannel final : public ControlChannel {
 public:
  explicit LossyChannel(std::unique_ptr<ControlChannel> real) : real_(std::move(real)) {}

  int rank() const override { return real_->rank(); }
  const Topology& topology() const override { return real_->topology(); }
  void open(const TreePosition& position) override { real_->open(position); }
  void send(int to, std::span<const std::byte> message) override {
    try {
      real_->send(to, without_cuts(message).bytes());
    } catch (const Error&) {  // of the handshake, which has no records
      real_->send(to, message);
    }
  }
  bool receive(Message& message) override { return real_->receive(message); }
  bool pending() override { return real_->pending(); }
  bool flush() override { return real_->flush(); }
  void listen() override { real_->listen(); }
  std::optional<Loss> take_loss() override { return real_->take_loss(); }
  bool has_closed(int rank) override { return real_->has_closed(rank); }
  bool spans_processes() const override { return real_->spans_processes(); }
  Doorbell& doorbell() override { return real_->doorbell(); }
  StatusBoard& board() override { return real_->board(); }
  [[noreturn]] void abort_job(int exit_code) override {
    real_->abort_job(exit_code);
    std::abort();
  }

 private:
  static Writer without_cuts(std::span<const std::byte> message) {
    Reader reader(message);
    Writer kept;
    kept.put(reader.get<GroupKind>(2));
    kept.put(reader.get<GroupId>());
    const auto direction = reader.get<Direction>(2);
    kept.put(direction);
    while (!reader.done()) {
      if (direction == Direction::to_child) {
        encode(kept, decode_down(reader));
        continue;
      }
      const UpMessage record = decode_up(reader);
      if (!std::holds_alternative<SplitBucket>(record)) encode(kept, record);
    }
    return kept;
  }

  std::unique_ptr<ControlChannel> real_;
};

void plant(World& world, const Fault& fault) {
  BackendList& backends = world.parts().backends;
  auto faulty = std::make_unique<FaultyBackend>(std::move(backends.front()), fault);
  backends.clear();
  world.prefer(std::move(faulty));
}

/// How many programs it takes until one finds what `prepare` has planted; 0 if none does.
std::uint64_t programs_to_find(const std::function<void(int rank, World&)>& prepare) {
  for (std::uint64_t seed = 1; seed <= most_programs; ++seed) {
    const auto program = testing::draw_program(seed);
    const auto problems = testing::run_program(program, testing::config_of(program), prepare);
    if (problems.empty()) continue;
    std::printf("found by program %d: %s\n", static_cast<int>(seed), problems.front().c_str());
    return seed;
  }
  return 0;
}

/// A stall ends the process: only that of a death test.
void run_until_stall(const std::function<void(int rank, World&)>& prepare) {
  for (std::uint64_t seed = 1; seed <= most_programs; ++seed) {
    const auto program = testing::draw_program(seed);
    Config config = testing::config_of(program);
    config.stall_report_seconds = 1;
    config.stall_abort_seconds = 2;
    config.report = [seed](const std::string& line) {
      if (line.find("ending the job") == std::string::npos) return;
      std::printf("found by program %d: %s\n", static_cast<int>(seed), line.c_str());
      std::fprintf(stderr, "stalled\n");
    };
    (void)testing::run_program(program, config, prepare);
  }
}

TEST(PropertyPlantedDeathTest, ALostFlushIsFound) {
  const auto prepare = [](int rank, World& world) {
    if (rank == 1) world.parts().control = std::make_unique<LossyChannel>(std::move(world.parts().control));
  };
  EXPECT_EXIT(run_until_stall(prepare), ::testing::ExitedWithCode(72), "stalled");
}

TEST(PropertyPlantedTest, ValuesOfRanksThatHaveJoinedAreFound) {
  const auto prepare = [](int, World& world) { plant(world, [](Bucket& bucket) { bucket.absent.clear(); }); };
  EXPECT_NE(programs_to_find(prepare), 0u);
}

TEST(PropertyPlantedTest, TwoTensorsSwappedOnOneRankAreFound) {
  const auto swap_two = [](Bucket& bucket) {
    for (std::size_t i = 1; i < bucket.tensors.size(); ++i) {
      BucketTensor &one = bucket.tensors[i - 1], &other = bucket.tensors[i];
      const bool same_shapes =
          one.in.shape == other.in.shape && one.out.shape == other.out.shape && !one.rows && !other.rows;
      if (same_shapes) return std::swap(one, other);
    }
  };
  const auto prepare = [&](int rank, World& world) {
    if (rank == 1) plant(world, swap_two);
  };
  EXPECT_NE(programs_to_find(prepare), 0u);
}

}  // namespace
}  // namespace kolo
