// Batches that arrive on a GPU, a fake one that runs everything later, while what uses earlier ones has not run.

#include <gtest/gtest.h>

#include <array>
#include <numeric>
#include <vector>

#include "models/compute/arrivals.h"
#include "models/compute/views.h"
#include "tests/support/fake_gpu.h"

namespace kolo::testing {
namespace {

TEST(ArrivalsDevice, NoBatchOverwritesOneThatIsInUse) {
  const Device gpu{DeviceKind::cuda, 0};
  const auto compute = models::make_compute(gpu);
  models::Arrivals arrivals;
  models::Buffer memory;
  constexpr std::int64_t batches = 200, least = 100;
  constexpr std::int64_t extra = 64;  // the batches in the middle are larger: there is new memory for them
  const Tensor sums = memory.make(*compute, DType::f32, {batches, 2, least}, "sums");
  std::vector<float> inputs(least + extra), targets(least);
  for (std::int64_t batch = 0; batch < batches; ++batch) {
    const std::int64_t count = batch < 20 ? least : batch < 40 ? least + extra : least - 10;
    std::iota(inputs.begin(), inputs.end(), static_cast<float>(1000 * batch));
    std::iota(targets.begin(), targets.end(), static_cast<float>(-1000 * batch));
    const auto here = arrivals.receive(*compute, {view(inputs.data(), {count}), view(targets.data(), {least})});
    for (std::int64_t which = 0; which < 2; ++which) {
      const Tensor sum = models::part_of(sums, (2 * batch + which) * least, {least - 10});
      const Tensor part = models::part_of(here[static_cast<std::size_t>(which)], 0, {least - 10});
      for (int times = 0; times < 3; ++times) compute->add(part, part, sum);  // the last one is late
    }
  }
  std::vector<float> found(static_cast<std::size_t>(sums.elements()));
  compute->read(sums, found.data());
  for (std::int64_t batch = 0; batch < batches; ++batch) {
    for (std::int64_t i = 0; i < least - 10; ++i) {
      const auto at = static_cast<std::size_t>(2 * batch * least + i);
      ASSERT_EQ(found[at], 2 * (1000 * batch + i)) << "batch " << batch << ", element " << i;
      ASSERT_EQ(found[at + least], 2 * (i - 1000 * batch)) << "batch " << batch << ", element " << i;
    }
  }
}

}  // namespace
}  // namespace kolo::testing
