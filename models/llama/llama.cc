#include "models/llama/llama.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "models/compute/product.h"
#include "models/compute/random.h"
#include "models/llama/block.h"
#include "models/llama/head.h"
#include "models/llama/shape.h"
#include "models/util/error.h"

namespace kolo::models {

struct Llama::Parts {
  Parts(const LlamaSettings& given, Precision of_products, bool repeats)
      : settings(given),
        precision(of_products),
        recompute(repeats),
        shape(given),
        parameters(llama_parameters(given)),
        rotations(shape.head_dim, given.rope_theta, given.rope_scaling),
        block(shape, precision, recompute, rotations, scratch),
        head(shape, precision),
        inputs(static_cast<std::size_t>(shape.layers)),
        kept(recompute ? 1 : static_cast<std::size_t>(shape.layers)) {
    std::int64_t at = 0;
    for (const Parameter& parameter : parameters) {
      offsets.push_back(at);
      at += parameter.shape.elements();
    }
  }

  std::size_t norm_index() const { return layer_parameter(shape.layers, LayerPart::q); }
  std::size_t head_index() const { return settings.tied_head ? 0 : norm_index() + 1; }
  const float* value(std::size_t index) const { return parameters[index].value.data(); }
  const MatmulItem* matrix(std::size_t index) const { return item_at(matrices, precision, offsets[index]); }
  BlockKept& kept_of(std::int64_t layer) { return kept[recompute ? 0 : static_cast<std::size_t>(layer)]; }
  float* input(std::int64_t layer) const { return inputs[static_cast<std::size_t>(layer)].floats(); }

  Sequences check(const Batch& batch, bool with_targets) const;
  void round_weights();
  BlockWeights weights(std::int64_t layer) const;
  void embed(std::span<const std::int32_t> tokens);
  LlamaHead::Input forward(const Batch& batch, const Sequences& sequences);
  void backward(const Batch& batch, const Sequences& sequences, const GradReady& grad_ready, const Pass& pass,
                const Descent& descent);
  void embed_backward(std::span<const std::int32_t> tokens, const float* d, bool add);

