#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>

#include "tests/runtime/property/property_player.h"
#include "tests/support/environment.h"

namespace kolo::testing {

/// Plays those of `count` random programs whose seed leaves the remainder `part` when divided by `parts`. Stops at the
/// first one that does not do what the model does, and names its seed.
inline void play_programs(std::uint64_t count, int part, int parts) {
  std::size_t programs = 0, operations = 0;
  for (const std::uint64_t seed : seeds(count)) {
    if (seed % static_cast<std::uint64_t>(parts) != static_cast<std::uint64_t>(part)) continue;
    const auto program = draw_program(seed);
    if (std::getenv("KOLO_TEST_SEED")) std::printf("%s", to_string(program).c_str());
    const auto problems = run_program(program, config_of(program));
    for (const std::string& problem : problems) ADD_FAILURE() << problem;
    if (!problems.empty()) FAIL() << "replay with KOLO_TEST_SEED=" << seed;
    ++programs;
    operations += static_cast<std::size_t>(program.operations());
  }
  std::printf("%zu programs, %zu operations\n", programs, operations);
}

}  // namespace kolo::testing
