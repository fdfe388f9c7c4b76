// Ranks as processes, under mpirun and over a store: the programs of programs.h on the real placement and on pretended
// nodes, sessions that follow each other, leaving by exception.

#include <fmt/format.h>
#include <kolo/session.h>
#include <sys/socket.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <numeric>
#include <optional>
#include <set>
#include <thread>

#include "tests/runtime/session/adasum_programs.h"
#include "tests/runtime/session/programs.h"
#include "tests/support/environment.h"
#include "tests/support/processes.h"

namespace kolo {
namespace {

using testing::error_text;

int world_size() {
  return testing::processes().size();
}

/// The placement that KOLO_FAKE_NODES pretends, or the real one and, where tensors travel between nodes, some that fit
/// the number of ranks.
std::vector<std::string> placements() {
  const std::string given = testing::test_config().fake_nodes;
  switch (given.empty() && testing::over_mpi() ? world_size() : 0) {
    case 2: return {"", "1,1"};
    case 3: return {"", "1,1,1", "2,1"};
    case 4: return {"", "1,1,1,1"};
    default: return {given};
  }
}

/// Runs `program` with a session of its own on every placement, when all have come.
template <class Program>
void on_every_placement(Program program) {
  for (const std::string& nodes : placements()) {
    SCOPED_TRACE("nodes '" + nodes + "'");
    Config config = testing::test_config();
    config.fake_nodes = nodes;
    testing::wait_for_processes();
    program(config);
  }
}

class ProgramsOfProcesses : public ::testing::TestWithParam<testing::SessionProgram> {};
INSTANTIATE_TEST_SUITE_P(Processes, ProgramsOfProcesses, ::testing::ValuesIn(testing::session_programs),
                         testing::name_of_program);

TEST_P(ProgramsOfProcesses, Runs) {
  on_every_placement([](Config config) {
    config.fusion_bytes = GetParam().fusion_bytes;
    Session session(config);
    GetParam().run(session);
    testing::close(session);
  });
}

TEST(SessionsOfProcesses, Adasum) {
  Session session(testing::test_config());
  testing::run_adasum_session(session);
  testing::close(session);
}

TEST(SessionsOfProcesses, AnArenaIsNotStaged) {
  if (!testing::over_mpi()) GTEST_SKIP() << "programs.h has it over shared memory";
  Config config = testing::test_config();
  config.backend = "mpi";
  Session session(config);
  testing::reduce_an_arena(session, true);
  testing::close(session);
}

TEST(SessionsOfProcesses, SessionsFollowEachOtherAndStandSideBySide) {
  for (int round = 0; round < 3; ++round) {
    Session first(testing::test_config());
    Session second(launcher_world(testing::test_config()), testing::test_config());
    float a = 1, b = 2;
    Handle one = first.all_reduce_async("x", view_scalar(a));
    Handle two = second.all_reduce_async("x", view_scalar(b));
    two.wait();
    one.wait();
    EXPECT_EQ(a, static_cast<float>(first.size()));
    EXPECT_EQ(b, static_cast<float>(2 * first.size()));
    testing::pass_around(first);  // what pairs said last does not reach the next session
    testing::close(second);
    testing::close(first);
  }
}

TEST(SessionsOfProcesses, SessionsThatThreadsEndInDifferentOrdersOnDifferentRanksDoNotWaitForEachOther) {
  for (const char* backend : {"auto", "mpi"}) {
    if (std::string_view(backend) == "mpi" && !testing::over_mpi()) continue;
    Config config = testing::test_config();
    config.backend = backend;
    for (int round = 0; round < 2; ++round) {
      auto first = std::make_unique<Session>(config);
      auto second = std::make_unique<Session>(launcher_world(config), config);
      for (Session* session : {first.get(), second.get()}) {
        float one = 1;
        session->all_reduce("x", view_scalar(one));
        EXPECT_EQ(one, static_cast<float>(session->size()));
      }
      const bool turned = first->rank() % 2 != 0;
      const auto end = [](std::unique_ptr<Session>& session, bool later) {
        if (later) std::this_thread::sleep_for(std::chrono::milliseconds(20));
        session.reset();
      };
      const std::jthread other([&] { end(second, !turned); });
      end(first, turned);
    }
  }
}

// The background thread of a node's leader must listen although another thread drove last.
TEST(SessionsOfProcesses, ALateTensorArrivesWhileNobodyDrives) {
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
      testing::wait_for_processes();  // rank 0 does not look after its session meanwhile, and the others get here
      handle.wait();
      EXPECT_EQ(late, static_cast<float>(session.size()));
    }
    testing::close(session);
  });
}

/// How many machines (or network namespaces with a name of their own) the ranks run on.
std::size_t number_of_hosts() {
  const auto lowest = testing::processes().all_values(testing::processes().lowest_on_node());
  return std::set(lowest.begin(), lowest.end()).size();
}

