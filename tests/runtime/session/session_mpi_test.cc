// The main path between processes: closed forms on the real placement and on pretended nodes, sessions that follow each
// other, leaving by exception.

#include <fmt/format.h>
#include <kolo/mpi.h>
#include <kolo/session.h>

#include <chrono>
#include <numeric>
#include <thread>

#include "tests/runtime/session/random_program.h"
#include "tests/support/thread_ranks.h"

namespace kolo {
namespace {

using testing::error_text;

int world_size() {
  int size = 0;
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  return size;
}

/// The real placement first, then pretended ones that fit the number of ranks.
std::vector<std::string> placements() {
  switch (world_size()) {
    case 2: return {"", "1,1"};
    case 3: return {"", "1,1,1", "2,1"};
    case 4: return {"", "2,2", "3,1", "1,1,1,1"};
    default: return {""};
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

TEST(SessionMpi, EveryOperationOnEveryType) {
  on_every_placement([](const Config& config) {
    Session session(config);
    const int n = session.size();
    int step = 0;
    for (const DType dtype : reducible_types) {
      for (const ReduceOp op : reduce_ops) {
        for (const std::int64_t elements : {0, 1, 1000}) {
          const testing::RandomOp plan{.name = "t", .op = op, .dtype = dtype, .elements = elements};
          testing::Values values(dtype, elements), expected(dtype, elements);
          values.fill([&](std::int64_t i) { return testing::value_of(plan, step, session.rank(), n, i); });
          expected.fill([&](std::int64_t i) { return testing::result_of(plan, step, n, i); });
          session.all_reduce("t", values.tensor(), {.op = op});
          ASSERT_EQ(values == expected, true) << to_string(dtype) << " " << to_string(op) << " " << elements;
          ++step;
        }
      }
    }
  });
}

TEST(SessionMpi, FusedStepsThatChange) {
  on_every_placement([](Config config) {
    config.fusion_bytes = 20000;
    Session session(config);
    const int n = session.size(), tensors = 60;
    for (int step = 0; step < 8; ++step) {
      std::vector<std::vector<float>> grads;
      for (int i = 0; i < tensors; ++i) {
        const int count = step == 5 && i == 7 ? 3 : 1 + i * 11;  // one is reshaped once
        grads.emplace_back(static_cast<std::size_t>(count), static_cast<float>((session.rank() + 1) * (i + step)));
      }
      std::vector<Handle> handles;
      for (int i = 0; i < tensors; ++i) {
        if (step == 3 && i % 10 == 0) {
          handles.emplace_back();  // some are missing once
          continue;
        }
        handles.push_back(session.all_reduce_async(fmt::format("g{}", i), view(grads[static_cast<std::size_t>(i)])));
      }
      for (Handle& handle : handles) handle.wait();
      for (int i = 0; i < tensors; ++i) {
        const bool ran = !(step == 3 && i % 10 == 0);
        const float expected =
            static_cast<float>(ran ? n * (n + 1) / 2 * (i + step) : (session.rank() + 1) * (i + step));
        for (float value : grads[static_cast<std::size_t>(i)])
          ASSERT_EQ(value, expected) << "g" << i << " in step " << step;
      }
    }
  });
}

TEST(SessionMpi, BroadcastsAndBarriers) {
  on_every_placement([](const Config& config) {
    Session session(config);
    for (int root = 0; root < session.size(); ++root) {
      std::vector<std::int64_t> values(5000, session.rank() * 100);
      session.broadcast("weights", view(values), {.root = root});
      ASSERT_EQ(values, std::vector<std::int64_t>(5000, root * 100));
      session.barrier();
    }
  });
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
  }
}

TEST(SessionMpi, ABadArgumentOfOneRankIsTheSameErrorOnAll) {
  on_every_placement([](const Config& config) {
    Session session(config);
    const int last = session.size() - 1;
    for (int round = 0; round < 3; ++round) {
      std::vector<float> values(4, 1);
      Tensor tensor = view(values);
      if (session.rank() == last) tensor.data = nullptr;
      EXPECT_EQ(error_text([&] { session.all_reduce("x", tensor); }, ErrorCode::invalid_argument),
                "all_reduce 'x' in group world: rank " + std::to_string(last) +
                    ": the tensor's memory is a null pointer (its shape is [4])");
      session.all_reduce("x", view(values));
      EXPECT_EQ(values, std::vector<float>(4, static_cast<float>(session.size())));
    }
  });
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
