// The programs of property_test.cc with naps at random wherever a thread lets go of a lock (the linker puts them there,
// see CMakeLists.txt): interleavings that an undisturbed machine shows once in a hundred thousand programs.

#include <gtest/gtest.h>
#include <pthread.h>

#include <atomic>
#include <chrono>
#include <random>
#include <thread>

#include "tests/runtime/property/property_player.h"

namespace kolo {
namespace {

void nap_now_and_then() {
  static std::atomic<unsigned> threads{0};
  thread_local std::minstd_rand random(++threads);
  if (random() % 8 == 0) std::this_thread::sleep_for(std::chrono::microseconds(random() % 200));
}

constexpr int parts = 4;

class PropertyShaken : public ::testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Part, PropertyShaken, ::testing::Range(0, parts));

TEST_P(PropertyShaken, EveryProgramDoesWhatTheModelDoes) {
  testing::play_programs(2000, GetParam(), parts);
}

}  // namespace
}  // namespace kolo

extern "C" {

int __real_pthread_mutex_unlock(pthread_mutex_t* mutex);

int __wrap_pthread_mutex_unlock(pthread_mutex_t* mutex) {
  const int rc = __real_pthread_mutex_unlock(mutex);
  kolo::nap_now_and_then();
  return rc;
}

}  // extern "C"
