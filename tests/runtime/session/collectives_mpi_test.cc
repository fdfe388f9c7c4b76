// The collectives, ranks as processes.

#include "tests/runtime/session/collective_programs.h"

namespace kolo {
namespace {

TEST(CollectivesMpi, InTheWorldAndInGroups) {
  Session session(testing::test_config());
  testing::run_collectives(session);
  testing::run_collectives_in_groups(session);
}

}  // namespace
}  // namespace kolo
