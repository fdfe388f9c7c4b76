// What ranks agree on in the midst of something long, ranks as threads.

#include "apps/train/midway.h"

#include <stdexcept>

#include "tests/apps/train_testing.h"
#include "tests/support/thread_ranks.h"

namespace kolo::testing {
namespace {

using train::Midway;

/// Runs `work` on three ranks with what a run has.
void on_ranks(const std::function<void(Session& session, Midway& midway)>& work, double max_minutes = 1) {
  run_ranks(3, [&](Session& session) {
    const std::array words{"kolo-train", "--sizes", "784,4,10", "--eval-only"};
    train::Job job(train::parse_options(static_cast<int>(words.size()), words.data()), session);
    train::CheckpointWriter checkpoints(session, job, 0);
    const train::Requests requests(train::Requests::Clock::now(), max_minutes);
    Midway midway(session, checkpoints, requests);
    work(session, midway);
  });
}

/// Wherever it happens, the others go on for at most two parts, and all know why: that is said once.
TEST(Midway, AnErrorOfOneRankIsOneOfAll) {
  constexpr std::int64_t parts = 6;
  ::testing::internal::CaptureStderr();
  on_ranks([&](Session& session, Midway& midway) {
    for (std::int64_t bad = 0; bad < parts; ++bad) {
      std::int64_t done = 0;
      const auto work = [&](const Midway::GoesOn& goes_on) {
        while (done < parts && goes_on()) {
          if (session.rank() == 1 && done == bad) throw std::runtime_error(fmt::format("part {} is bad", bad));
          ++done;
        }
      };
      EXPECT_THROW(midway.run(parts, work), train::UsageError) << bad;
      EXPECT_GE(done, bad);
      EXPECT_LE(done, session.rank() == 1 ? bad : std::min(bad + 2, parts));
    }
    EXPECT_TRUE(midway.run(2, [](const Midway::GoesOn& goes_on) { EXPECT_TRUE(goes_on()); })) << "it is usable";
  });
  std::string said;
  for (std::int64_t bad = 0; bad < parts; ++bad) said += fmt::format("train_test: part {} is bad\n", bad);
  EXPECT_EQ(::testing::internal::GetCapturedStderr(), said);
}

/// All stop behind the same part.
TEST(Midway, EndsWhenItsTimeIsOver) {
  on_ranks(
      [&](Session& session, Midway& midway) {
        EXPECT_TRUE(midway.any_stops());
        std::int64_t done = 0;
        EXPECT_FALSE(midway.run(100, [&](const Midway::GoesOn& goes_on) {
          while (goes_on()) ++done;
        }));
        std::vector<std::int64_t> mine{done}, all(3);
        session.all_gather("done", view(mine), view(all));
        EXPECT_EQ(all, std::vector<std::int64_t>(3, done));
        EXPECT_LE(done, 1);
      },
      1e-9);
}

}  // namespace
}  // namespace kolo::testing
