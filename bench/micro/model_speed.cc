// Times one training step's forward and backward pass of a model, on one thread, against the rate of matrix products in
// the same run:
//
//     model-speed [--model llama|cnn|mlp] [--preset NAME] [--precision f32|bf16|f16] [--batch N] [--seq N]
//                 [--recompute] [--loader SHARE] [--seconds S]
//
// Passes and products take turns, about a second each; medians are printed. FLOPs are those that the model's row in
// models/registry.h counts; the products' rate is that of the best of some sgemm shapes.

#include <fmt/format.h>

#include <algorithm>
#include <boost/program_options.hpp>
#include <chrono>
#include <cstdint>
#include <iostream>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "models/compute/buffer.h"
#include "models/compute/peak.h"
#include "models/compute/random.h"
#include "models/data/prefetcher.h"
#include "models/registry.h"

namespace {

namespace po = boost::program_options;
using kolo::models::AlignedFloats;
using kolo::models::Batch;
using kolo::models::Random;
using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

double median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

/// Calls per second of `call`, from a block of about `seconds`.
template <class Call>
double rate_of(double seconds, Call call) {
  const auto start = Clock::now();
  int calls = 0;
  do {
    call();
    ++calls;
  } while (seconds_since(start) < seconds);
  return calls / seconds_since(start);
}

/// A model with storage, and a batch of random examples.
class Job {
 public:
  Job(const std::string& name, const kolo::models::ModelSettings& settings, std::int64_t batch, std::int64_t sequence)
      : model_(kolo::models::make_model(name, settings)),
        values_(static_cast<std::size_t>(value_elements(*model_))),
        gradients_(static_cast<std::size_t>(gradient_elements(*model_))) {
    model_->bind(kolo::view(std::span(values_)), kolo::view(std::span(gradients_)));
    model_->initialise(1);
    Random random(1);
    const bool llama = name == "llama";
    const auto classes = static_cast<std::uint64_t>(llama ? settings.llama.vocabulary : 10);
    for (std::int64_t i = 0; i < batch * (llama ? sequence : 1); ++i) {
      targets_.push_back(static_cast<std::int32_t>(random.below(classes)));
      if (llama) tokens_.push_back(static_cast<std::int32_t>(random.below(classes)));
    }
    for (std::int64_t i = 0; i < (llama ? 0 : batch * 784); ++i) inputs_.push_back(random.uniform());
    batch_ = {.examples = batch, .inputs = inputs_, .tokens = tokens_, .targets = targets_};
  }

  void pass() {
    model_->forward_backward(batch_, [](std::size_t) {});
  }
  double items() const { return static_cast<double>(targets_.size()); }
  const kolo::models::Model& model() const { return *model_; }

 private:
  std::unique_ptr<kolo::models::Model> model_;
  AlignedFloats values_, gradients_;
  AlignedFloats inputs_;
  std::vector<std::int32_t> tokens_, targets_;
  Batch batch_;
};

/// Seconds that `passes` passes take, each waiting for a batch whose loader sleeps.
double seconds_with_loader(Job& job, int passes, double sleep) {
  kolo::models::Prefetcher loader(
      [sleep](std::int64_t, kolo::models::BatchStorage&) {
        std::this_thread::sleep_for(std::chrono::duration<double>(sleep));
      },
      0, passes + 1);
  loader.next();
  const auto start = Clock::now();
  for (int pass = 0; pass < passes; ++pass) {
    job.pass();
    loader.next();
  }
  return seconds_since(start);
}

/// The cost of a loader that sleeps for a share of a step: runs with and without it take turns.
void print_loader_cost(Job& job, double share, double seconds) {
  const double pass = seconds_with_loader(job, 5, 0) / 5;
  const int passes = std::max(10, static_cast<int>(seconds / 10 / pass));
  std::vector<double> with, without;
  for (int turn = 0; turn < 5; ++turn) {
    without.push_back(seconds_with_loader(job, passes, 0));
    with.push_back(seconds_with_loader(job, passes, share * pass));
  }
  fmt::print("a loader that sleeps for {:.0f} % of a step costs {:.1f} %\n", 100 * share,
             100 * (median(with) / median(without) - 1));
}

int measure(const po::variables_map& flags) {
  const auto name = flags["model"].as<std::string>();
  kolo::models::ModelSettings settings{
      .precision = kolo::models::precisions.parse(flags["precision"].as<std::string>()),
      .recompute = flags.contains("recompute")};
  settings.inputs = 784;  // of images
  settings.classes = 10;
  settings.llama = kolo::models::llama_preset(flags["preset"].as<std::string>());
  const auto given = flags["seq"].as<std::int64_t>();
  const std::int64_t sequence = given > 0 ? given : settings.llama.positions;
  settings.llama.positions = std::max(sequence, settings.llama.positions);
  const auto batch = flags["batch"].as<std::int64_t>();
  Job job(name, settings, batch > 0 ? batch : name == "llama" ? 8 : 64, sequence);
  for (int warm = 0; warm < 3; ++warm) job.pass();

  const auto products_of = kolo::models::make_compute();
  std::vector<double> items, products;
  const double seconds = flags["seconds"].as<double>() / 10;
  for (int turn = 0; turn < 5; ++turn) {
    products.push_back(kolo::models::peak_flops(*products_of, kolo::DType::f32, seconds));
    items.push_back(rate_of(seconds, [&] { job.pass(); }) * job.items());
  }
  const double speed = median(items), sgemm = median(products);
  fmt::print("{} {}  {:.0f} items/s  sgemm {:.1f} GFLOP/s  activations {:.1f} MB", name,
             flags["precision"].as<std::string>(), speed, sgemm * 1e-9,
             static_cast<double>(job.model().activation_bytes()) * 1e-6);
  if (const auto flops_of = kolo::models::kind_of(name).flops) {
    const double items_each = name == "llama" ? static_cast<double>(sequence) : 1;
    const double flops = speed / items_each * flops_of(job.model(), settings, sequence);
    fmt::print("  {:.1f} GFLOP/s, {:.1f} % of sgemm", flops * 1e-9, 100 * flops / sgemm);
  }
  fmt::print("\n");
  const double share = flags["loader"].as<double>();
  if (share > 0) print_loader_cost(job, share, flags["seconds"].as<double>());
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  po::options_description options("model-speed: passes of a model per second, on one thread");
  options.add_options()("help", "print this text")("model", po::value<std::string>()->default_value("llama"))(
      "preset", po::value<std::string>()->default_value("small"), "of a llama")(
      "precision", po::value<std::string>()->default_value("f32"))("batch", po::value<std::int64_t>()->default_value(0),
                                                                   "0: 8 sequences, or 64 images")(
      "seq", po::value<std::int64_t>()->default_value(0), "0: the preset's positions")(
      "loader", po::value<double>()->default_value(0),
      "also: what a loader costs that sleeps for this share of a step")(
      "recompute", "a llama keeps only the inputs of its layers")("seconds", po::value<double>()->default_value(10));
  try {
    po::variables_map flags;
    po::store(po::parse_command_line(argc, argv, options), flags);
    if (flags.contains("help")) {
      std::cout << options;
      return 0;
    }
    return measure(flags);
  } catch (const std::exception& error) {
    std::cerr << "model-speed: " << error.what() << "\n";
    return 2;
  }
}
