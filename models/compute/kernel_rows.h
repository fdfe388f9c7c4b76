#pragma once

// Kernels on rows; see kernel_vectors.h for their compilation, and kernels.h for their contracts.

#include "models/compute/kernel_vectors.h"

namespace kolo::models {
namespace {

template <class Number>
void narrow(std::int64_t count, const float* values, MatmulItem* out) {
  over(count, [&](std::int64_t i, auto extent) { Number::store(out, i, load(values + i, extent), extent); });
}

template <class Number>
void widen(std::int64_t count, const MatmulItem* values, float* out) {
  over(count, [&](std::int64_t i, auto extent) { store(out + i, Number::load(values, i, extent), extent); });
}

template <class Number>
void rms_norm(std::int64_t rows, std::int64_t dim, const float* x, const float* more, float* sum, const float* gain,
              double eps, MatmulItem* h, float* inverse) {
  for (std::int64_t row = 0; row < rows; ++row) {
    const std::int64_t at = row * dim;
    Floats squares{};
    if (more != nullptr) {
      over(dim, [&](std::int64_t i, auto extent) {
        const Floats value = load(x + at + i, extent) + load(more + at + i, extent);
        store(sum + at + i, value, extent);
        squares += value * value;
      });
    } else {
      over(dim, [&](std::int64_t i, auto extent) {
        const Floats value = load(x + at + i, extent);
        squares += value * value;
      });
    }
    const float* const from = more != nullptr ? sum : x;
    const auto scale = static_cast<float>(1 / ::sqrt(sum_of(squares) / static_cast<double>(dim) + eps));
    inverse[row] = scale;
    over(dim, [&](std::int64_t i, auto extent) {
      Number::store(h, at + i, load(from + at + i, extent) * scale * load(gain + i, extent), extent);
    });
  }
}

template <class Number>
void rms_norm_backward(std::int64_t rows, std::int64_t dim, const float* x, const float* gain, const float* inverse,
                       const float* dh, float* d, float* d_gain, MatmulItem* d_rounded) {
  for (std::int64_t row = 0; row < rows; ++row) {
    const std::int64_t at = row * dim;
    const float scale = inverse[row];
    Floats products{};
    over(dim, [&](std::int64_t i, auto extent) {
      const Floats up = load(dh + at + i, extent), value = load(x + at + i, extent);
      products += up * load(gain + i, extent) * value;
      store(d_gain + i, load(d_gain + i, extent) + up * (value * scale), extent);
    });
    const float pull = scale * scale * scale * sum_of(products) / static_cast<float>(dim);
    over(dim, [&](std::int64_t i, auto extent) {
      const Floats through = load(dh + at + i, extent) * load(gain + i, extent) * scale;
      const Floats total = load(d + at + i, extent) + through - load(x + at + i, extent) * pull;
      store(d + at + i, total, extent);
      if (d_rounded != nullptr) Number::store(d_rounded, at + i, total, extent);
    });
  }
}

inline void split_heads(const HeadRows& rows, const float* in, float* out) {
  for (std::int64_t position = 0; position < rows.positions; ++position) {
    const float* const from = in + position * rows.stride;
    float* const to = out + position * rows.width;
    for (std::int64_t i = 2 * rows.half; i < rows.width; ++i) to[i] = 0;
    if (rows.cosine == nullptr) {
      over(2 * rows.half, [&](std::int64_t i, auto extent) { store(to + i, load(from + i, extent), extent); });
      continue;
    }
    const float* const cosine = rows.cosine + position * rows.half;
    const float* const sine = rows.sine + position * rows.half;
    over(rows.half, [&](std::int64_t i, auto extent) {
      const Floats a = load(from + i, extent), b = load(from + rows.half + i, extent);
      const Floats c = load(cosine + i, extent), s = load(sine + i, extent);
      store(to + i, (a * c - b * s) * rows.scale, extent);
      store(to + rows.half + i, (b * c + a * s) * rows.scale, extent);
    });
  }
}

template <class Number>
void merge_heads(const HeadRows& rows, const float* in, MatmulItem* out, std::int64_t at) {
  for (std::int64_t position = 0; position < rows.positions; ++position) {
    const float* const from = in + position * rows.width;
    const std::int64_t to = at + position * rows.stride;
    if (rows.cosine == nullptr) {
      over(2 * rows.half,
           [&](std::int64_t i, auto extent) { Number::store(out, to + i, load(from + i, extent), extent); });
      continue;
    }
    const float* const cosine = rows.cosine + position * rows.half;
    const float* const sine = rows.sine + position * rows.half;
    over(rows.half, [&](std::int64_t i, auto extent) {
      const Floats a = load(from + i, extent), b = load(from + rows.half + i, extent);
      const Floats c = load(cosine + i, extent), s = load(sine + i, extent);
      Number::store(out, to + i, (a * c + b * s) * rows.scale, extent);
      Number::store(out, to + rows.half + i, (b * c - a * s) * rows.scale, extent);
    });
  }
}

inline Floats sigmoid(Floats x) {
  return 1.0f / (1.0f + exponential(-x));
}

template <class Number>
void swiglu(std::int64_t rows, std::int64_t ffn, const float* gate_up, MatmulItem* s) {
  for (std::int64_t row = 0; row < rows; ++row) {
    const float* const gate = gate_up + row * 2 * ffn;
    over(ffn, [&](std::int64_t i, auto extent) {
      const Floats g = load(gate + i, extent);
      Number::store(s, row * ffn + i, g * sigmoid(g) * load(gate + ffn + i, extent), extent);
    });
  }
}

template <class Number>
void swiglu_backward(std::int64_t rows, std::int64_t ffn, const float* gate_up, const float* ds, MatmulItem* d_gate_up,
                     MatmulItem* s) {
  for (std::int64_t row = 0; row < rows; ++row) {
    const std::int64_t at = row * 2 * ffn;
    over(ffn, [&](std::int64_t i, auto extent) {
      const Floats g = load(gate_up + at + i, extent), up = load(gate_up + at + ffn + i, extent);
      const Floats gradient = load(ds + row * ffn + i, extent);
      const Floats soft = sigmoid(g), silu = g * soft;
      Number::store(d_gate_up, at + i, gradient * up * (soft + silu * (1.0f - soft)), extent);
      Number::store(d_gate_up, at + ffn + i, gradient * silu, extent);
      Number::store(s, row * ffn + i, silu * up, extent);
    });
  }
}

/// The index of the first element that equals `largest`.
inline std::int64_t first_of(std::int64_t count, const float* values, float largest) {
  for (std::int64_t i = 0; i < count; ++i) {
    if (values[i] == largest) return i;
  }
  return 0;
}

inline double cross_entropy(std::int64_t classes, const float* logits, std::int64_t target, float scale,
                            float* d_logits, std::int64_t* index) {
  Floats most = all(-INFINITY);
  over(classes,
       [&](std::int64_t i, auto extent) { most = larger(fill(load(logits + i, extent), extent, -INFINITY), most); });
  const float largest = largest_of(most);
  *index = first_of(classes, logits, largest);
  const float hit = logits[target];
  Floats sums{};
  over(classes, [&](std::int64_t i, auto extent) {
    const Floats power = fill(exponential(load(logits + i, extent) - largest), extent, 0.0f);  // at most 1
    sums += power;
    if (d_logits != nullptr) store(d_logits + i, power, extent);
  });
  const float sum = sum_of(sums);
  if (d_logits != nullptr) {
    const float factor = scale / sum;
    over(classes,
         [&](std::int64_t i, auto extent) { store(d_logits + i, load(d_logits + i, extent) * factor, extent); });
    d_logits[target] -= scale;
  }
  return ::log(static_cast<double>(sum)) - (static_cast<double>(hit) - largest);
}

}  // namespace
}  // namespace kolo::models