  const LlamaSettings settings;
  const Precision precision;
  const bool recompute;
  const LlamaShape shape;
  std::vector<Parameter> parameters;
  std::vector<std::int64_t> offsets;  // of parameters in the storage of all
  Rotations rotations;
  BlockScratch scratch;
  LlamaBlock block;
  LlamaHead head;
  std::vector<Buffer> inputs;            // of each layer
  std::vector<BlockKept> kept;           // of each layer; one that all share if passes are repeated
  const MatmulItem* matrices = nullptr;  // all values, in the precision of products
  Buffer weights_memory;
  Buffer d, d_rounded;  // the gradient of the residual stream
};

Llama::Llama(const LlamaSettings& settings, Precision precision, bool recompute)
    : parts_(std::make_unique<Parts>(settings, precision, recompute)) {}

Llama::~Llama() = default;

std::span<const Parameter> Llama::parameters() const {
  return parts_->parameters;
}

const LlamaSettings& Llama::settings() const {
  return parts_->settings;
}

void Llama::bind(std::span<float> values, std::span<float> gradients) {
  bind_parameters(parts_->parameters, values, gradients);
}

void Llama::initialise(std::uint64_t seed) {
  const std::int64_t layers = parts_->shape.layers;
  const double usual = 0.02, residual = usual / std::sqrt(2.0 * static_cast<double>(layers));
  for (std::size_t i = 0; i < parts_->parameters.size(); ++i) {
    const Parameter& parameter = parts_->parameters[i];
    if (parameter.shape.dims() == 1) {
      std::ranges::fill(parameter.value, 1.0f);
      continue;
    }
    const bool adds_to_stream =
        parameter.name.ends_with("o_proj.weight") || parameter.name.ends_with("down_proj.weight");
    const auto deviation = static_cast<float>(adds_to_stream ? residual : usual);
    Random random(seed, i);
    for (float& value : parameter.value) value = deviation * random.normal();
  }
}

Sequences Llama::Parts::check(const Batch& batch, bool with_targets) const {
  if (parameters.front().value.empty()) throw ModelError("the model has no storage; call bind() before the first pass");
  const std::size_t tokens = batch.tokens.size();
  const std::int64_t positions = batch.examples == 0 ? 0 : static_cast<std::int64_t>(tokens) / batch.examples;
  const bool fits = positions * batch.examples == static_cast<std::int64_t>(tokens) &&
                    (!with_targets || batch.targets.size() == tokens);
  if (!fits || (batch.examples > 0 && tokens == 0)) {
    throw ModelError(fmt::format("a batch of {} sequences has {} tokens and {} targets (all must be of one length)",
                                 batch.examples, tokens, batch.targets.size()));
  }
  if (positions > settings.positions) {
    throw ModelError(
        fmt::format("a sequence of {} tokens is too long (the model has {} positions); cut it, or give the "
                    "model more",
                    positions, settings.positions));
  }
  const auto check_range = [&](std::span<const std::int32_t> numbers, std::int32_t lowest, std::string_view what) {
    const auto wrong = std::ranges::find_if(
        numbers, [&](std::int32_t number) { return number < lowest || number >= settings.vocabulary; });
    if (wrong == numbers.end()) return;
    throw ModelError(fmt::format("{} {} is out of range (the model's vocabulary has {}); check the data and --vocab",
                                 what, *wrong, settings.vocabulary));
  };
  check_range(batch.tokens, 0, "token");
  if (with_targets) check_range(batch.targets, -1, "target");
  return {.count = batch.examples, .positions = positions};
}

/// Weights change between passes; rounding all of them costs little beside a pass.
void Llama::Parts::round_weights() {
  const std::int64_t count = offsets.back() + parameters.back().shape.elements();
  matrices = rounded(precision, count, value(0), weights_memory, "weights in 16 bits");
}

BlockWeights Llama::Parts::weights(std::int64_t layer) const {
  const auto index = [&](LayerPart part) { return layer_parameter(layer, part); };
  return {.qkv = matrix(index(LayerPart::q)),
          .o = matrix(index(LayerPart::o)),
          .gate_up = matrix(index(LayerPart::gate)),
          .down = matrix(index(LayerPart::down)),
          .norm1 = value(index(LayerPart::norm1)),
          .norm2 = value(index(LayerPart::norm2))};
}

void Llama::Parts::embed(std::span<const std::int32_t> tokens) {
  float* out = input(0);
  for (const std::int32_t token : tokens) {
    std::copy_n(value(0) + token * shape.dim, shape.dim, out);
    out += shape.dim;
  }
}

LlamaHead::Input Llama::Parts::forward(const Batch& batch, const Sequences& sequences) {
  const std::int64_t rows = sequences.rows();
  round_weights();
  rotations.need(sequences.positions);
  for (Buffer& buffer : inputs) buffer.floats(rows * shape.dim, "inputs of the layers");
  embed(batch.tokens);
  for (std::int64_t layer = 0; layer < shape.layers; ++layer) {
    const float* const below = layer == 0 ? input(0) : kept_of(layer - 1).mid.floats();
    const float* const more = layer == 0 ? nullptr : scratch.narrow.floats();
    block.forward(sequences, weights(layer), below, more, input(layer), kept_of(layer));
  }
  return {.rows = rows,
          .below = kept_of(shape.layers - 1).mid.floats(),
          .more = scratch.narrow.floats(),
          .norm = value(norm_index()),
          .head = matrix(head_index()),
          .targets = batch.targets};
}

std::vector<std::size_t> Llama::backward_order() const {
  using enum LayerPart;
  std::vector<std::size_t> order;
  if (!parts_->settings.tied_head) order.push_back(parts_->head_index());
  order.push_back(parts_->norm_index());
  for (std::int64_t layer = parts_->shape.layers; layer-- > 0;) {
    for (const LayerPart part : {down, up, gate, norm2, o, v, k, q, norm1})
      order.push_back(layer_parameter(layer, part));
  }
  order.push_back(0);
  return order;
}

BatchResult Llama::forward_backward(const Batch& batch, const GradReady& grad_ready, const Pass& pass) {
  Parts& parts = *parts_;
  const Sequences sequences = parts.check(batch, true);
  if (sequences.count == 0) {
    no_gradients(*this, grad_ready, pass);
    return {};
  }
  const LlamaHead::Input top = parts.forward(batch, sequences);
  if (!pass.add) {  // norms' gradients are summed row by row
    for (const Parameter& parameter : parts.parameters) {
      if (parameter.shape.dims() == 1) std::ranges::fill(parameter.gradient, 0.0f);
    }
  }
  const std::int64_t numbers = top.rows * parts.shape.dim;
  Descent descent{.d = parts.d.floats(numbers, "the residual stream's gradient")};
  descent.d_rounded = parts.precision == Precision::f32
                          ? parts.d.items()
                          : parts.d_rounded.items(parts.precision, numbers, "the residual stream's gradient");
  const BatchResult result =
      parts.head.loss_and_gradients(top, {.d_head = parts.parameters[parts.head_index()].gradient.data(),
                                          .d_norm = parts.parameters[parts.norm_index()].gradient.data(),
                                          .descent = descent,
                                          .add = pass.add,
                                          .scale = pass.scale});
  parts.backward(batch, sequences, grad_ready, pass, descent);
  return result;
}

/// From the gradients that the head left to the embedding. What the last layer kept is still there where passes are
/// repeated.
void Llama::Parts::backward(const Batch& batch, const Sequences& sequences, const GradReady& grad_ready,
                            const Pass& pass, const Descent& descent) {
  if (!settings.tied_head) grad_ready(head_index());
  grad_ready(norm_index());
  for (std::int64_t layer = shape.layers; layer-- > 0;) {
    const BlockWeights of_layer = weights(layer);
    if (recompute && layer + 1 < shape.layers) block.repeat(sequences, of_layer, input(layer), kept_of(layer));
    const LlamaBlock::Gradients to{
        .gradient = [&](LayerPart part) { return parameters[layer_parameter(layer, part)].gradient.data(); },
        .ready = [&](LayerPart part) { grad_ready(layer_parameter(layer, part)); },
        .add = pass.add};
    block.backward(sequences, of_layer, input(layer), kept_of(layer), descent, to);
  }
  embed_backward(batch.tokens, descent.d, pass.add || settings.tied_head);
  grad_ready(0);
}

void Llama::Parts::embed_backward(std::span<const std::int32_t> tokens, const float* d, bool add) {
  const std::span<float> gradient = parameters[0].gradient;
  if (!add) std::ranges::fill(gradient, 0.0f);
  for (const std::int32_t token : tokens) {
    float* const row = gradient.data() + token * shape.dim;
    for (std::int64_t i = 0; i < shape.dim; ++i) row[i] += d[i];
    d += shape.dim;
  }
}

BatchResult Llama::evaluate(const Batch& batch) {
  const Sequences sequences = parts_->check(batch, true);
  if (sequences.count == 0) return {};
  return parts_->head.loss(parts_->forward(batch, sequences));
}

std::span<const float> Llama::logits(const Batch& batch) {
  const Sequences sequences = parts_->check(batch, false);
  if (sequences.count == 0) return {};
  const LlamaHead::Input top = parts_->forward(batch, sequences);
  return {parts_->head.logits(top, 0, top.rows), static_cast<std::size_t>(top.rows * parts_->shape.vocabulary)};
}

std::span<const float> Llama::next_logits(std::span<const std::int32_t> tokens, std::int64_t position) {
  const Batch batch{.examples = 1, .tokens = tokens};
  const LlamaHead::Input top = parts_->forward(batch, parts_->check(batch, false));
  return {parts_->head.logits(top, position, 1), static_cast<std::size_t>(parts_->shape.vocabulary)};
}

std::size_t Llama::activation_bytes() const {
  const Parts& parts = *parts_;
  std::size_t sum = parts.scratch.bytes() + parts.head.bytes() + parts.d.bytes() + parts.d_rounded.bytes();
  for (const Buffer& buffer : parts.inputs) sum += buffer.bytes();
  for (const BlockKept& kept : parts.kept) sum += kept.bytes();
  return sum;
}

}  // namespace kolo::models
