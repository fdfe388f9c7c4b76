// Groups, ranks as processes.

#include "tests/runtime/session/group_programs.h"

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

TEST(GroupsMpi, Misuse) {
  Session session(testing::test_config());
  testing::misuse_groups(session);
}

}  // namespace
}  // namespace kolo
