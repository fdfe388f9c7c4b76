// A program that trains a model of kolo::models over all ranks, and checks that it has learned: which of two numbers is
// the larger one. DataParallel knows tensors only, so any other model would do.

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <random>
#include <vector>

#include <kolo/kolo.h>

#include "models/mlp.h"
#include "models/optim/optimizer.h"

namespace {

using namespace kolo;

/// Parameters of a model, as tensors.
std::vector<TrainedTensor> tensors_of(const models::Model& model) {
  std::vector<TrainedTensor> tensors;
  for (const models::Parameter& parameter : model.parameters()) {
    tensors.push_back({parameter.name, parameter.value, parameter.gradient});
  }
  return tensors;
}

/// Returns the mean loss of the last step over all ranks.
double train(Session& session) {
  constexpr int steps = 200, examples = 32;
  models::Mlp model({2, 16, 2});
  std::vector<float> values(static_cast<std::size_t>(value_elements(model)));
  std::vector<float> gradients(static_cast<std::size_t>(gradient_elements(model)));
  model.bind(view(values), view(gradients));
  model.initialise(1);
  models::Sgd optimizer(model.parameters(), 0.9);
  DataParallel parallel(session, tensors_of(model), {.counts = true, .order = model.backward_order()});
  parallel.broadcast();

  std::mt19937 random(static_cast<unsigned>(session.rank()));  // each rank has examples of its own
  std::uniform_real_distribution<float> numbers(-1, 1);
  std::vector<float> inputs(2 * examples);
  std::vector<std::int32_t> targets(examples);
  double loss = 0;
  for (int step = 0; step < steps; ++step) {
    for (float& input : inputs) input = numbers(random);
    for (std::size_t i = 0; i < examples; ++i) targets[i] = inputs[2 * i] < inputs[2 * i + 1] ? 1 : 0;
    parallel.count(examples);
    loss =
        model
            .forward_backward({.examples = examples, .inputs = inputs, .targets = targets},
                              [&](std::size_t index) { parallel.ready(index); })  // travels while others are computed
            .loss_sum;
    parallel.finish();
    optimizer.step(0.05, parallel.gradient_scale());
  }
  session.all_reduce("loss", view_scalar(loss));
  return loss / parallel.counted();
}

}  // namespace

int main() {
  try {
    Session session;
    const double loss = train(session);
    if (!(loss < 0.2)) {
      std::fprintf(stderr, "embed_models: rank %d: the loss is still %g\n", session.rank(), loss);
      return EXIT_FAILURE;
    }
    std::printf("embed_models: rank %d of %d: the loss is %.3f\n", session.rank(), session.size(), loss);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "embed_models: %s\n", error.what());
    return EXIT_FAILURE;
  }
  return EXIT_SUCCESS;
}
