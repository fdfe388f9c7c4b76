// Attention, in the shapes of Llamas.

#include <fmt/format.h>

#include <cmath>
#include <string>
#include <vector>

#include "tests/gpu/calls.h"
#include "tests/gpu/pairs.h"
#include "tests/gpu/smoke.h"

namespace kolo::smoke {
namespace {

struct Extents {
  Heads heads;
  std::int64_t sequences, positions;
};
/// Fewer heads of keys, positions that are no multiple of a tile, a single one, and what cuDNN takes.
const std::vector<Extents> cases{{{4, 2, 64}, 2, 131}, {{2, 1, 128}, 1, 200}, {{2, 2, 64}, 1, 64},
                                 {{3, 1, 40}, 1, 66},  {{2, 1, 128}, 2, 1},   {{2, 1, 8}, 1, 131},
                                 {{4, 1, 64}, 3, 256}, {{2, 2, 128}, 1, 128}};

/// All that attention reads and writes.
class Attention {
 public:
  Attention(Both& both, const Extents& extents, DType dtype)
      : extents_(extents),
        dtype_(dtype),
        qkv_(both.kept(dtype, {extents.sequences, extents.positions, heads().row()})),
        q_(both.kept(dtype, of_heads(heads().heads))),
        k_(both.kept(dtype, of_heads(heads().kv_heads))),
        v_(both.kept(dtype, of_heads(heads().kv_heads))),
        out_(both.items(dtype, of_out())),
        log_sums_(both.floats({extents.sequences, heads().heads, extents.positions})),
        d_out_(both.kept(dtype, of_out())),
        d_qkv_(both.items(dtype, {extents.sequences, extents.positions, heads().row()})) {
    const Shape of_table{extents.positions + 3, heads().head_dim / 2};
    std::vector<float> cosines, sines;
    for (std::int64_t i = 0; i < of_table.elements(); ++i) {
      cosines.push_back(std::cos(static_cast<float>(i)));
      sines.push_back(std::sin(static_cast<float>(i)));
    }
    cosine_ = both.floats(of_table, cosines);
    sine_ = both.floats(of_table, sines);
  }

  void split(Compute& compute, const Of& of) const {
    compute.split_heads(heads(), {of(cosine_), of(sine_)}, of(qkv_), {of(q_), of(k_), of(v_)});
  }
  void attend(Compute& compute, const Of& of) const {
    compute.attend(heads(), {of(q_), of(k_), of(v_)}, of(out_), of(log_sums_));
  }
  void back(Compute& compute, const Of& of) const {
    compute.attend_backward(heads(), {of(cosine_), of(sine_)}, {of(q_), of(k_), of(v_)}, of(out_), of(log_sums_),
                            of(d_out_), of(d_qkv_));
  }
  void check_forward() const {
    for (const Pair* one : {&q_, &k_, &v_}) one->require_near(tolerance(dtype_), "split_heads" + name());
    log_sums_.require_near(dtype_ == DType::bf16 ? 1e-2 : 1e-5, "the sums of exponentials" + name());
    out_.require_near(tolerance(dtype_), "attend" + name());
  }
  void check_back() const { d_qkv_.require_near(3 * tolerance(dtype_), "attend_backward" + name()); }

  /// Of the products of a causal pass forward.
  double flops() const {
    const auto positions = static_cast<double>(extents_.positions);
    return 2 * static_cast<double>(extents_.sequences * heads().heads * heads().head_dim) * positions * positions;
  }
  const Pair& gradient() const { return d_qkv_; }

 private:
  const Heads& heads() const { return extents_.heads; }
  Shape of_heads(std::int64_t count) const { return {extents_.sequences, count, extents_.positions, heads().width()}; }
  Shape of_out() const { return {extents_.sequences * extents_.positions, heads().heads * heads().head_dim}; }
  std::string name() const {
    return fmt::format(" in {}, heads {}/{} of {}, {} positions", to_string(dtype_), heads().heads, heads().kv_heads,
                       heads().head_dim, extents_.positions);
  }

  Extents extents_;
  DType dtype_;
  Pair qkv_, q_, k_, v_, out_, log_sums_, d_out_, d_qkv_, cosine_, sine_;
};

/// As large as in training; only the GPU computes it.
Extents large(std::int64_t head_dim) {
  return pretended() ? Extents{{2, 1, head_dim}, 1, 70} : Extents{{2048 / head_dim, 512 / head_dim, head_dim}, 2, 2048};
}

void check_forward(Line& line, DType dtype) {
  Both both;
  for (const Extents& extents : cases) {
    const Attention attention(both, extents, dtype);
    both.run([&](Compute& compute, const Of& of) {
      attention.split(compute, of);
      attention.attend(compute, of);
    });
    attention.check_forward();
  }
  for (const std::int64_t head_dim : {64, 128}) {
    const Attention attention(both, large(head_dim), dtype);
    both.run_on_gpu([&](Compute& compute, const Of& of) { attention.split(compute, of); });
    const double seconds = both.time(line, [&](Compute& compute, const Of& of) { attention.attend(compute, of); });
    line.note(fmt::format("head_dim {}: {}", head_dim, speed(attention.flops(), seconds)));
  }
}

void check_back(Line& line, DType dtype) {
  Both both;
  for (const Extents& extents : cases) {
    const Attention attention(both, extents, dtype);
    both.run([&](Compute& compute, const Of& of) {
      attention.split(compute, of);
      attention.attend(compute, of);
      attention.back(compute, of);
    });
    attention.check_back();
  }
  for (const std::int64_t head_dim : {64, 128}) {
    const Attention attention(both, large(head_dim), dtype);
    const auto back = [&](Compute& compute, const Of& of) { attention.back(compute, of); };
    both.run_on_gpu([&](Compute& compute, const Of& of) {
      attention.split(compute, of);
      attention.attend(compute, of);
      attention.back(compute, of);
    });
    const std::vector<std::byte> first = attention.gradient().read();
    for (int again = 0; again < 3; ++again) {
      both.run_on_gpu(back);
      require(attention.gradient().read() == first, "attend_backward gives other bits when it runs again");
    }
    line.note(fmt::format("head_dim {}: {}", head_dim, speed(2.5 * attention.flops(), both.time(line, back))));
  }
}

}  // namespace

void check_attention(Checks& checks) {
  for (const DType dtype : {DType::f32, DType::bf16, DType::f16}) {
    const std::string in = fmt::format(" in {}", to_string(dtype));
    checks.run("split_heads and attend" + in, [dtype](Line& line) { check_forward(line, dtype); });
    checks.run("attend_backward" + in + ", the same bits again", [dtype](Line& line) { check_back(line, dtype); });
  }
}

}  // namespace kolo::smoke
