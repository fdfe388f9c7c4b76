#include "models/llama/decoder.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <utility>

#include "models/compute/denormals.h"
#include "models/compute/gemm.h"
#include "models/compute/random.h"
#include "models/util/error.h"

namespace kolo::models {
namespace {

constexpr std::int64_t lanes = 16;  // rows of a head are a multiple of it

float dot(std::int64_t count, const float* a, const float* b) {
  std::array<float, lanes> sums{};
  for (std::int64_t i = 0; i < count; i += lanes) {
    for (std::int64_t lane = 0; lane < lanes; ++lane) sums[static_cast<std::size_t>(lane)] += a[i + lane] * b[i + lane];
  }
  float sum = 0;
  for (const float part : sums) sum += part;
  return sum;
}

/// out = matrix · in, of [outputs, inputs].
void multiply(std::int64_t inputs, std::int64_t outputs, const float* in, const float* matrix, float* out) {
  gemm({.m = 1, .n = outputs, .k = inputs, .transpose_b = true}, in, matrix, out);
}

}  // namespace

LlamaDecoder::LlamaDecoder(Llama& model)
    : settings_(model.settings()),
      shape_(settings_),
      all_values_(model.compute(), reshaped(model.parameters().front().value, {value_elements(model)})),
      rotations_(rotation_steps(settings_)),
      loops_(&kernels(Precision::f32)),
      keys_(static_cast<std::size_t>(shape_.layers * shape_.kv_heads)),
      values_(keys_.size()) {
  for (std::int64_t begin = 0; const Parameter& parameter : model.parameters()) {
    begins_.push_back(std::exchange(begin, begin + parameter.shape.elements()));
  }
  const auto size = [](std::int64_t count) { return static_cast<std::size_t>(count); };
  x_.resize(size(shape_.dim));
  h_.resize(size(shape_.dim));
  wide_.resize(size(std::max(shape_.qkv, 2 * shape_.ffn)));
  out_.resize(size(std::max(shape_.dim, shape_.ffn)));
  query_.resize(size(shape_.head_width));
  logits_.resize(size(shape_.vocabulary));
}

void LlamaDecoder::begin_anew() {
  seen_ = 0;
  for (auto* rows : {&keys_, &values_}) {
    for (std::vector<float>& of_head : *rows) of_head.clear();
  }
}

std::span<const float> LlamaDecoder::read(std::int32_t token) {
  if (seen_ >= settings_.positions) {
    throw ModelError(fmt::format("the text is too long (the model has {} positions); begin anew with a part of it",
                                 settings_.positions));
  }
  const DenormalsAreZero in_here;
  rotations_.need(seen_ + 1);
  std::copy_n(value(0) + token * shape_.dim, shape_.dim, x_.data());
  for (std::int64_t layer = 0; layer < shape_.layers; ++layer) {
    attention(layer);
    ffn(layer);
  }
  const std::size_t last_norm = layer_parameter(shape_.layers, LayerPart::q);
  norm(value(last_norm));
  multiply(shape_.dim, shape_.vocabulary, h_.data(), value(settings_.tied_head ? 0 : last_norm + 1), logits_.data());
  ++seen_;
  return logits_;
}

/// h = the norm of x.
void LlamaDecoder::norm(const float* gain) {
  float inverse = 0;
  loops_->rms_norm(1, shape_.dim, x_.data(), nullptr, nullptr, gain, settings_.norm_eps,
                   reinterpret_cast<MatmulItem*>(h_.data()), &inverse);
}

/// x += matrix · in.
void LlamaDecoder::add(std::int64_t count, const float* in, const float* matrix) {
  gemm({.m = 1, .n = shape_.dim, .k = count, .transpose_b = true, .beta = 1}, in, matrix, x_.data());
}

void LlamaDecoder::attention(std::int64_t layer) {
  norm(value(layer, LayerPart::norm1));
  multiply(shape_.dim, shape_.qkv, h_.data(), value(layer, LayerPart::q), wide_.data());
  const std::int64_t half = shape_.head_dim / 2, width = shape_.head_width;
  HeadRows plain{.positions = 1, .half = half, .width = width, .stride = shape_.qkv};
  HeadRows turned = plain;
  turned.cosine = rotations_.cosine() + seen_ * half;
  turned.sine = rotations_.sine() + seen_ * half;
  const auto put = [&](const HeadRows& rows, std::int64_t column, std::vector<float>& to) {
    to.resize(to.size() + static_cast<std::size_t>(width));
    loops_->split_heads(rows, wide_.data() + column, to.data() + std::ssize(to) - width);
  };
  for (std::int64_t head = 0; head < shape_.kv_heads; ++head) {
    const auto at = static_cast<std::size_t>(layer * shape_.kv_heads + head);
    put(turned, shape_.k_column(head), keys_[at]);
    put(plain, shape_.v_column(head), values_[at]);
  }
  turned.scale = static_cast<float>(1 / std::sqrt(static_cast<double>(shape_.head_dim)));
  for (std::int64_t head = 0; head < shape_.heads; ++head) {
    loops_->split_heads(turned, wide_.data() + shape_.q_column(head), query_.data());
    attend(layer, head, out_.data() + shape_.q_column(head));
  }
  add(shape_.dim, out_.data(), value(layer, LayerPart::o));
}

/// out = the mean of the head's values, weighed by the exponentials of their keys' products with the query.
void LlamaDecoder::attend(std::int64_t layer, std::int64_t head, float* out) {
  const std::int64_t kv_head = head / (shape_.heads / shape_.kv_heads), width = shape_.head_width;
  const auto at = static_cast<std::size_t>(layer * shape_.kv_heads + kv_head);
  const std::int64_t rows = seen_ + 1;
  scores_.resize(static_cast<std::size_t>(rows));
  for (std::int64_t row = 0; row < rows; ++row) {
    scores_[static_cast<std::size_t>(row)] = dot(width, query_.data(), keys_[at].data() + row * width);
  }
  const float largest = *std::ranges::max_element(scores_);
  float sum = 0;
  for (float& score : scores_) sum += score = std::exp(score - largest);
  std::fill_n(out, shape_.head_dim, 0.0f);
  for (std::int64_t row = 0; row < rows; ++row) {
    const float share = scores_[static_cast<std::size_t>(row)] / sum;
    const float* const of_row = values_[at].data() + row * width;
    for (std::int64_t i = 0; i < shape_.head_dim; ++i) out[i] += share * of_row[i];
  }
}

void LlamaDecoder::ffn(std::int64_t layer) {
  norm(value(layer, LayerPart::norm2));
  multiply(shape_.dim, 2 * shape_.ffn, h_.data(), value(layer, LayerPart::gate), wide_.data());
  loops_->swiglu(1, shape_.ffn, wide_.data(), reinterpret_cast<MatmulItem*>(out_.data()));
  add(shape_.ffn, out_.data(), value(layer, LayerPart::down));
}

namespace {

void check(const Sampling& sampling) {
  if (sampling.count < 0)
    throw ModelError(fmt::format("cannot generate {} tokens; give a count from 0", sampling.count));
  if (!(sampling.temperature >= 0)) {
    throw ModelError(fmt::format("temperature is {}; give a number from 0", sampling.temperature));
  }
  if (sampling.top_k < 0) throw ModelError(fmt::format("top_k is {}; give a number from 0", sampling.top_k));
  if (!(sampling.top_p > 0 && sampling.top_p <= 1))
    throw ModelError(fmt::format("top_p is {}; give a number above 0, at most 1", sampling.top_p));
}

/// A token that may be drawn, and how likely it is beside the others.
struct Candidate {
  std::int32_t token;
  double weight;
};

/// Those that may be drawn: all in order, or some of the likeliest, these first.
std::vector<Candidate> candidates(std::span<const float> logits, const Sampling& sampling) {
  const double largest = *std::ranges::max_element(logits);
  std::vector<Candidate> all;
  for (const float logit : logits)
    all.push_back({static_cast<std::int32_t>(all.size()), std::exp((logit - largest) / sampling.temperature)});
  if (sampling.top_k == 0 && sampling.top_p == 1) return all;
  std::stable_sort(all.begin(), all.end(), [](const auto& a, const auto& b) { return a.weight > b.weight; });
  if (sampling.top_k > 0) all.resize(std::min(all.size(), static_cast<std::size_t>(sampling.top_k)));
  if (sampling.top_p == 1) return all;
  double sum = 0, reached = 0;
  for (const Candidate& one : all) sum += one.weight;
  std::size_t kept = 0;
  while (kept < all.size() && reached < sampling.top_p * sum) reached += all[kept++].weight;
  all.resize(kept);
  return all;
}

/// The token at which the sum of probabilities passes a random share of all.
std::int32_t draw(std::span<const float> logits, const Sampling& sampling, Random& random) {
  const auto likeliest = static_cast<std::int32_t>(std::ranges::max_element(logits) - logits.begin());
  if (sampling.temperature == 0) return likeliest;
  const std::vector<Candidate> all = candidates(logits, sampling);
  double sum = 0;
  for (const Candidate& one : all) sum += one.weight;
  double left = random.uniform() * sum;
  for (const Candidate& one : all) {
    left -= one.weight;
    if (left < 0) return one.token;
  }
  return likeliest;
}

}  // namespace

void check_prompt(const Llama& model, std::span<const std::int32_t> prompt) {
  if (prompt.empty()) throw ModelError("the prompt is empty; give at least one token");
  const std::int64_t vocabulary = model.settings().vocabulary;
  for (const std::int32_t token : prompt) {
    if (token >= 0 && token < vocabulary) continue;
    throw ModelError(fmt::format("the prompt's token {} is out of range (the model's vocabulary has {}); choose others",
                                 token, vocabulary));
  }
}

std::vector<std::int32_t> generate(Llama& model, std::span<const std::int32_t> prompt, const Sampling& sampling) {
  check_prompt(model, prompt);
  check(sampling);
  const std::int64_t positions = model.settings().positions;
  std::vector<std::int32_t> text(prompt.begin(), prompt.end());
  LlamaDecoder decoder(model);
  Random random(sampling.seed);
  std::int64_t next = std::max<std::int64_t>(0, std::ssize(text) - positions);  // to be read
  for (std::int64_t written = 0; written < sampling.count; ++written) {
    if (sampling.progress && !sampling.progress(written)) break;
    if (decoder.seen() == positions) {
      decoder.begin_anew();
      next = std::ssize(text) - (positions + 1) / 2;
    }
    std::span<const float> logits;
    for (; next < std::ssize(text); ++next) logits = decoder.read(text[static_cast<std::size_t>(next)]);
    text.push_back(draw(logits, sampling, random));
  }
  return {text.begin() + std::ssize(prompt), text.end()};
}

}  // namespace kolo::models
