// Whole models: passes of small ones beside the host, and a Llama beside numbers made with HF transformers.

#include <fmt/format.h>

#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "models/checkpoint/safetensors.h"
#include "models/llama/pretrained.h"
#include "models/registry.h"
#include "tests/gpu/calls.h"
#include "tests/gpu/pairs.h"
#include "tests/gpu/smoke.h"
#include "tests/support/environment.h"

namespace kolo::smoke {
namespace {

constexpr Device the_gpu{DeviceKind::cuda, 0};

/// A model with storage where its passes are computed.
class Placed {
 public:
  Placed(const std::string& name, ModelSettings settings, Device device) {
    settings.device = device;
    model_ = make_model(name, settings);
    model_->bind(values_.make(model_->compute(), DType::f32, {value_elements(*model_)}, "values"),
                 gradients_.make(model_->compute(), DType::f32, {gradient_elements(*model_)}, "gradients"));
    model_->initialise(1);
  }
  Model& model() { return *model_; }
  BatchResult pass(const Batch& batch) {
    return model_->forward_backward(batch, [](std::size_t) {});
  }
  std::vector<float> gradient(const Parameter& parameter) {
    const OnHost host(model_->compute(), parameter.gradient);
    return {host.floats().begin(), host.floats().end()};
  }

 private:
  std::unique_ptr<Model> model_;
  Buffer values_, gradients_;  // of the model's Compute
};

/// The 2-norm of a - b over that of b.
double relative_difference(const std::vector<float>& a, const std::vector<float>& b) {
  double difference = 0, norm = 1e-60;
  for (std::size_t i = 0; i < b.size(); ++i) {
    const double x = static_cast<double>(a[i]), y = static_cast<double>(b[i]);
    difference += (x - y) * (x - y);
    norm += y * y;
  }
  return std::sqrt(difference / norm);
}

struct Small {
  std::string name;
  ModelSettings settings;
};

void check_small(Line& line) {
  const CnnSettings cnn{.channels = 2, .height = 9, .width = 11, .filters = 6, .dense = 7, .classes = 3};
  CnnSettings with_norm = cnn;
  with_norm.batch_norm = true;
  LlamaSettings tied = llama_preset("tiny");
  tied.tied_head = true;
  Random random(5);
  std::vector<float> inputs;
  std::vector<std::int32_t> classes, tokens, next;
  for (int i = 0; i < 5 * 198; ++i) inputs.push_back(random.uniform());
  for (int i = 0; i < 5; ++i) classes.push_back(static_cast<std::int32_t>(random.below(3)));
  for (int i = 0; i < 2 * 33; ++i) {
    tokens.push_back(static_cast<std::int32_t>(random.below(256)));
    next.push_back(static_cast<std::int32_t>(random.below(256)));
  }
  const Batch images{.examples = 5, .inputs = inputs, .targets = classes};
  const Batch text{.examples = 2, .tokens = tokens, .targets = next};
  for (const auto& [name, settings] :
       {Small{"mlp", {.sizes = {198, 13, 3}}}, Small{"cnn", {.cnn = cnn}}, Small{"cnn", {.cnn = with_norm}},
        Small{"llama", {.llama = tied}}, Small{"llama", {.llama = llama_preset("tiny")}}}) {
    const Batch& batch = name == "llama" ? text : images;
    for (const Precision precision : {Precision::f32, Precision::bf16}) {
      ModelSettings all = settings;
      all.precision = precision;
      Placed host(name, all, {}), device(name, all, the_gpu);
      const double expected = host.pass(batch).loss_sum, found = device.pass(batch).loss_sum;
      const bool exact = precision == Precision::f32;
      require(std::abs(found - expected) <= (exact ? 1e-5 : 1e-3) * std::abs(expected),
              fmt::format("the loss of {} in {} is {} and should be {}", name, to_string(precision), found, expected));
      double largest = 0;
      const auto parameters = device.model().parameters();
      for (std::size_t i = 0; i < parameters.size(); ++i) {
        if (!parameters[i].trained) continue;
        const double apart =
            relative_difference(device.gradient(parameters[i]), host.gradient(host.model().parameters()[i]));
        largest = std::max(largest, apart);
        require(apart <= (exact ? 2e-5 : 5e-2), fmt::format("the gradient of {}'s {} in {} differs by {:.2g}", name,
                                                            parameters[i].name, to_string(precision), apart));
      }
      line.time([&] { (void)device.pass(batch); });
      line.note(fmt::format("{} in {} differs by {:.1g}, takes {:.0f} us", name, to_string(precision), largest,
                            line.seconds() * 1e6));
    }
  }
}

std::filesystem::path golden_folder() {
  const std::filesystem::path beside = "shared/golden/llama", shared = testing::shared_dir();
  const auto golden = shared.empty() ? beside : shared / "golden/llama";
  if (!std::filesystem::exists(golden / "grads.safetensors")) {
    throw Skipped(golden.string() + "/grads.safetensors is not here (KOLO_SHARED_DIR)");
  }
  return golden;
}

void check_golden(Line& line) {
  constexpr std::int64_t sequences = 4, positions = 32;
  constexpr std::size_t rows = sequences * positions;
  const std::filesystem::path folder = golden_folder();
  std::ifstream file(folder / "tokens.u16", std::ios::binary);
  const std::string bytes{std::istreambuf_iterator<char>(file), {}};
  std::vector<std::uint16_t> stream(bytes.size() / 2);
  require(stream.size() > rows, "tokens.u16 is too short");
  std::memcpy(stream.data(), bytes.data(), stream.size() * 2);
  const std::vector<std::int32_t> tokens(stream.begin(), stream.begin() + rows);
  const std::vector<std::int32_t> targets(stream.begin() + 1, stream.begin() + rows + 1);
  const Batch batch{.examples = sequences, .tokens = tokens, .targets = targets};

  const Pretrained pretrained(folder);
  const SafetensorsFile stored(folder / "grads.safetensors");
  ModelSettings settings;
  pretrained.settings(settings);
  Placed llama("llama", settings, the_gpu);
  (void)pretrained.load(llama.model());
  const BatchResult result = llama.pass(batch);
  require(result.targets == std::ssize(targets), "not all targets counted");
  double largest = 0;
  for (const Parameter& parameter : llama.model().parameters()) {
    std::vector<float> gradient = llama.gradient(parameter), expected(gradient.size());
    const StoredTensor* const tensor = stored.find(parameter.name);
    require(tensor != nullptr, "the file has no gradient of " + parameter.name);
    stored.read(*tensor, expected);
    for (float& value : gradient) value /= static_cast<float>(result.targets);
    const double apart = relative_difference(gradient, expected);
    largest = std::max(largest, apart);
    require(apart <= 1e-5, fmt::format("the gradient of {} differs by {:.2g}", parameter.name, apart));
  }
  line.time([&] { (void)llama.pass(batch); });
  line.note(fmt::format("gradients differ by {:.1g} at most", largest));
}

}  // namespace

void check_models(Checks& checks) {
  checks.run("passes of mlp, cnn and llama beside the host", check_small, 3);
  checks.run("a step of a Llama beside HF transformers' numbers", check_golden);
}

}  // namespace kolo::smoke
