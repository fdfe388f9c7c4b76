// Sessions whose operations run in both lanes of the NCCL backend, over fake GPUs and a fake NCCL: ranks are threads.

#include <kolo/session.h>

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <map>
#include <random>
#include <set>

#include "ops/nccl/rank.h"
#include "tests/support/environment.h"
#include "tests/support/fake_gpu.h"
#include "tests/support/fake_nccl.h"
#include "tests/support/on_gpu.h"
#include "tests/support/thread_ranks.h"

namespace kolo {
namespace {

using testing::all;
using testing::OnGpu;
using testing::run_ranks;
using testing::test_config;

constexpr std::size_t large = (256 << 10) / sizeof(float) + 1;  // elements; one fewer is small

/// The world and pairs of ranks, in orders that differ from rank to rank: any two ranks launch what they share in one
/// order, in each lane and in both together, and no kernel waits for room that others' take.
TEST(GpuLanes, KeepOneOrderOnAllRanks) {
  for (unsigned seed = 1; seed <= (sanitized ? 3 : 10); ++seed) {
    SCOPED_TRACE(::testing::Message() << "seed " << seed);
    testing::set_fake_nccl({.in_progress = 80, .seed = seed});
    testing::clear_nccl_log();
    run_ranks(
        3,
        [&](Session& session) {
          std::vector<Group> groups{session.world()};
          for (const auto& pair : {std::array{0, 1}, std::array{1, 2}, std::array{0, 2}})
            groups.push_back(session.new_group(pair));
          std::mt19937 same(seed), own(seed * 10 + static_cast<unsigned>(session.rank()));
          std::size_t number = 0;
          for (int step = 0; step < 4; ++step) {
            struct Planned {
              std::string name;
              Group group;
              std::size_t count;
              int priority;
            };
            std::vector<Planned> planned;
            for (int i = 0; i < 6; ++i) {
              const Group& group = groups[same() % groups.size()];
              const std::size_t count = (same() % 3 == 0 ? large : 1) + ++number;  // its own
              const int priority = same() % 4 == 0 ? 1 : 0;
              if (group.info()->member()) planned.push_back({fmt::format("{} {}", step, i), group, count, priority});
            }
            std::shuffle(planned.begin(), planned.end(), own);
            std::vector<std::unique_ptr<OnGpu>> tensors;
            std::vector<Handle> handles;
            for (const Planned& one : planned) {
              tensors.push_back(std::make_unique<OnGpu>(session, all(one.count, 1)));
              handles.push_back(session.all_reduce_async(
                  one.name, tensors.back()->tensor(),
                  {.group = one.group, .ready = tensors.back()->stream(), .priority = one.priority}));
            }
            for (std::size_t i = 0; i < handles.size(); ++i) {
              handles[i].wait(tensors[i]->stream());
              EXPECT_EQ(tensors[i]->read(), all(planned[i].count, static_cast<float>(planned[i].group.info()->size())));
            }
          }
        },
        test_config());
    std::map<std::size_t, bool> lane_of;
    const auto shared = [&](int of, int with) {
      std::vector<std::size_t> counts;
      for (const auto& [urgent, count] : testing::nccl_launches(of)) {
        EXPECT_EQ(lane_of.emplace(count, urgent).first->second, urgent) << "a lane on one rank, another on another";
        const auto others = testing::nccl_launches(with);
        if (std::ranges::find(others, count, &testing::NcclLaunch::count) != others.end()) counts.push_back(count);
      }
      return counts;
    };
    for (const auto& [a, b] : {std::pair(0, 1), std::pair(0, 2), std::pair(1, 2)})
      EXPECT_EQ(shared(a, b), shared(b, a));
    std::set<bool> lanes;
    for (const auto& [count, urgent] : lane_of) lanes.insert(urgent);
    EXPECT_EQ(lanes.size(), nccl_lanes);
  }
}

/// A group's stuck operation holds up neither the small ones of another group nor its own.
TEST(GpuLanes, SmallOperationsPassALargeOne) {
  testing::set_fake_nccl({.in_progress = 80, .seed = 5});
  const auto written = std::make_shared<std::atomic<bool>>(false);
  run_ranks(
      2,
      [&](Session& session) {
        const Group group = session.new_group(std::array{0, 1});
        OnGpu grad(session, all(large, 1));
        if (session.rank() == 1)  // its input is late, on the GPU
          testing::fake_gpu(1).put(grad.stream(), [written] { return written->load(); });
        Handle stuck = session.all_reduce_async("grad", grad.tensor(), {.ready = grad.stream()});
        std::vector<std::unique_ptr<OnGpu>> sums;  // freeing memory would wait for the GPU
        for (int turn = 0; turn < 20; ++turn) {
          sums.push_back(std::make_unique<OnGpu>(session, all(10, 1)));
          OnGpu& sum = *sums.back();
          session.all_reduce("sum", sum.tensor(),
                             {.group = turn % 2 == 0 ? group : session.world(), .ready = sum.stream()});
          EXPECT_EQ(sum.read(), all(10, 2));
          EXPECT_FALSE(stuck.poll());
        }
        session.barrier();
        *written = true;
        stuck.wait();
        EXPECT_EQ(grad.read(), all(large, 2));
      },
      test_config());
}

/// A rank leaves while operations of both lanes wait for it.
TEST(GpuLanes, EndTogetherWhenARankLeaves) {
  testing::set_fake_nccl({.in_progress = 80, .seed = 5});
  testing::clear_nccl_log();
  testing::hang_nccl(0, true);
  run_ranks(
      3,
      [&](Session& session) {
        OnGpu grad(session, all(large, 1)), sum(session, all(10, 1));
        std::vector<Handle> handles;
        handles.push_back(session.all_reduce_async("grad", grad.tensor(), {.ready = grad.stream()}));
        handles.push_back(session.all_reduce_async("sum", sum.tensor(), {.ready = sum.stream()}));
        if (session.rank() == 0) {
          for (Handle& handle : handles) handle.wait(sum.stream());
          return session.abandon();
        }
        for (Handle& handle : handles) EXPECT_NE(testing::error_text([&] { handle.wait(); }, ErrorCode::aborted), "");
      },
      test_config());
  testing::hang_nccl(0, false);
  for (int rank = 1; rank < 3; ++rank) {
    const auto log = testing::nccl_log(rank);
    EXPECT_EQ(std::ranges::count(log, "init 3"), 2) << rank;
    EXPECT_EQ(std::ranges::count(log, "abort"), 2) << rank;
    EXPECT_EQ(std::ranges::count(log, "destroy"), 0) << "that would wait for the one that is gone";
  }
}

}  // namespace
}  // namespace kolo
