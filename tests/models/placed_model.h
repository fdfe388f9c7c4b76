#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "models/compute/buffer.h"
#include "models/optim/optimizer.h"
#include "models/optim/update.h"
#include "models/registry.h"
#include "tests/models/llama/llama_testing.h"
#include "tests/models/models_testing.h"

namespace kolo::testing {

/// A model with storage where its passes are computed.
class PlacedModel {
 public:
  /// With the first values of a training.
  PlacedModel(const std::string& name, models::ModelSettings settings, Device device)
      : PlacedModel(name, std::move(settings), device, [](models::Model& made) { made.initialise(1); }) {}
  /// give_values(model)
  template <class GiveValues>
  PlacedModel(const std::string& name, models::ModelSettings settings, Device device, GiveValues give_values) {
    settings.device = device;
    place(models::make_model(name, settings), give_values);
  }
  explicit PlacedModel(std::unique_ptr<models::Model> model) {
    place(std::move(model), [](models::Model& made) { made.initialise(1); });
  }
  PlacedModel(const PlacedModel&) = delete;
  PlacedModel& operator=(const PlacedModel&) = delete;

  models::Model& model() { return *model_; }

  /// Trains for some steps, each of two micro-batches, and evaluates. Calls took_loss(loss) for each micro-batch and at
  /// the end, and took_step(step, norm) after each step.
  template <class Loss, class Step>
  void train(const std::vector<models::Batch>& batches, std::string_view optimizer, std::optional<double> clip,
             int steps, Loss took_loss, Step took_step) {
    const auto chosen = models::make_optimizer({.name = std::string(optimizer)}, model_->parameters());
    models::Update update(*chosen, model_->parameters(), clip, nullptr);
    for (int step = 0; step < steps; ++step) {
      update.begin(1e-2, 0.1);
      for (const bool add : {false, true}) {
        std::vector<std::size_t> ready;  // what arrives may be updated, which is too early for the pass
        const auto note = [&](std::size_t index) { ready.push_back(index); };
        took_loss(model_->forward_backward(batches[add ? 1 : 0], note, {.add = add}).loss_sum);
        for (const std::size_t index : ready) {
          if (add) update.arrived(index);
        }
      }
      models::UpdateResult result = update.finish();
      if (result.late) result = update.late_result();
      took_step(step, result.norm.value());
    }
    took_loss(model_->evaluate(batches[0]).loss_sum);
  }

 private:
  template <class GiveValues>
  void place(std::unique_ptr<models::Model> model, GiveValues give_values) {
    model_ = std::move(model);
    const Shape of_values{models::value_elements(*model_)}, of_gradients{models::gradient_elements(*model_)};
    model_->bind(values_.make(model_->compute(), DType::f32, of_values, "values"),
                 gradients_.make(model_->compute(), DType::f32, of_gradients, "gradients"));
    give_values(*model_);
  }

  std::unique_ptr<models::Model> model_;
  models::Buffer values_, gradients_;  // whose memory is the model's Compute's: declared behind it, gone before it
};

/// A small model of a kind.
struct SmallModel {
  std::string name, model;
  models::ModelSettings settings;
};

/// One of each kind and way.
inline std::vector<SmallModel> small_models() {
  models::LlamaSettings tied = models::llama_preset("tiny");
  tied.tied_head = true;
  const models::CnnSettings cnn{.channels = 2, .height = 9, .width = 11, .filters = 6, .dense = 7, .classes = 3};
  models::CnnSettings with_norm = cnn;
  with_norm.batch_norm = true;
  return {{"mlp", "mlp", {.sizes = {198, 13, 3}}},
          {"cnn", "cnn", {.cnn = cnn}},
          {"cnn_with_norm", "cnn", {.cnn = with_norm}},
          {"llama", "llama", {.llama = models::llama_preset("tiny")}},
          {"llama_tied", "llama", {.llama = tied, .recompute = true}}};
}

/// Tests of each of them, with two batches for it.
class SmallModels : public ::testing::TestWithParam<SmallModel> {
 protected:
  std::vector<models::Batch> batches() const {
    if (GetParam().model == "llama") return {one_.batch(), other_.batch()};
    return {examples_.batch(0, 5), examples_.batch(5, 4)};
  }

 private:
  RandomExamples examples_{9, 198, 3};
  TokenBatch one_{2, 20, 256}, other_{1, 33, 256};
};

}  // namespace kolo::testing
