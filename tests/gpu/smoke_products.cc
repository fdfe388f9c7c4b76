// Matrix products and what goes with them.

#include <fmt/format.h>

#include <array>
#include <cmath>
#include <string>
#include <vector>

#include "tests/gpu/calls.h"
#include "tests/gpu/pairs.h"
#include "tests/gpu/smoke.h"

namespace kolo::smoke {
namespace {

struct Form {
  const char* name;
  bool transpose_a, transpose_b, add, bias, relu;
};
/// Forward, back to the inputs, back to the weights; and the rest.
constexpr std::array forms{Form{"a·b", false, false, false, false, false},
                           Form{"a·bT", false, true, false, false, false},
                           Form{"aT·b", true, false, false, false, false},
                           Form{"aT·bT", true, true, false, false, false},
                           Form{"a·b, added", false, false, true, false, false},
                           Form{"a·bT, added", false, true, true, false, false},
                           Form{"aT·b, added", true, false, true, false, false},
                           Form{"a·b + bias", false, false, false, true, false},
                           Form{"a·bT + bias", false, true, false, true, false},
                           Form{"relu(a·bT + bias)", false, true, false, true, true},
                           Form{"relu(aT·b + bias)", true, false, false, true, true},
                           Form{"relu(a·b)", false, false, false, false, true}};

/// The same product, rounded at once, as layers of a model in bf16 pass it on.
void check_kept(Both& both, const Form& form, const Pair& a, const Pair& b, const Pair& c) {
  const Shape shape = c.gpu().shape;
  const Pair kept = both.items(DType::bf16, shape), sums = both.floats(shape),
             bias = both.kept(DType::bf16, {shape[1]});
  both.run([&](Compute& compute, const Of& of) {
    Product how{.transpose_a = form.transpose_a, .transpose_b = form.transpose_b, .add = form.add};
    if (form.bias) how.bias = of(bias);
    if (form.relu) how.activation = Activation::relu;
    const bool rounds = compute.device().kind != DeviceKind::cpu;
    compute.cast(of(kept), of(sums));  // what is added to
    compute.product(how, of(a), of(b), rounds ? of(kept) : of(sums));
    if (rounds) compute.cast(of(kept), of(sums));
  });
  // Half of the last place; twice, since some algorithms of cuBLASLt round the product before they add to it.
  sums.require_near((form.add ? 2.0 : 1.0) / 256, fmt::format("{}, rounded to bf16", form.name));
}

/// The gradients of a layer's weights and bias at once.
void check_sums(Both& both, DType dtype, double most, std::int64_t m, std::int64_t n, std::int64_t k) {
  const Pair d = both.items(dtype, {k, m}), x = both.items(dtype, {k, n}), c = both.floats({m, n});
  const Pair sums = both.floats({m}), wide = both.floats({k, m});
  for (const bool add : {false, true}) {
    both.run([&](Compute& compute, const Of& of) {
      const bool beside = dtype == DType::f32 || compute.kept(dtype) == dtype;
      compute.product({.transpose_a = true, .add = add, .sums = beside ? of(sums) : Tensor{}}, of(d), of(x), of(c));
      if (beside) return;
      compute.cast(of(d), of(wide));
      compute.bias_backward({}, of(wide), add, of(sums));
    });
    c.require_near(most, fmt::format("a product of {} with sums beside it", to_string(dtype)));
    sums.require_near(1e-4, fmt::format("the sums beside a product of {}", to_string(dtype)));
  }
}

void check_forms(Both& both, DType dtype, double most) {
  struct Extents {
    std::int64_t m, n, k;
  };
  for (const auto& [m, n, k] : {Extents{70, 67, 33}, Extents{128, 192, 64}, Extents{1, 10, 128}}) {
    for (const Form& form : forms) {
      const Pair a = both.items(dtype, form.transpose_a ? Shape{k, m} : Shape{m, k});
      const Pair b = both.items(dtype, form.transpose_b ? Shape{n, k} : Shape{k, n});
      const Pair bias = both.floats({n}), c = both.floats({m, n});
      both.run([&](Compute& compute, const Of& of) {
        Product how{.transpose_a = form.transpose_a, .transpose_b = form.transpose_b, .add = form.add};
        if (form.bias) how.bias = of(bias);
        if (form.relu) how.activation = Activation::relu;
        compute.product(how, of(a), of(b), of(c));
      });
      if (dtype == DType::bf16) check_kept(both, form, a, b, c);
      c.require_near(most, fmt::format("{} of {} [{}, {}, {}]", form.name, to_string(dtype), m, n, k));
    }
    if (dtype != DType::f16) check_sums(both, dtype, most, m, n, k);
  }
}

/// [n, n] and [n, n], whose product is looked at in a few places.
class Square {
 public:
  Square(Both& both, DType dtype, std::int64_t n)
      : both_(both), n_(n), a_(both.items(dtype, {n, n})), b_(both.items(dtype, {n, n})), c_(both.floats({n, n})) {}

