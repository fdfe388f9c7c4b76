// The collectives, ranks as processes.

#include "tests/collective_programs.h"

namespace kolo {
namespace {

TEST(CollectivesMpi, InTheWorldAndInGroups) {
  Session session(testing::test_config());
  testing::run_collectives(session);
  testing::run_collectives_in_groups(session);
}

TEST(CollectivesMpi, AcrossFakeNodes) {
  auto config = testing::test_config();
  if (Session(config).size() != 4) return;  // the placement is for four
  config.fake_nodes = "3,1";
  Session session(config);
  testing::run_collectives(session);
  testing::run_collectives_in_groups(session);
}

}  // namespace
}  // namespace kolo
