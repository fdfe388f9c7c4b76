// Worlds from a store, ranks as threads: each makes its own world, as a process would. What launchers say in the
// environment. Processes: launch_test.sh.

#include <kolo/session.h>
#include <kolo/store.h>

#include <array>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <tuple>
#include <vector>

#include "ops/host/exchange.h"
#include "runtime/world/launcher.h"
#include "runtime/world/store_agreements.h"
#include "tests/runtime/session/programs.h"
#include "tests/support/environment.h"
#include "tests/support/thread_ranks.h"

namespace kolo {
namespace {

using namespace std::chrono_literals;
using testing::error_text;

/// Runs `rank_of` for every rank, in threads.
void as_threads(int size, const std::function<void(int rank)>& rank_of) {
  std::vector<std::jthread> threads;
  for (int rank = 0; rank < size; ++rank) {
    threads.emplace_back([&, rank] {
      try {
        rank_of(rank);
      } catch (const std::exception& error) {
        ADD_FAILURE() << "rank " << rank << ": " << error.what();
      }
    });
  }
}

/// A session per rank, in a world from `store`.
void run_stored(Store& store, int size, const std::function<void(Session&)>& program,
                const Config& config = testing::test_config()) {
  as_threads(size, [&](int rank) {
    Session session(store_world(store, rank, size, config), config);
    program(session);
    testing::close(session);
  });
}

std::vector<std::string> files_in(const testing::TempFolder& folder) {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(folder.path()))
    names.push_back(entry.path().filename().native());
  std::ranges::sort(names);
  return names;
}

float sum_of_ones(Session& session) {
  float one = 1;
  session.all_reduce("ones", view_scalar(one));
  return one;
}

class StoredPrograms : public ::testing::TestWithParam<std::tuple<testing::SessionProgram, int>> {};
INSTANTIATE_TEST_SUITE_P(Ranks, StoredPrograms,
                         ::testing::Combine(::testing::ValuesIn(testing::session_programs),
                                            ::testing::ValuesIn(sanitized ? std::vector{3} : std::vector{1, 2, 3, 4})),
                         [](const auto& info) {
                           return fmt::format("{}_{}", std::get<0>(info.param).name, std::get<1>(info.param));
                         });

TEST_P(StoredPrograms, Run) {
  const auto& [program, size] = GetParam();
  testing::TempFolder folder;
  FileStore store(folder.path());
  Config config = testing::test_config();
  config.fusion_bytes = program.fusion_bytes;
  run_stored(store, size, program.run, config);
}

TEST(StoreWorld, FollowsAnotherThroughTheSameStoreAndLeavesNoKeys) {
  testing::TempFolder folder;
  FileStore store(folder.path());
  for (int world = 0; world < 3; ++world) {
    run_stored(store, 3, [](Session& session) { EXPECT_EQ(sum_of_ones(session), 3); });
    EXPECT_EQ(files_in(folder), (std::vector<std::string>{"kolo%2Fepoch%2F0.value", "kolo%2Fepoch%2F1.value",
                                                          "kolo%2Fepoch%2F2.value", "lock"}));
  }
}

TEST(StoreWorld, MeetsOverTcp) {
  TcpStore server("127.0.0.1", 0, true, 20s);
  as_threads(4, [&](int rank) {
    TcpStore client("127.0.0.1", server.port(), false, 20s);
    for (int world = 0; world < 2; ++world) {
      Session session(store_world(client, rank, 4, testing::test_config()), testing::test_config());
      EXPECT_EQ(session.rank(), rank);
      EXPECT_EQ(sum_of_ones(session), 4);
    }
  });
}

/// Whoever is missing is named by all: by rank 0, and if that is the one, by the others.
TEST(StoreWorld, NamesWhoDoesNotCome) {
  for (const auto& [missing, named] : std::map<int, std::string>{{0, "rank 0"}, {1, "rank 1"}, {3, "rank 3"}}) {
    testing::TempFolder folder;
    FileStore store(folder.path());
    std::atomic<int> reports{0};
    Config config = testing::test_config();
    config.stall_report_seconds = 0.5;
    config.stall_abort_seconds = 2;
    config.report = [&, text = named](const std::string& line) {
      EXPECT_NE(line.find("not there yet: " + text), std::string::npos) << line;
      ++reports;
    };
    as_threads(4, [&, absent = missing, text = named](int rank) {
      if (rank == absent) return;
      const std::string why = error_text([&] { (void)store_world(store, rank, 4, config); }, ErrorCode::stalled);
      EXPECT_NE(why.find("s: " + text + "; see how these"), std::string::npos) << why;
    });
    EXPECT_GE(reports.load(), 3);
  }
}

/// Settings with which nobody waits for longer than two seconds.
Config impatient() {
  Config config = testing::test_config();
  config.stall_report_seconds = 0.5;
  config.stall_abort_seconds = 2;
  config.report = [](const std::string&) {};
  return config;
}

TEST(StoreWorld, WaitsForNobodyWhoMakesNoSession) {
  testing::TempFolder folder;
  FileStore store(folder.path());
  const Config config = impatient();
  std::array<std::optional<World>, 3> worlds;
  as_threads(3, [&](int rank) {
    World& world = worlds[static_cast<std::size_t>(rank)].emplace(store_world(store, rank, 3, config));
    if (rank == 1) return;
    error_text([&] { Session session(std::move(world), config); }, ErrorCode::stalled);
  });
}

TEST(StoreWorld, RefusesRanksThatThereAreNot) {
  testing::TempFolder folder;
  FileStore store(folder.path());
  for (const int rank : {-1, 2})
    error_text([&] { (void)store_world(store, rank, 2, testing::test_config()); }, ErrorCode::invalid_argument);
}

TEST(StoreWorld, RefusesDifferentSizes) {
  for (const auto& [of_rank_0, of_rank_1] : {std::pair(2, 3), std::pair(3, 2)}) {
    testing::TempFolder folder;
    FileStore store(folder.path());
    as_threads(2, [&, sizes = std::array{of_rank_0, of_rank_1}](int rank) {
      const int size = sizes[static_cast<std::size_t>(rank)];
      const std::string why =
          error_text([&] { (void)store_world(store, rank, size, impatient()); }, ErrorCode::mismatch);
      EXPECT_NE(why.find("rank 0 makes one of " + std::to_string(sizes[0]) + " ranks, rank 1 one of " +
                         std::to_string(sizes[1]) + "; pass the same size on every rank"),
                std::string::npos)
          << why;
    });
  }
}

/// Another process that is the same rank is taken for that rank's next world.
TEST(StoreWorld, SaysThatARankHasBeenThereBefore) {
  testing::TempFolder folder;
  FileStore store(folder.path());
  std::atomic<int> second{0};
  as_threads(2, [&](int) {
    const std::string why = error_text([&] { (void)store_world(store, 1, 2, impatient()); }, ErrorCode::stalled);
    EXPECT_NE(why.find(": rank 0; see how these processes have ended, give each process a rank"), std::string::npos)
        << why;
    second += why.find(" (it is rank 1's world number 2 from this store): not there after") != std::string::npos;
  });
  EXPECT_EQ(second, 1);
}

TEST(StoreWorld, ComparesSettings) {
  testing::TempFolder folder;
  FileStore store(folder.path());
  as_threads(3, [&](int rank) {
    Config config = testing::test_config();
    config.fusion_bytes = rank == 1 ? 100 : 200;
    const std::string why = error_text([&] { (void)store_world(store, rank, 3, config); }, ErrorCode::mismatch);
    EXPECT_NE(why.find("KOLO_FUSION_BYTES"), std::string::npos) << why;
  });
  EXPECT_EQ(files_in(folder).size(), 4U);
}

/// The process goes on, and so does the session.
TEST(StoreWorld, DoesNotEndTheProcess) {
  testing::TempFolder folder;
  FileStore store(folder.path());
  const Config config = impatient();
  run_stored(
      store, 2,
      [](Session& session) {
        float one = 1;
        const auto reduce = [&] { session.all_reduce("late", view_scalar(one)); };
        if (session.rank() == 1) std::this_thread::sleep_for(3s);
        const std::string why = error_text(reduce, ErrorCode::stalled);
        EXPECT_NE(why.find("rank 1"), std::string::npos) << why;
        EXPECT_EQ(sum_of_ones(session), 2);
      },
      config);
}

/// Within a node everything works; between nodes host tensors are errors, on every rank, and the session goes on.
TEST(StoreWorld, RefusesHostTensorsBetweenNodes) {
  testing::TempFolder folder;
  FileStore store(folder.path());
  Config config = testing::test_config();
  config.fake_nodes = "2,1,1";
  run_stored(
      store, 4,
      [](Session& session) {
        const auto says_so = [](const std::string& why) {
          EXPECT_NE(why.find("start the program with mpirun"), std::string::npos) << why;
        };
        session.barrier();
        says_so(error_text([&] { (void)sum_of_ones(session); }, ErrorCode::backend));
        const Group first = session.new_group(std::array{0, 1}), others = session.new_group(std::array{1, 2, 3}),
                    last = session.new_group(std::array{3});
        float one = 1;
        if (session.rank() < 2) {
          session.all_reduce("pair", view_scalar(one), {.group = first});
          EXPECT_EQ(one, 2);
          float sent = 7;
          if (session.rank() == 0) session.send("x", view_scalar(sent), 1);
          if (session.rank() == 1) session.recv("x", view_scalar(one), 0);
          EXPECT_EQ(one, session.rank() == 0 ? 2 : 7);
        }
        if (session.rank() > 0)
          says_so(
              error_text([&] { session.all_reduce("o", view_scalar(one), {.group = others}); }, ErrorCode::backend));
        if (session.rank() == 3) session.all_reduce("alone", view_scalar(one), {.group = last});
        if (session.rank() == 1)
          says_so(error_text([&] { session.send("y", view_scalar(one), 2); }, ErrorCode::backend));
        if (session.rank() == 2)
          says_so(error_text([&] { session.recv("y", view_scalar(one), 1); }, ErrorCode::backend));
        session.barrier();
      },
      config);
}

TEST(StoreAgreements, FindTheLargestNumbersInGroupsToo) {
  testing::TempFolder folder;
  FileStore store(folder.path());
  as_threads(4, [&](int rank) {
    auto world = store_agreements(store, "x/", rank, 4);
    std::unique_ptr<Backend> odd;
    if (rank % 2 == 1) odd = world->for_group({5, "odd", {1, 3}, rank / 2});
    HostExchange all(std::move(world)), some(std::move(odd));
    const auto n = static_cast<std::uint64_t>(rank);
    std::vector<std::shared_ptr<const HostExchange::Answer>> answers;
    for (std::uint64_t i = 0; i < 5; ++i) answers.push_back(all.largest({n + i, 10 - n, 7}));
    if (rank % 2 == 1) answers.push_back(some.largest({n}));
    while (all.busy() || some.busy()) {
      all.step();
      some.step();
    }
    for (std::uint64_t i = 0; i < 5; ++i) EXPECT_EQ(answers[i]->values, (std::vector<std::uint64_t>{3 + i, 10, 7}));
    if (rank % 2 == 1) {
      EXPECT_EQ(answers[5]->values, std::vector<std::uint64_t>{3});
    }
  });
  EXPECT_EQ(files_in(folder), std::vector<std::string>{"lock"});
}

TEST(StoreWorld, SendsMoreThanARingHolds) {
  testing::TempFolder folder;
  FileStore store(folder.path());
  run_stored(store, 3, [](Session& session) {
    std::vector<float> values(100'000, static_cast<float>(session.rank()));
    const int next = (session.rank() + 1) % 3, previous = (session.rank() + 2) % 3;
    for (int round = 0; round < 5; ++round) {
      std::vector<float> got(values.size());
      Handle sent = session.send_async("x", view(values), next), recv = session.recv_async("x", view(got), previous);
      Handle more = session.send_async("y", view(values), next);
      session.recv("y", view(got), previous);
      for (Handle* handle : {&sent, &recv, &more}) handle->wait();
      EXPECT_EQ(got, std::vector<float>(values.size(), static_cast<float>(previous)));
    }
  });
}

/// Only these variables of launchers are set.
Launched launched_with(const std::map<std::string, std::string>& variables) {
  for (const char* name :
       {"OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK", "PMI_SIZE", "PMI_RANK", "SLURM_NTASKS", "SLURM_PROCID",
        "PMIX_RANK", "WORLD_SIZE", "RANK", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT"})
    ::unsetenv(name);
  for (const auto& [name, value] : variables) ::setenv(name.c_str(), value.c_str(), 1);
  return launched();
}

using Variables = std::map<std::string, std::string>;

Variables operator+(Variables one, const Variables& other) {
  one.insert(other.begin(), other.end());
  return one;
}

TEST(Launchers, AreReadInTheirOrder) {
  const Variables ompi{{"OMPI_COMM_WORLD_SIZE", "3"}, {"OMPI_COMM_WORLD_RANK", "1"}},
      torchrun{{"WORLD_SIZE", "3"}, {"RANK", "1"}, {"LOCAL_RANK", "1"}},
      meeting{{"MASTER_ADDR", "localhost"}, {"MASTER_PORT", "29500"}},
      srun{{"SLURM_NTASKS", "3"}, {"SLURM_PROCID", "1"}}, pmix{{"PMIX_RANK", "1"}};
  const auto expect = [](const Variables& variables, const std::string& variable, bool by_mpi) {
    const Launched said = launched_with(variables);
    EXPECT_EQ(said.variable, variable);
    EXPECT_EQ(said.by_mpi, by_mpi);
    EXPECT_EQ(said.ranks, variable.empty() ? 0 : 3);
    EXPECT_EQ(said.rank, variable.empty() ? 0 : 1);
  };
  expect({}, "", true);
  expect(ompi, "OMPI_COMM_WORLD_SIZE", true);
  expect(ompi + torchrun + meeting, "OMPI_COMM_WORLD_SIZE", true);
  expect(srun + pmix + torchrun + meeting, "SLURM_NTASKS", true);
  expect(torchrun + meeting, "WORLD_SIZE", false);
  expect(srun, "SLURM_NTASKS", true);
  expect(srun + meeting, "SLURM_NTASKS", false);
  expect({{"WORLD_SIZE", "3"}}, "", true);  // somebody else's
  expect({{"SLURM_NTASKS", "3"}}, "", true);
  // srun without PMIx that starts a torchrun on each node.
  expect(Variables{{"SLURM_NTASKS", "2"}, {"SLURM_PROCID", "0"}} + torchrun + meeting, "WORLD_SIZE", false);
  EXPECT_EQ(launched_with(torchrun + meeting).port, 29500);
}

TEST(Launchers, MustNotContradictThemselves) {
  const Variables meeting{{"MASTER_ADDR", "localhost"}, {"MASTER_PORT", "29500"}};
  const auto refuses = [](const Variables& variables, const std::string& what) {
    const std::string why = error_text([&] { (void)launched_with(variables); }, ErrorCode::invalid_argument);
    EXPECT_NE(why.find(what), std::string::npos) << why;
  };
  refuses({{"OMPI_COMM_WORLD_SIZE", "2"}, {"OMPI_COMM_WORLD_RANK", "0"}, {"WORLD_SIZE", "4"}, {"RANK", "0"}},
          "OMPI_COMM_WORLD_RANK and OMPI_COMM_WORLD_SIZE say rank 0 of 2, RANK and WORLD_SIZE say rank 0 of 4");
  refuses({{"SLURM_NTASKS", "2"}, {"SLURM_PROCID", "0"}, {"PMIX_RANK", "0"}, {"WORLD_SIZE", "2"}, {"RANK", "1"}},
          "say rank 0 of 2, RANK and WORLD_SIZE say rank 1 of 2");
  refuses(meeting + Variables{{"WORLD_SIZE", "0"}, {"RANK", "0"}}, "WORLD_SIZE is 0, but a job has at least one rank");
  refuses(meeting + Variables{{"WORLD_SIZE", "2"}, {"RANK", "2"}}, "RANK is 2, but WORLD_SIZE is 2");
  refuses(meeting + Variables{{"WORLD_SIZE", "4"}, {"RANK", "1"}, {"LOCAL_RANK", "2"}},
          "LOCAL_RANK is 2, but RANK is 1");
  refuses({{"WORLD_SIZE", "2"}, {"RANK", "1"}}, "WORLD_SIZE is 2, but MASTER_ADDR is '' and MASTER_PORT is 0");
  refuses(meeting + Variables{{"WORLD_SIZE", "two"}, {"RANK", "1"}}, "WORLD_SIZE is 'two'");
}

TEST(Launchers, SayWhetherRanksAreThoseOfMpi) {
  const auto why = [](Variables variables, int rank, int size) {
    try {
      (void)launched_with(variables);
    } catch (const Error&) {  // why_not_over_mpi() must not throw it
    }
    return why_not_over_mpi(rank, size);
  };
  const Variables ompi{{"OMPI_COMM_WORLD_SIZE", "3"}, {"OMPI_COMM_WORLD_RANK", "1"}};
  EXPECT_EQ(why({}, 0, 1), "no launcher that MPI knows has started this process");
  EXPECT_EQ(why(ompi, 2, 3), "the launcher has started this process as rank 1 of 3");
  EXPECT_EQ(why(ompi, 1, 2), "the launcher has started this process as rank 1 of 3");
  EXPECT_NE(why(ompi + Variables{{"WORLD_SIZE", "4"}, {"RANK", "1"}}, 1, 4).find("say rank 1 of 4"), std::string::npos);
  const std::string with_mpi = why(ompi, 1, 3);  // a build without MPI looks for the library, which is in wheels only
  EXPECT_TRUE(with_mpi.empty() || with_mpi.find("libkolo_mpi.so") != std::string::npos) << with_mpi;
}

}  // namespace
}  // namespace kolo
