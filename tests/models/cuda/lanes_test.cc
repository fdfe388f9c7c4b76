#include "tests/models/cuda/lanes.h"

#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include "models/compute/cuda/attention_bf16_back_kernels.h"
#include "models/compute/random.h"
#include "tests/models/cuda/host_device.h"
#include "tests/models/models_testing.h"

// Kernels for tensor cores, lane by lane, beside the same kernels with whole matrices in place of registers.

namespace kolo::models::cuda {
namespace {

std::vector<Half> halves(Random& random, Index count) {
  std::vector<Half> numbers;
  for (Index i = 0; i < count; ++i) numbers.push_back(to_bfloat16(random.symmetric(1)).bits);
  return numbers;
}
std::vector<float> floats(const std::vector<Half>& of) {
  std::vector<float> numbers;
  for (const Half half : of) numbers.push_back(to_float(BFloat16{half}));
  return numbers;
}

std::vector<Half> unwritten(std::size_t count) {
  return std::vector<Half>(count, to_bfloat16(NAN).bits);
}

/// Attention of heads of 16·columns-`missing` numbers, forward and back.
template <int columns>
void expect_the_same(Index heads, Index kv_heads, Index positions, Index missing) {
  Random random(1);
  const Index sequences = 1, head_dim = 16 * columns - missing, width = divided_up(head_dim, 16) * 16;
  const Index rows = sequences * positions, of_q = rows * heads * width, of_kv = rows * kv_heads * width;
  const auto q = halves(random, of_q), k = halves(random, of_kv), v = halves(random, of_kv);
  const auto d_rows = halves(random, rows * heads * head_dim);
  struct Results {
    std::vector<Half> out, d_heads, dq, dk, dv;
    std::vector<float> log_sums, inner;
  };
  const auto run = [&](auto launch) {
    Results to{std::vector<Half>(d_rows.size()),
               std::vector<Half>(q.size()),
               unwritten(q.size()),
               unwritten(k.size()),
               unwritten(k.size()),
               std::vector<float>(static_cast<std::size_t>(rows * heads), NAN),
               std::vector<float>(static_cast<std::size_t>(rows * heads), NAN)};
    const auto tiles = [&]<class Base>() {
      return Base{sequences, positions, heads, kv_heads, head_dim, width, q.data(), k.data(), v.data()};
    };
    using Forward = AttendBf16<columns>;
    launch(Forward{tiles.template operator()<typename Forward::Base>(), to.out.data(), to.log_sums.data()});
    testing::run_grid(AttendBf16Inner{{.rows = rows},
                                      positions,
                                      heads,
                                      head_dim,
                                      width,
                                      to.out.data(),
                                      d_rows.data(),
                                      to.inner.data(),
                                      to.d_heads.data(),
                                      head_dim % 8 == 0},
                      false);
    const auto back = [&]<class Kernel>() -> typename Kernel::Base {
      return {tiles.template operator()<typename Kernel::Base::Base>(), to.d_heads.data(), to.log_sums.data(),
              to.inner.data()};
    };
    using Keys = AttendBf16BackwardKeys<columns>;
    using Rows = AttendBf16BackwardRows<columns>;
    launch(Keys{back.template operator()<Keys>(), to.dk.data(), to.dv.data()});
    launch(Rows{back.template operator()<Rows>(), to.dq.data()});
    return to;
  };
  const Results lanes = run([](const auto& kernel) { testing::run_in_fibers(kernel); });
  const Results whole = run([](const auto& kernel) { testing::run_grid(kernel, false); });
  EXPECT_LT(testing::relative_difference(floats(lanes.out), floats(whole.out)), 3e-3);
  EXPECT_LT(testing::relative_difference(lanes.log_sums, whole.log_sums), 1e-6);
  EXPECT_LT(testing::relative_difference(floats(lanes.dq), floats(whole.dq)), 5e-3);
  EXPECT_LT(testing::relative_difference(floats(lanes.dk), floats(whole.dk)), 5e-3);
  EXPECT_LT(testing::relative_difference(floats(lanes.dv), floats(whole.dv)), 5e-3);
}

TEST(Lanes, AttentionOfHeadsOfEveryWidth) {
  expect_the_same<2>(2, 1, 150, 0);
  expect_the_same<4>(2, 2, 66, 0);
  expect_the_same<4>(1, 1, 129, 26);
  expect_the_same<8>(1, 1, 65, 16);
}

}  // namespace
}  // namespace kolo::models::cuda
