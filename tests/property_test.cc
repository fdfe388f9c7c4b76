// The whole runtime against a serial model: random programs, ranks as threads. Every result is compared, every error must be the
// same on all ranks, and nothing may hang: a stall ends the process and names the seed. Replay one program with
// KOLO_TEST_SEED=<seed>, run more with KOLO_TEST_SCALE=<factor>.

#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>

#include "tests/property_player.h"
#include "tests/sanitized.h"
#include "tests/seeds.h"

namespace kolo {
namespace {

constexpr int parts = 10;

class Property : public ::testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Part, Property, ::testing::Range(0, parts));

TEST_P(Property, EveryProgramDoesWhatTheModelDoes) {
  constexpr std::uint64_t count = sanitized ? 300 : 10000;
  std::size_t programs = 0, operations = 0;
  for (const std::uint64_t seed : testing::seeds(count)) {
    if (seed % parts != static_cast<std::uint64_t>(GetParam())) continue;
    const auto program = testing::draw_program(seed);
    if (std::getenv("KOLO_TEST_SEED")) std::printf("%s", to_string(program).c_str());
    const auto problems = testing::run_program(program, testing::config_of(program));
    for (const std::string& problem : problems) ADD_FAILURE() << problem;
    if (!problems.empty()) FAIL() << "replay with KOLO_TEST_SEED=" << seed;
    ++programs;
    operations += static_cast<std::size_t>(program.operations());
  }
  std::printf("%zu programs, %zu operations\n", programs, operations);
}

}  // namespace
}  // namespace kolo