  /// Returns TFLOP/s.
  std::string check(Line& line, const Form& form, double most) {
    const Product how{.transpose_a = form.transpose_a, .transpose_b = form.transpose_b, .add = form.add};
    const auto go = [&](Compute& compute, const Of& of) { compute.product(how, of(a_), of(b_), of(c_)); };
    both_.gpu().copy(c_.host(), c_.gpu());
    both_.run_on_gpu(go);
    const std::vector<std::byte> bytes = c_.read();
    double apart = 0, largest = 1e-30;
    for (int place = 0; place < 200; ++place) {
      const auto row = static_cast<std::int64_t>(both_.random().below(static_cast<std::uint64_t>(n_)));
      const auto column = static_cast<std::int64_t>(both_.random().below(static_cast<std::uint64_t>(n_)));
      double sum = form.add ? at(c_.host(), row * n_ + column) : 0;
      for (std::int64_t k = 0; k < n_; ++k) {
        sum += at(a_.host(), form.transpose_a ? k * n_ + row : row * n_ + k) *
               at(b_.host(), form.transpose_b ? column * n_ + k : k * n_ + column);
      }
      Tensor found = c_.host();
      found.data = const_cast<std::byte*>(bytes.data());
      apart = std::max(apart, std::abs(sum - at(found, row * n_ + column)));
      largest = std::max(largest, std::abs(sum));
    }
    // Written so that what is no number is wrong.
    require(apart / largest <= most, fmt::format("{} of {} [{}³] differs by {:.2g}, {:.2g} is allowed", form.name,
                                                 to_string(a_.host().dtype), n_, apart / largest, most));
    const auto n = static_cast<double>(n_);
    return speed(2 * n * n * n, both_.time(line, go));
  }

 private:
  static double at(const Tensor& tensor, std::int64_t i) {
    const Tensor one = part_of(tensor, i, {1});
    if (tensor.dtype == DType::f32) return static_cast<double>(*data_of<float>(one));
    const std::uint16_t half = *data_of<std::uint16_t>(one);
    return static_cast<double>(tensor.dtype == DType::bf16 ? to_float(BFloat16{half}) : to_float(Float16{half}));
  }

  Both& both_;
  std::int64_t n_;
  Pair a_, b_, c_;
};

void check_basics(Line& line) {
  Both both;
  const Shape shape{300, 700};
  const Pair a = both.floats(shape), b = both.floats(shape), sum = both.floats(shape), wide = both.doubles(1030, 7);
  const auto add = [&](Compute& compute, const Of& of) { compute.add(of(a), of(b), of(sum)); };
  both.run(add);
  sum.require_same_bits("a sum");
  both.run([&](Compute& compute, const Of& of) {
    compute.fill(of(sum), 0.3);
    compute.fill(of(wide), 0.3);
  });
  sum.require_same_bits("what is filled");
  wide.require_same_bits("what is filled in f64");
  for (const DType dtype : {DType::bf16, DType::f16}) {
    const Pair narrow = both.items(dtype, shape), back = both.floats(shape);
    both.run([&](Compute& compute, const Of& of) {
      compute.cast(of(a), of(narrow));
      compute.cast(of(narrow), of(back));
    });
    narrow.require_same_bits(fmt::format("what is rounded to {}", to_string(dtype)));
    back.require_same_bits(fmt::format("what is widened from {}", to_string(dtype)));
  }
  for (const std::int64_t rows : {1, 40, 9000}) {
    const Shape of_y{rows, rows == 9000 ? 3 : 130};
    const Pair y = both.floats(of_y), dy = both.floats(of_y), dbias = both.floats({of_y[1]});
    for (const bool added : {false, true}) {
      both.run([&](Compute& compute, const Of& of) {
        compute.bias_backward(added ? of(y) : Tensor{}, of(dy), added, of(dbias));
      });
      dbias.require_near(1e-4, "the gradient of a bias");
      dy.require_same_bits("the gradient in front of a relu");
    }
  }
  both.time(line, add);
}

}  // namespace

void check_products(Checks& checks) {
  constexpr int loading = 3;  // limits, where CUDA and cuBLASLt load what they need
  checks.run("models: make_compute, fill, cast, add, bias_backward", check_basics, loading);
  struct Kind {
    const char* name;
    DType dtype;
    bool tf32;
    double most;  // tensor cores cut what they add
  };
  for (const auto& [name, dtype, tf32, most] :
       {Kind{"f32", DType::f32, false, 1e-5}, Kind{"f32 as tf32", DType::f32, true, 5e-3},
        Kind{"bf16", DType::bf16, false, 1e-4}, Kind{"f16", DType::f16, false, 1e-4}}) {
    const auto check = [dtype = dtype, tf32 = tf32, most = most](Line& line) {
      Both both;
      both.gpu().allow_tf32(tf32);
      check_forms(both, dtype, most);
      const Pair a = both.items(dtype, {64, 64}), b = both.items(dtype, {64, 64}), c = both.floats({64, 64});
      const auto go = [&](Compute& compute, const Of& of) { compute.product({}, of(a), of(b), of(c)); };
      both.run(go);
      line.note(fmt::format("[64³] differs from the host's by {:.2g}", c.difference()));
      both.time(line, go);
    };
    checks.run(fmt::format("products of {}, every form", name), check, loading);
  }
  const std::int64_t n = pretended() ? 96 : 4096;
  const auto check_large = [n](Line& line) {
    Both both;
    {
      Square square(both, DType::f32, n);
      line.note("f32 " + square.check(line, forms[1], 2e-5));
      both.gpu().allow_tf32(true);
      line.note("tf32 " + square.check(line, forms[1], 5e-3));
    }
    line.note("f16 " + Square(both, DType::f16, n).check(line, forms[1], 1e-3));
    Square square(both, DType::bf16, n);
    for (const std::size_t i : {6U, 0U, 1U}) {
      line.note(fmt::format("bf16 {} {}", forms[i].name, square.check(line, forms[i], 1e-3)));
    }
  };
  checks.run(fmt::format("products of [{}³], bf16 last", n), check_large, loading);
}

}  // namespace kolo::smoke
