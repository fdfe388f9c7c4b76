#pragma once

#include <gtest/gtest.h>

#include <cstdio>

#include "ops/host/gathering.h"

namespace kolo::testing {

// The processes of a test program, by other means than what it tests: main() is that of mpi_main.cc, for mpirun, or of
// launch_main.cc, for support/launch.

Gathering& processes();

/// Whether MPI carries tensors between them. Otherwise their worlds are from a store, and all are on one node.
bool over_mpi();

/// Returns when all processes have called it.
inline void wait_for_processes() {
  (void)processes().all_values(0);
}

/// Runs the tests: rank 0 prints, the others only what fails.
inline int run_tests() {
  class OnlyFailures final : public ::testing::EmptyTestEventListener {
    void OnTestPartResult(const ::testing::TestPartResult& result) override {
      if (result.failed()) {
        std::fprintf(stderr, "[rank %d] %s:%d: %s\n", processes().rank(), result.file_name() ? result.file_name() : "?",
                     result.line_number(), result.summary());
      }
    }
  };
  if (processes().rank() != 0) {
    auto& listeners = ::testing::UnitTest::GetInstance()->listeners();
    delete listeners.Release(listeners.default_result_printer());
    listeners.Append(new OnlyFailures);
  }
  return RUN_ALL_TESTS();
}

}  // namespace kolo::testing
