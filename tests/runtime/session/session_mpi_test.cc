// Ranks as processes: the programs of programs.h on the real placement and on pretended nodes, sessions that follow
// each other, leaving by exception.

#include <fmt/format.h>
#include <kolo/mpi.h>
#include <kolo/session.h>

#include <chrono>
#include <numeric>
#include <thread>

#include "tests/runtime/session/programs.h"

namespace kolo {
namespace {

using testing::error_text;

int world_size() {
  int size = 0;
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  return size;
}

/// The placement that KOLO_FAKE_NODES pretends, or the real one and some that fit the number of ranks.
std::vector<std::string> placements() {
  const std::string given = testing::test_config().fake_nodes;
  switch (given.empty() ? world_size() : 0) {
    case 2: return {"", "1,1"};
    case 3: return {"", "1,1,1", "2,1"};
    case 4: return {"", "1,1,1,1"};
    default: return {given};
  }
}

/// Runs `program` with a session of its own on every placement, between two barriers of MPI.
template <class Program>
void on_every_placement(Program program) {
  for (const std::string& nodes : placements()) {
    SCOPED_TRACE("nodes '" + nodes + "'");
    Config config = testing::test_config();
    config.fake_nodes = nodes;
    MPI_Barrier(MPI_COMM_WORLD);
    program(config);
  }
}

class ProgramsMpi : public ::testing::TestWithParam<testing::SessionProgram> {};
INSTANTIATE_TEST_SUITE_P(Processes, ProgramsMpi, ::testing::ValuesIn(testing::session_programs),
                         testing::name_of_program);

TEST_P(ProgramsMpi, Runs) {
  on_every_placement([](Config config) {
    config.fusion_bytes = GetParam().fusion_bytes;
    Session session(config);
    GetParam().run(session);
  });
}

TEST(SessionMpi, AnArenaIsNotStaged) {
  Config config = testing::test_config();
  config.backend = "mpi";
  Session session(config);
  testing::reduce_an_arena(session, true);
}

TEST(SessionMpi, SessionsFollowEachOtherAndStandSideBySide) {
  for (int round = 0; round < 3; ++round) {
    Session first(testing::test_config());
    Session second(mpi_world(MPI_COMM_WORLD, testing::test_config()), testing::test_config());
    float a = 1, b = 2;
    Handle one = first.all_reduce_async("x", view_scalar(a));
    Handle two = second.all_reduce_async("x", view_scalar(b));
    two.wait();
    one.wait();
    EXPECT_EQ(a, static_cast<float>(first.size()));
    EXPECT_EQ(b, static_cast<float>(2 * first.size()));
    testing::pass_around(first);  // what pairs said last does not reach the next session
  }
}

// The background thread of a node's leader must listen although another thread drove last.
TEST(SessionMpi, ALateTensorArrivesWhileNobodyDrives) {
  on_every_placement([](const Config& config) {
    Session session(config);
    for (int round = 0; round < 5; ++round) {
      float late = 1, quick = 1;
      Handle handle;
      if (session.rank() == 0) handle = session.all_reduce_async("late", view_scalar(late));
      session.all_reduce("quick", view_scalar(quick));
      if (session.rank() != 0) {
        std::this_thread::sleep_for(std::chrono::milliseconds(30));
        session.all_reduce("late", view_scalar(late));
      }
      MPI_Barrier(MPI_COMM_WORLD);  // rank 0 does not look after its session meanwhile, and the others get here
      handle.wait();
      EXPECT_EQ(late, static_cast<float>(session.size()));
    }
  });
}

struct Unfinished {};

TEST(SessionMpi, ARankThatLeavesByExceptionAbortsTheOthers) {
  if (world_size() == 1) GTEST_SKIP() << "needs a second rank";
  on_every_placement([](const Config& config) {
    for (int leaver = 0; leaver < world_size(); ++leaver) {
      try {
        Session session(config);
        const int rank = session.rank();
        float one = 1;
        session.all_reduce("a", view_scalar(one));
        MPI_Barrier(MPI_COMM_WORLD);  // everybody has noticed that it is complete
        if (rank == leaver) throw Unfinished{};
        const std::string expected = "group world: rank " + std::to_string(leaver) +
                                     " left without finishing (an error ended its program); see what that rank printed";
        EXPECT_EQ(error_text([&] { session.all_reduce("b", view_scalar(one)); }, ErrorCode::aborted), expected);
        EXPECT_EQ(error_text([&] { session.all_reduce("c", view_scalar(one)); }, ErrorCode::aborted), expected);
      } catch (const Unfinished&) {
      }
      MPI_Barrier(MPI_COMM_WORLD);
    }
  });
}

}  // namespace
}  // namespace kolo
