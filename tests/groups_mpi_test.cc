// Groups, ranks as processes.

#include "tests/group_programs.h"

namespace kolo {
namespace {

TEST(GroupsMpi, AllPrograms) {
  Session session(testing::test_config());
  testing::reduce_in_groups(session);
  testing::reduce_in_pairs(session);
  testing::reduce_with_the_last(session);
  testing::sleep_in_one_group(session);
  testing::split_by_color(session);
}

TEST(GroupsMpi, AcrossFakeNodes) {
  auto config = testing::test_config();
  if (Session(config).size() != 4) return;  // the placement is for four
  config.fake_nodes = "3,1";
  Session session(config);
  testing::reduce_in_groups(session);
  testing::reduce_in_pairs(session);
  testing::reduce_with_the_last(session);
}

TEST(GroupsMpi, Misuse) {
  Session session(testing::test_config());
  testing::misuse_groups(session);
}

}  // namespace
}  // namespace kolo
