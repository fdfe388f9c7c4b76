#include "models/llama/llama.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <numbers>
#include <string>
#include <vector>

#include <kolo/detail/hash.h>

#include "models/llama/decoder.h"
#include "models/llama/shape.h"
#include "models/registry.h"
#include "tests/models/finite_differences.h"
#include "tests/models/llama/llama_testing.h"
#include "tests/models/models_testing.h"

namespace kolo::models {
namespace {

using testing::BoundLlama;
using testing::error_of;
using testing::ignore_ready;
using testing::TokenBatch;

/// Sizes that fill no vector, an odd group of heads, and more rows than one block of attention.
LlamaSettings odd_sizes(bool tied = false) {
  return {.vocabulary = 37,
          .dim = 36,
          .layers = 2,
          .heads = 6,
          .kv_heads = 2,
          .ffn = 50,
          .positions = 512,
          .tied_head = tied};
}

TEST(Llama, NamesAndShapesAreThoseOfPublicCheckpoints) {
  const Llama model(llama_preset("tiny"));
  const auto& parameters = model.parameters();
  ASSERT_EQ(parameters.size(), 2 * 9 + 3);
  EXPECT_EQ(parameters.front().name, "model.embed_tokens.weight");
  EXPECT_EQ(parameters[2].name, "model.layers.0.self_attn.k_proj.weight");
  EXPECT_EQ(parameters[2].shape, (Shape{16, 32}));
  EXPECT_EQ(parameters[7].name, "model.layers.0.mlp.down_proj.weight");
  EXPECT_EQ(parameters[7].shape, (Shape{32, 88}));
  EXPECT_EQ(parameters[18].name, "model.layers.1.post_attention_layernorm.weight");
  EXPECT_EQ(parameters[19].name, "model.norm.weight");
  EXPECT_EQ(parameters[20].name, "lm_head.weight");
  EXPECT_EQ(Llama(odd_sizes(true)).parameters().back().name, "model.norm.weight");
}

TEST(Llama, GradientsAreFiniteDifferences) {
  for (const bool tied : {false, true}) {
    BoundLlama llama(odd_sizes(tied));
    llama.spread();
    TokenBatch tokens(2, 45, 37);
    tokens.targets[3] = tokens.targets[88] = -1;
    EXPECT_LT(testing::worst_difference(llama.model, tokens.batch(), 2e-3f,
                                        [&](const Batch& batch) { return llama.model.evaluate(batch).loss_sum; }),
              5e-3);
  }
}

/// Scores at once, in double, without blocks: what one head's attention comes to must not depend on how many keys and
/// rows there are.
TEST(Llama, LongSequencesBeginLikeShortOnes) {
  BoundLlama llama(odd_sizes());
  llama.spread();
  const TokenBatch tokens(1, 400, 37);
  const auto whole = llama.model.logits(tokens.batch());
  const std::vector<float> all(whole.begin(), whole.end());
  for (const std::int64_t length : {1, 31, 33, 64, 257, 300}) {
    const auto part =
        llama.model.logits({.examples = 1, .tokens = std::span(tokens.tokens).first(static_cast<std::size_t>(length))});
    EXPECT_LT(testing::relative_difference(part, std::span(all).first(part.size())), 1e-5) << length;
  }
}

/// Two sequences of different lengths, each alone, and padded in one batch.
TEST(Llama, PaddedSequencesGiveWhatEachGivesAlone) {
  const TokenBatch longer(1, 45, 37, 2), shorter(1, 30, 37, 1);
  BoundLlama llama(odd_sizes());
  llama.spread();
  AlignedFloats expected(llama.gradients.size());
  BatchResult sum;
  TokenBatch padded(2, 0, 37);
  for (const TokenBatch* alone : {&longer, &shorter}) {
    const BatchResult result = llama.model.forward_backward(alone->batch(), ignore_ready);
    sum.loss_sum += result.loss_sum;
    sum.correct += result.correct;
    for (std::size_t i = 0; i < expected.size(); ++i) expected[i] += llama.gradients[i];
    padded.tokens.insert(padded.tokens.end(), alone->tokens.begin(), alone->tokens.end());
    padded.targets.insert(padded.targets.end(), alone->targets.begin(), alone->targets.end());
  }
  padded.tokens.resize(90, 5);
  padded.targets.resize(90, -1);
  const BatchResult result = llama.model.forward_backward(padded.batch(), ignore_ready);
  EXPECT_EQ(result.targets, 75);
  EXPECT_EQ(result.correct, sum.correct);
  EXPECT_NEAR(result.loss_sum / sum.loss_sum, 1, 1e-6);
  EXPECT_LT(testing::relative_difference(llama.gradients, expected), 2e-6);
}

TEST(Llama, UnevenPartsAddUpToOneBatchOfAScaledLoss) {
  for (const bool tied : {false, true}) {
    BoundLlama llama(odd_sizes(tied));
    llama.spread();
    TokenBatch tokens(5, 12, 37);
    const BatchResult whole = llama.model.forward_backward(tokens.batch(), ignore_ready);
    AlignedFloats expected = llama.gradients;
    for (float& gradient : expected) gradient *= 4;
    std::ranges::fill(llama.gradients, NAN);
    double loss = 0;
    bool first = true;
    for (const auto& [from, count] : {std::pair{0, 0}, {0, 3}, {3, 0}, {3, 2}}) {
      const auto part = [&](const std::vector<std::int32_t>& all) {
        return std::span(all).subspan(static_cast<std::size_t>(from * 12), static_cast<std::size_t>(count * 12));
      };
      const Batch batch{.examples = count, .tokens = part(tokens.tokens), .targets = part(tokens.targets)};
      loss += llama.model.forward_backward(batch, ignore_ready, {.add = !first, .scale = 4}).loss_sum;
      first = false;
    }
    EXPECT_NEAR(loss / whole.loss_sum, 1, 1e-6);
    EXPECT_LT(testing::relative_difference(llama.gradients, expected), 1e-6);
  }
}

TEST(Llama, GradientsAreAnnouncedOnceLastLayerFirstAndFinal) {
  for (const bool tied : {false, true}) {
    BoundLlama llama(odd_sizes(tied));
    for (const std::int64_t count : {2, 0}) {
      TokenBatch tokens(count, 9, 37);
      std::ranges::fill(llama.gradients, NAN);
      std::vector<std::size_t> order;
      std::vector<std::vector<float>> seen(llama.model.parameters().size());
      llama.model.forward_backward(tokens.batch(), [&](std::size_t index) {
        order.push_back(index);
        const auto gradient = testing::floats_of(llama.model.parameters()[index].gradient);
        seen[index].assign(gradient.begin(), gradient.end());
      });
      ASSERT_EQ(order.size(), seen.size());
      EXPECT_EQ(order, llama.model.backward_order());
      for (std::size_t i = 0; i < seen.size(); ++i) {
        EXPECT_TRUE(std::ranges::equal(seen[i], testing::floats_of(llama.model.parameters()[i].gradient)))
            << i;  // NaNs are not equal
      }
      const auto layer_of = [](std::size_t index) {
        return (index + 8) / 9;
      };  // 0: the embedding; 3: behind the layers
      EXPECT_TRUE(std::ranges::is_sorted(order, std::ranges::greater(), layer_of));
    }
  }
}

TEST(Llama, RecomputationGivesTheSameBitsInTwoFifthsOfTheMemory) {
  const TokenBatch tokens(2, 256, 256);
  BoundLlama kept(llama_preset("small")), again(llama_preset("small"), Precision::f32, true);
  for (int pass = 0; pass < 2; ++pass) {
    const BatchResult one = kept.model.forward_backward(tokens.batch(), ignore_ready);
    const BatchResult other = again.model.forward_backward(tokens.batch(), ignore_ready);
    EXPECT_EQ(one.loss_sum, other.loss_sum);
    EXPECT_EQ(kept.gradients, again.gradients);
  }
  EXPECT_LE(static_cast<double>(again.model.activation_bytes()),
            0.4 * static_cast<double>(kept.model.activation_bytes()));
}

TEST(Llama, MemoryGrowsWithThePositionsNotTheirSquare) {
  const LlamaSettings settings{
      .vocabulary = 37, .dim = 16, .layers = 1, .heads = 1, .kv_heads = 1, .ffn = 16, .positions = 8192};
  std::vector<double> bytes;
  for (const std::int64_t positions : {2048, 4096, 8192}) {
    BoundLlama llama(settings);
    const TokenBatch tokens(1, positions, settings.vocabulary);
    llama.model.forward_backward(tokens.batch(), ignore_ready);
    bytes.push_back(static_cast<double>(llama.model.activation_bytes()));
  }
  EXPECT_NEAR((bytes[2] - bytes[1]) / (bytes[1] - bytes[0]), 2, 0.05);
  EXPECT_LT(bytes[2], 8192 * 8192);  // one T×T matrix would take four times as many
}

TEST(Llama, SixteenBitsComeCloseToF32) {
  const TokenBatch tokens(2, 40, 37);
  BoundLlama exact(odd_sizes());
  exact.spread();
  const BatchResult expected = exact.model.forward_backward(tokens.batch(), ignore_ready);
  for (const auto& [precision, loss_error, gradient_error] :
       {std::tuple{Precision::bf16, 5e-3, 4e-2}, {Precision::f16, 1e-3, 5e-3}}) {
    for (const bool recompute : {false, true}) {
      BoundLlama rounded(odd_sizes(), precision, recompute);
      rounded.spread();
      const BatchResult result = rounded.model.forward_backward(tokens.batch(), ignore_ready);
      EXPECT_NE(result.loss_sum, expected.loss_sum);
      EXPECT_NEAR(result.loss_sum / expected.loss_sum, 1, loss_error);
      const double difference = testing::relative_difference(rounded.gradients, exact.gradients);
      EXPECT_LT(difference, gradient_error) << to_string(precision);
      EXPECT_GT(difference, gradient_error / 100) << to_string(precision);
    }
  }
}

TEST(Llama, SameBitsEveryTimeWhateverCameBefore) {
  const TokenBatch tokens(3, 70, 37), other(1, 100, 37);
  AlignedFloats first;
  for (int run = 0; run < 2; ++run) {
    BoundLlama llama(odd_sizes());
    if (run == 1) llama.model.forward_backward(other.batch(), ignore_ready);
    llama.model.forward_backward(tokens.batch(), ignore_ready);
    if (run == 0) first = llama.gradients;
    EXPECT_EQ(llama.gradients, first);
  }
}

TEST(Llama, ANumberThatIsNoneShowsInTheLoss) {
  BoundLlama llama(odd_sizes());
  llama.values[llama.values.size() / 2] = NAN;
  EXPECT_TRUE(std::isnan(llama.model.evaluate(TokenBatch(1, 40, 37).batch()).loss_sum));
}

TEST(Llama, InitialWeightsAreTheSameEverywhere) {
  const BoundLlama llama(llama_preset("tiny"));
  detail::Hash hash;
  for (const float value : llama.values) hash.add(std::bit_cast<std::uint32_t>(value));
  EXPECT_EQ(hash.value(), 9520474032491823546u);
  double squares = 0;
  for (const float value : testing::floats_of(llama.model.parameters().front().value))
    squares += static_cast<double>(value) * value;
  EXPECT_NEAR(std::sqrt(squares / (256 * 32)), 0.02, 4e-4);
}

TEST(Llama, BadSizesAndBatchesAreErrors) {
  const auto sizes_error = [](auto change) {
    LlamaSettings settings = llama_preset("tiny");
    change(settings);
    return error_of([&] { Llama{settings}; });
  };
  EXPECT_EQ(sizes_error([](LlamaSettings& s) { s.layers = 0; }),
            "a llama cannot have layers numbering 0 (1 to 16777216); start from a preset");
  EXPECT_EQ(sizes_error([](LlamaSettings& s) {
              s.dim = 36;
              s.heads = 5;
            }),
            "a llama's dim of 36 does not give each of 5 heads an even share; choose a dim that is a multiple of 10");
  EXPECT_EQ(sizes_error([](LlamaSettings& s) { s.kv_heads = 3; }),
            "4 heads cannot share 3 key and value heads evenly; choose a divisor of 4");
  EXPECT_EQ(error_of([] { llama_preset("huge"); }),
            "unknown preset 'huge' (known: tiny, small, base); choose one of them");
  Llama unbound(llama_preset("tiny"));
  EXPECT_EQ(error_of([&] { unbound.evaluate({}); }), "the model has no storage; call bind() before the first pass");

  BoundLlama llama(odd_sizes());
  TokenBatch tokens(2, 8, 37);
  const auto batch_error = [&] { return error_of([&] { llama.model.evaluate(tokens.batch()); }); };
  tokens.tokens[3] = 37;
  EXPECT_EQ(batch_error(),
            "token 37 is out of range (the model's vocabulary has 37); check the data and the vocabulary");
  tokens.tokens[3] = 0;
  tokens.targets[3] = -2;
  EXPECT_EQ(batch_error(),
            "target -2 is out of range (the model's vocabulary has 37); check the data and the vocabulary");
  tokens.targets.pop_back();
  EXPECT_EQ(batch_error(), "a batch of 2 sequences has 16 tokens and 15 targets (all must be of one length)");
  tokens = TokenBatch(1, 513, 37);
  EXPECT_EQ(batch_error(),
            "a sequence of 513 tokens is too long (the model has 512 positions); cut it, or give the model more");
}

/// As transformers writes it (modeling_rope_utils.py, _compute_llama3_parameters): by wavelengths, case by case.
double frequency_of_llama3(double frequency, const RopeScaling& by) {
  const double wavelength = 2 * std::numbers::pi / frequency, original = static_cast<double>(by.original_positions);
  if (wavelength < original / by.high_freq_factor) return frequency;
  if (wavelength > original / by.low_freq_factor) return frequency / by.factor;
  const double smooth = (original / wavelength - by.low_freq_factor) / (by.high_freq_factor - by.low_freq_factor);
  return (1 - smooth) * frequency / by.factor + smooth * frequency;
}

TEST(Rotations, OfLlama3) {
  const std::int64_t head_dim = 64, positions = 300;
  for (const RopeScaling& scaling :
       {RopeScaling{},
        RopeScaling{.factor = 32, .low_freq_factor = 1.5, .high_freq_factor = 9, .original_positions = 100}}) {
    LlamaSettings settings{.dim = head_dim, .heads = 1, .rope_theta = 5e5};
    Rotations plain(rotation_steps(settings));
    settings.rope_scaling = scaling;
    Rotations scaled(rotation_steps(settings));
    plain.need(positions);
    scaled.need(positions);
    int kept = 0, divided = 0, between = 0;
    for (std::int64_t i = 0; i < head_dim / 2; ++i) {
      const double frequency = std::pow(5e5, -2.0 * static_cast<double>(i) / static_cast<double>(head_dim));
      const double want = frequency_of_llama3(frequency, scaling);
      ++(want == frequency ? kept : want == frequency / scaling.factor ? divided : between);
      for (std::int64_t position = 0; position < positions; ++position) {
        const auto at = static_cast<std::size_t>(position * head_dim / 2 + i);
        const double angle = static_cast<double>(position) * want;
        ASSERT_NEAR(scaled.cosine()[at], std::cos(angle), 1e-6) << i << ' ' << position;
        ASSERT_NEAR(scaled.sine()[at], std::sin(angle), 1e-6) << i << ' ' << position;
        if (want == frequency) {
          ASSERT_EQ(scaled.sine()[at], plain.sine()[at]);
        }
      }
    }
    EXPECT_GT(kept, 0);
    EXPECT_GT(divided, 0);
    EXPECT_GT(between, 0);
  }
}

/// Reading token by token turns as the whole pass does.
TEST(Rotations, OfLlama3InTheDecoder) {
  LlamaSettings settings = llama_preset("tiny");
  settings.rope_scaling = RopeScaling{.original_positions = 32};
  BoundLlama scaled(settings);
  scaled.spread();
  const TokenBatch tokens(1, 40, 256);
  LlamaDecoder decoder(scaled.model);
  std::span<const float> got;
  for (const std::int32_t token : tokens.tokens) got = decoder.read(token);
  EXPECT_LT(testing::relative_difference(got, scaled.model.next_logits(tokens.tokens, 39)), 1e-5);
}

TEST(Rotations, ScalingsThatMakeNone) {
  const auto error = [](const RopeScaling& scaling) {
    LlamaSettings settings = llama_preset("tiny");
    settings.rope_scaling = scaling;
    return error_of([&] { Llama{settings}; });
  };
  EXPECT_EQ(error({}), "no error");
  for (const RopeScaling& bad : {RopeScaling{.factor = 0}, RopeScaling{.low_freq_factor = 4},
                                 RopeScaling{.low_freq_factor = -1}, RopeScaling{.original_positions = 0}}) {
    EXPECT_EQ(error(bad).substr(0, 35), "a llama's rope_scaling cannot have ");
  }
}

}  // namespace
}  // namespace kolo::models
