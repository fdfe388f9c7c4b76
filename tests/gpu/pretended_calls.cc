// In place of cuda_calls.cc, where GPUs are fakes.

#include <gtest/gtest.h>

#include <exception>
#include <thread>

#include "tests/gpu/calls.h"
#include "tests/gpu/checks.h"
#include "tests/models/cuda/host_device.h"
#include "tests/support/fake_gpu.h"

namespace kolo::smoke {

bool pretended() {
  testing::host_devices().guarded = false;  // which takes time
  return true;
}

std::string why_no_gpu() {
  return "";
}

std::vector<std::string> card_facts(int) {
  return {"a pretended GPU, on which everything runs on the host"};
}

std::optional<int> stream_priority(void*) {
  return std::nullopt;
}

void capture(Gpu& gpu, bool, const std::function<void(void* stream)>& put,
             const std::function<void(void* captured)>& meanwhile) {
  auto& fake = testing::fake_gpu(gpu.index());
  const GpuStream stream(gpu);
  fake.begin_capture(stream.get());
  std::exception_ptr failure;
  std::thread([&] {
    try {
      meanwhile(stream.get());
    } catch (...) {
      failure = std::current_exception();
    }
  }).join();
  if (failure) std::rethrow_exception(failure);
  meanwhile(stream.get());
  require(fake.end_capture(stream.get()), "what kolo called has ended the capture");
  put(stream.get());  // as a graph does it
  fake.synchronize(stream.get());
}

bool complained() {
  return ::testing::UnitTest::GetInstance()->ad_hoc_test_result().Failed();
}

}  // namespace kolo::smoke
