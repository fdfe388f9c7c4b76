// What a Llama does besides products and attention; and updates.

#include <fmt/format.h>

#include <array>
#include <cmath>
#include <memory>
#include <string>
#include <vector>

#include "tests/gpu/calls.h"
#include "tests/gpu/pairs.h"
#include "tests/gpu/smoke.h"

namespace kolo::smoke {
namespace {

constexpr std::array all_items{DType::f32, DType::bf16, DType::f16};

double bytes_of(std::int64_t elements, std::size_t each) {
  return static_cast<double>(elements) * static_cast<double>(each);
}

void check_rms_norm(Line& line) {
  Both both;
  for (const DType dtype : all_items) {
    for (const Shape& shape : {Shape{3, 7}, Shape{50, 130}, Shape{40, 1024}}) {
      const Pair x = both.floats(shape), more = both.floats(shape), sum = both.floats(shape);
      const Pair gain = both.floats({shape[1]}), h = both.items(dtype, shape), inverse = both.floats({shape[0]});
      const Pair dh = both.floats(shape), d = both.floats(shape), d_gain = both.floats({shape[1]});
      const Pair d_items = both.items(dtype, shape);
      both.run([&](Compute& compute, const Of& of) {
        compute.rms_norm(of(x), {}, {}, of(gain), 1e-5, of(h), of(inverse));
        compute.rms_norm_backward(of(x), of(gain), of(inverse), of(dh), of(d), of(d_gain), {});
        compute.rms_norm(of(x), of(more), of(sum), of(gain), 1e-5, of(h), of(inverse));
        compute.rms_norm_backward(of(sum), of(gain), of(inverse), of(dh), of(d), of(d_gain), of(d_items));
      });
      const std::string name = fmt::format(" of rms_norm [{}, {}], {}", shape[0], shape[1], to_string(dtype));
      sum.require_same_bits("the sum" + name);
      inverse.require_near(1e-5, "the inverse" + name);
      h.require_near(tolerance(dtype), "the result" + name);
      d.require_near(1e-5, "the gradient" + name);
      d_gain.require_near(1e-5, "the gain's gradient" + name);
      d_items.require_near(tolerance(dtype), "the rounded gradient" + name);
    }
  }
  const Shape shape = pretended() ? Shape{20, 64} : Shape{4096, 2048};
  const Pair x = both.floats(shape), sum = both.floats(shape), gain = both.floats({shape[1]});
  const Pair h = both.items(DType::bf16, shape), inverse = both.floats({shape[0]});
  const Pair d = both.floats(shape), d_gain = both.floats({shape[1]});
  const double back = both.time(line, [&](Compute& compute, const Of& of) {
    compute.rms_norm(of(x), of(d), of(sum), of(gain), 1e-5, of(h), of(inverse));
    compute.rms_norm_backward(of(sum), of(gain), of(inverse), of(x), of(d), of(d_gain), of(h));
  });
  const double forward = both.time(line, [&](Compute& compute, const Of& of) {
    compute.rms_norm(of(x), of(d), of(sum), of(gain), 1e-5, of(h), of(inverse));
  });
  line.note(fmt::format("forward {}, both {:.1f} us", bandwidth(bytes_of(shape.elements(), 14), forward), back * 1e6));
}

void check_swiglu(Line& line) {
  Both both;
  for (const DType dtype : all_items) {
    const Pair gate_up = both.kept(dtype, {31, 2 * 45}), s = both.items(dtype, {31, 45}),
               ds = both.kept(dtype, {31, 45});
    const Pair d = both.items(dtype, {31, 2 * 45});
    both.run([&](Compute& compute, const Of& of) {
      compute.swiglu(of(gate_up), of(s));
      const bool in_place = dtype == DType::f32;
      compute.swiglu_backward(of(gate_up), of(ds), in_place ? of(gate_up) : of(d), in_place ? of(ds) : of(s));
    });
    for (const Pair* one : {&s, &d, &gate_up, &ds}) {
      one->require_near(tolerance(dtype), fmt::format("swiglu in {}", to_string(dtype)));
    }
  }
  const std::int64_t rows = pretended() ? 10 : 2048, n = pretended() ? 30 : 4096;
  const Pair gate_up = both.kept(DType::bf16, {rows, 2 * n}), s = both.items(DType::bf16, {rows, n});
  const Pair ds = both.kept(DType::bf16, {rows, n});
  const Pair d = both.items(DType::bf16, {rows, 2 * n});
  const double back = both.time(
      line, [&](Compute& compute, const Of& of) { compute.swiglu_backward(of(gate_up), of(ds), of(d), of(s)); });
  const double forward = both.time(line, [&](Compute& compute, const Of& of) { compute.swiglu(of(gate_up), of(s)); });
  line.note(fmt::format("forward {}, back {}", bandwidth(bytes_of(rows * n, 6), forward),
                        bandwidth(bytes_of(rows * n, 12), back)));
}

void check_cross_entropy(Line& line) {
  Both both;
  constexpr std::int64_t rows = 6, classes = 300;
  std::vector<float> values = both.numbers(rows * classes, 4);
  values[classes + 7] = values[classes + 9] = 5;  // of equal ones the first counts
  values[3 * classes + 4] = 95;
  const Pair targets = both.integers({3, 7, 1, 4, -1, 2}), logits = both.floats({rows, classes}, values);
  const Pair d = both.floats({rows, classes}), sums = both.doubles(3, 0.5);
  both.run([&](Compute& compute, const Of& of) {
    compute.cross_entropy(of(logits), of(targets), 2, of(d), of(sums));
    compute.cross_entropy(of(logits), of(targets), 2, {}, of(sums));
    compute.cross_entropy(of(logits), of(targets), 2, of(logits), of(sums));
  });
  d.require_near(1e-5, "the gradient of logits");
  logits.require_near(1e-5, "the gradient in place of logits");
  sums.require_near(1e-6, "the losses");
  const std::int64_t many = pretended() ? 4 : 1024, vocabulary = pretended() ? 500 : 32'000;
  const Pair names = both.names(many, static_cast<std::uint64_t>(vocabulary)), x = both.floats({many, vocabulary});
  const Pair dx = both.floats({many, vocabulary}), losses = both.doubles(3, 0);
  const double seconds = both.time(
      line, [&](Compute& compute, const Of& of) { compute.cross_entropy(of(x), of(names), 1, of(dx), of(losses)); });
  line.note(fmt::format("[{}, {}]: {}", many, vocabulary, bandwidth(bytes_of(many * vocabulary, 8), seconds)));
}

void check_embed(Line& line) {
  Both both;
  for (const std::int64_t count : {1, 7, 1024, 4100}) {
    const Pair tokens = both.names(count, 50), table = both.floats({50, 5}), x = both.floats({count, 5});
    const Pair d = both.floats({count, 5});
    both.run([&](Compute& compute, const Of& of) {
      compute.embed(of(table), of(tokens), of(x));
      compute.embed_backward(of(tokens), of(d), of(table));
    });
    x.require_same_bits(fmt::format("embed of {} tokens", count));
    table.require_near(1e-5, fmt::format("embed_backward of {} tokens", count));
  }
  const std::int64_t count = pretended() ? 100 : 16'384, rows = pretended() ? 40 : 8000, dim = pretended() ? 16 : 1024;
  const Pair tokens = both.names(count, static_cast<std::uint64_t>(rows)), d = both.floats({count, dim});
  const Pair table = both.floats({rows, dim});
  const auto back = [&](Compute& compute, const Of& of) { compute.embed_backward(of(tokens), of(d), of(table)); };
  both.run(back);
  table.require_near(1e-5, fmt::format("embed_backward of {} tokens", count));
  for (int again = 0; again < 3; ++again) {
    both.gpu().fill(table.gpu(), 0);
    both.run_on_gpu(back);
    const std::vector<std::byte> first = table.read();
    both.gpu().fill(table.gpu(), 0);
    both.run_on_gpu(back);
    require(table.read() == first, "embed_backward gives other bits when it runs again");
  }
  line.note(fmt::format("{} tokens back: {}", count, bandwidth(bytes_of(count * dim, 12), both.time(line, back))));
}

/// The bits of the host; more tensors than one launch takes, some of them empty.
void check_updates(Line& line) {
  Both both;
  std::vector<std::unique_ptr<Pair>> pairs;
  for (int i = 0; i < 4 * 140; ++i) {
    const Shape shape{i / 4 == 20 ? 90'000 : i / 4 % 7};
    std::vector<float> values = both.numbers(shape.elements());
    if (i % 4 == 3) {
      for (float& value : values) value = std::abs(value);  // Adam's squares
    }
    pairs.push_back(std::make_unique<Pair>(both.floats(shape, values)));
  }
  const Pair scale = both.floats({2}, {0.37F, 1}), squares = both.doubles(140, 0), again = both.doubles(140, 0);
  both.run([&](Compute& compute, const Of& of) {
    std::vector<UpdatedTensor> tensors;
    std::vector<Tensor> gradients;
    for (std::size_t i = 0; i < pairs.size(); i += 4) {
      tensors.push_back({of(*pairs[i]), of(*pairs[i + 1]), of(*pairs[i + 2]), of(*pairs[i + 3]), i % 8 == 0 ? 0.1 : 0});
      gradients.push_back(of(*pairs[i + 1]));
    }
    compute.sgd({.lr = 0.1F, .momentum = 0.9F, .gradient_scale = of(scale)}, tensors, of(squares));
    compute.sums_of_squares(gradients, of(again));
    for (const bool decoupled : {false, true}) {
      compute.adam({0.01, 0.9, 0.95, 1e-8, 3, decoupled, of(scale)}, tensors, {});
    }
  });
  for (std::size_t i = 0; i < pairs.size(); ++i) {
    const std::array what{"a value", "a gradient", "a first moment", "a second moment"};
    pairs[i]->require_same_bits(fmt::format("{} of tensor {} after sgd and adam", what[i % 4], i / 4));
  }
  squares.require_near(1e-12, "the squares of sgd");
  require(squares.read() == again.read(), "sgd and sums_of_squares give other squares");
  const Shape shape{pretended() ? 1000 : 16 << 20};
  const Pair value = both.floats(shape), gradient = both.floats(shape), first = both.floats(shape);
  const Pair second = both.floats(shape, std::vector<float>(static_cast<std::size_t>(shape.elements()), 0.5F));
  const Pair one = both.doubles(1, 0);
  const auto update = [&](Compute&, const Of& of) {
    return std::vector<UpdatedTensor>{{of(value), of(gradient), of(first), of(second), 0.1}};
  };
  const double sgd = both.time(line, [&](Compute& compute, const Of& of) {
    compute.sgd({.lr = 0.1F, .momentum = 0.9F, .gradient_scale = of(scale)}, update(compute, of), {});
  });
  const double adam = both.time(line, [&](Compute& compute, const Of& of) {
    compute.adam({0.01, 0.9, 0.95, 1e-8, 3, true, of(scale)}, update(compute, of), of(one));
  });
  line.note(fmt::format("{} numbers: sgd {}, adam {}", shape.elements(), bandwidth(bytes_of(shape.elements(), 20), sgd),
                        bandwidth(bytes_of(shape.elements(), 28), adam)));
}

}  // namespace

void check_sequences(Checks& checks) {
  checks.run("rms_norm and its pass back", check_rms_norm);
  checks.run("swiglu and its pass back", check_swiglu);
  checks.run("cross_entropy", check_cross_entropy);
  checks.run("embed, and back with the same bits", check_embed);
  checks.run("sums_of_squares, sgd and adam, with the bits of the host", check_updates);
}

}  // namespace kolo::smoke
