// More than 2^31 bytes, and elements, in one tensor: real transfers between processes.

#include <gtest/gtest.h>

#include <cstdint>
#include <vector>

#include <kolo/session.h>

#include "tests/support/thread_ranks.h"

namespace kolo {
namespace {

constexpr std::int64_t elements = (std::int64_t{1} << 31) + 1001;

/// Looks at some elements, the last ones among them.
template <class Expected>
void check(const std::vector<std::uint8_t>& values, Expected expected) {
  for (std::int64_t i = 0; i < elements; i += 4'194'301)
    ASSERT_EQ(values[static_cast<std::size_t>(i)], expected(i)) << i;
  for (std::int64_t i = elements - 2000; i < elements; ++i)
    ASSERT_EQ(values[static_cast<std::size_t>(i)], expected(i)) << i;
}

std::uint8_t value_at(std::int64_t i) {
  return static_cast<std::uint8_t>((i * 7 + i / 256) % 100);
}

TEST(Large, ReducedAndSent) {
  Session session(testing::test_config());
  if (session.size() != 2) GTEST_SKIP() << "is for two ranks";  // the others would need more memory
  std::vector<std::uint8_t> values(static_cast<std::size_t>(elements));
  for (std::int64_t i = 0; i < elements; ++i) values[static_cast<std::size_t>(i)] = value_at(i);
  session.all_reduce("large", view(values));
  check(values, [](std::int64_t i) { return static_cast<std::uint8_t>(2 * value_at(i)); });
  if (session.rank() == 0) {
    session.send("large", view(values), 1);
  } else {
    std::fill(values.begin(), values.end(), std::uint8_t{0});
    session.recv("large", view(values), 0);
    check(values, [](std::int64_t i) { return static_cast<std::uint8_t>(2 * value_at(i)); });
  }
  testing::close(session);
}

}  // namespace
}  // namespace kolo