/// How many sockets of this process others can connect to.
int listening_sockets() {
  int count = 0;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    int listens = 0;
    socklen_t size = sizeof listens;
    const int file = std::atoi(entry.path().filename().c_str());
    if (::getsockopt(file, SOL_SOCKET, SO_ACCEPTCONN, &listens, &size) == 0 && listens != 0) {
      sockaddr_storage address{};
      size = sizeof address;
      (void)::getsockname(file, reinterpret_cast<sockaddr*>(&address), &size);
      count += address.ss_family != AF_UNIX;
    }
  }
  return count;
}

// Whoever leads its node in some group only is reached through the leader of the node.
TEST(SessionsOfProcesses, OneRankOfANodeListens) {
  on_every_placement([](const Config& config) {
    const int before = listening_sockets();
    Session session(config);
    std::vector<int> but_the_first(static_cast<std::size_t>(session.size() - 1));
    std::iota(but_the_first.begin(), but_the_first.end(), 1);
    if (!but_the_first.empty()) {
      const Group group = session.new_group(but_the_first);
      float one = 1;
      if (session.rank() > 0) session.all_reduce("x", view_scalar(one), {.group = group});
      EXPECT_EQ(one, session.rank() > 0 ? static_cast<float>(session.size() - 1) : 1);
    }
    testing::pass_around(session);
    const auto more = testing::processes().all_values(listening_sockets() - before);
    const int all = std::accumulate(more.begin(), more.end(), 0);
    const int node_leaders = config.fake_nodes.empty()
                                 ? static_cast<int>(number_of_hosts())
                                 : static_cast<int>(std::ranges::count(config.fake_nodes, ',') + 1);
    EXPECT_EQ(all, node_leaders > 1 ? node_leaders : 0);
    testing::close(session);
  });
}

TEST(SessionsOfProcesses, AnInterfaceThatIsNotThereIsAnErrorOnEveryRank) {
  on_every_placement([](Config config) {
    if (config.fake_nodes.find(',') == std::string::npos) return;  // real hosts have interfaces of their own
    config.interfaces = "nothing0";
    const std::string text = error_text([&] { Session session(config); }, ErrorCode::invalid_argument);
    EXPECT_TRUE(text.starts_with("rank 0 (host ")) << text;
    EXPECT_NE(text.find("KOLO_INTERFACE=nothing0: no interface nothing0 with an address is up on this host; there is "),
              std::string::npos)
        << text;
    config.interfaces = "lo";
    if (number_of_hosts() == 1) {
      Session session(config);
      session.barrier();
    } else {
      const std::string shared = error_text([&] { Session session(config); }, ErrorCode::backend);
      EXPECT_TRUE(shared.starts_with("rank 0 (host ")) << shared;
      EXPECT_NE(shared.find("every address of this host is also one of another host's"), std::string::npos) << shared;
    }
  });
}

TEST(SessionsOfProcesses, ARankThatCannotStartThreadsLeavesTheOthersWithAnError) {
  if (world_size() == 1) GTEST_SKIP() << "needs a second rank";
  on_every_placement([](const Config& config) {
    const int rank = testing::processes().rank();
    const int last = world_size() - 1;
    std::optional<NoThreads> none;
    if (rank == last) none.emplace();
    const auto use = [&] {
      Session session(config);
      float one = 1;
      session.all_reduce("x", view_scalar(one));
    };
    try {
      use();
      ADD_FAILURE() << "no error was thrown";
    } catch (const Error& error) {  // on one node it has taken part in the handshake, and left
      const std::string text = error.what();
      EXPECT_NE(text.find(rank == last ? "cannot start the thread that" : "rank " + std::to_string(last)), text.npos)
          << text;
    }
  });
}

struct Unfinished {};

TEST(SessionsOfProcesses, ARankThatLeavesByExceptionAbortsTheOthers) {
  if (world_size() == 1) GTEST_SKIP() << "needs a second rank";
  on_every_placement([](const Config& config) {
    for (int leaver = 0; leaver < world_size(); ++leaver) {
      try {
        Session session(config);
        const int rank = session.rank();
        float one = 1;
        session.all_reduce("a", view_scalar(one));
        testing::wait_for_processes();  // everybody has noticed that it is complete
        if (rank == leaver) throw Unfinished{};
        const std::string expected = "group world: rank " + std::to_string(leaver) +
                                     " left without finishing (an error ended its program); see what that rank printed";
        EXPECT_EQ(error_text([&] { session.all_reduce("b", view_scalar(one)); }, ErrorCode::aborted), expected);
        EXPECT_EQ(error_text([&] { session.all_reduce("c", view_scalar(one)); }, ErrorCode::aborted), expected);
      } catch (const Unfinished&) {
      }
      testing::wait_for_processes();
    }
  });
}

}  // namespace
}  // namespace kolo
