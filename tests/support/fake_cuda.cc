// What a program without CUDA sees of GPUs, if it links this in place of no_cuda.cc: stand-ins.

#include <array>
#include <atomic>
#include <memory>

#include "ops/gpu/device.h"
#include "tests/support/fake_gpu.h"

namespace kolo {
namespace testing {
namespace {

constexpr int most_cards = 8;
std::atomic<int> cards_seen{most_cards};

class StandInMemory final : public DeviceMemory {
 public:
  void* allocate(std::size_t bytes, int index) const override { return stand_in_card(index).allocate(bytes); }
  void release(void* data) const noexcept override { card_of(data).release(data); }
  void clear(void* data, std::size_t bytes) const override {
    card_of(data).clear(data, bytes, nullptr);
    card_of(data).synchronize(nullptr);
  }
  void copy(void* destination, const void* source, std::size_t bytes) const override {
    if (bytes == 0) return;
    FakeGpu& gpu = stand_in_card(0).reaches(destination, bytes) || stand_in_card(0).reaches(source, bytes)
                       ? stand_in_card(0)
                       : card_of(destination);
    gpu.put(nullptr, [=] {
      __builtin_memcpy(destination, source, bytes);
      return true;
    });
    gpu.synchronize(nullptr);
  }

 private:
  static FakeGpu& card_of(const void* data) {
    for (int index = 0; index < most_cards; ++index) {
      if (stand_in_card(index).reaches(data, 1)) return stand_in_card(index);
    }
    return stand_in_card(0);
  }
};

}  // namespace

FakeGpu& stand_in_card(int index) {
  static const auto gpus = [] {
    std::array<std::unique_ptr<FakeGpu>, most_cards> all;
    for (int i = 0; i < most_cards; ++i)
      all[static_cast<std::size_t>(i)] = std::make_unique<FakeGpu>(i, static_cast<std::uint64_t>(i) + 1);
    return all;
  }();
  return *gpus.at(static_cast<std::size_t>(index));
}

void set_stand_in_cards(int count) {
  cards_seen = count;
}

}  // namespace testing

const DeviceMemory* cuda_memory() {
  static const testing::StandInMemory memory;
  return &memory;
}

int cuda_cards() {
  return testing::cards_seen;
}
Gpu& cuda_gpu(int index) {
  return testing::stand_in_card(index);
}

}  // namespace kolo
