// The whole runtime against a serial model: random programs, ranks as threads. Every result is compared, every error
// must be the same on all ranks, and nothing may hang: a stall ends the process and names the seed. Replay one program
// with KOLO_TEST_SEED=<seed>, run more with KOLO_TEST_SCALE=<factor>.

#include "tests/runtime/property/property_suite.h"
#include "tests/support/environment.h"

namespace kolo {
namespace {

constexpr int parts = 10;

class Property : public ::testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Part, Property, ::testing::Range(0, parts));

TEST_P(Property, EveryProgramDoesWhatTheModelDoes) {
  testing::play_programs(sanitized ? 300 : 2000, GetParam(), parts);
}

}  // namespace
}  // namespace kolo
