#include "runtime/coordinator/glances.h"

#include <gtest/gtest.h>

namespace kolo {
namespace {

using namespace std::chrono_literals;

/// One nap of the background thread, while the program drives or does not; how long it is.
std::chrono::nanoseconds nap_after(Glances& glances, bool driven) {
  if (driven) glances.note_driven(false);
  const bool naps = glances.begin();
  const auto nap = naps ? glances.nap() : 0ns;
  glances.sleeps();
  glances.end();
  return nap;
}

TEST(Glances, NapsBecomeLongerWhileAProgramDrives) {
  Glances glances;
  std::chrono::nanoseconds expected = 50us;
  for (int i = 0; i < 8; ++i) {
    EXPECT_EQ(nap_after(glances, true), expected);
    expected = std::min<std::chrono::nanoseconds>(2 * expected, 1ms);
  }
  EXPECT_EQ(nap_after(glances, false), 0ns);
  EXPECT_EQ(nap_after(glances, true), 50us);
}

TEST(Glances, WhatIsLeftInFlightIsLookedAtAfterAShortNap) {
  Glances glances;
  for (int i = 0; i < 8; ++i) (void)nap_after(glances, true);
  glances.note_driven(false);
  EXPECT_TRUE(glances.begin());
  EXPECT_FALSE(glances.looks());
  EXPECT_TRUE(glances.will_see(false));
  EXPECT_FALSE(glances.will_see(true));  // who leaves something rings
  glances.sleeps();
  glances.end();
  EXPECT_FALSE(glances.will_see(false));
  glances.note_driven(true);
  EXPECT_TRUE(glances.begin());
  EXPECT_TRUE(glances.looks());
  EXPECT_EQ(glances.nap(), 50us);
  EXPECT_TRUE(glances.will_see(true));
}

}  // namespace
}  // namespace kolo
