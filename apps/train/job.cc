#include "apps/train/job.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <limits>
#include <optional>
#include <string_view>

#include "models/checkpoint.h"
#include "models/data/digits_dir.h"
#include "models/data/rendered.h"
#include "models/registry.h"

namespace kolo::train {
namespace {

/// The file to start from, if there is one; its shapes become the sizes.
std::optional<models::SafetensorsFile> first_parameters(Options& options) {
  if (options.init.empty()) return std::nullopt;
  models::SafetensorsFile file(options.init);
  const auto sizes = models::mlp_sizes(file);
  if (!options.sizes.empty() && options.sizes != sizes) {
    throw UsageError(fmt::format("--sizes {} contradicts --init {} (which holds {}); leave --sizes out",
                                 fmt::join(options.sizes, ","), options.init, fmt::join(sizes, ",")));
  }
  options.sizes = sizes;
  return file;
}

models::DataSplit read_data(const Options& options) {
  auto data = options.data.empty() ? models::render_digits() : models::read_digits(options.data);
  if (options.batch_given && options.batch > data.train.count()) {
    throw UsageError(fmt::format("--batch is {}, but there are only {} examples to train on; give at most as many",
                                 options.batch, data.train.count()));
  }
  return data;
}

std::int64_t last_step_of(const Options& options, std::int64_t steps_per_epoch) {
  constexpr auto no_limit = std::numeric_limits<std::int64_t>::max();
  return std::min(options.steps.value_or(no_limit), options.epochs ? *options.epochs * steps_per_epoch : no_limit);
}

/// FNV-1a over 64 bits.
class Fingerprint {
 public:
  template <class Element>
  void add(const std::vector<Element>& elements) {
    add(std::string_view(reinterpret_cast<const char*>(elements.data()), elements.size() * sizeof(Element)));
  }
  void add(std::string_view bytes) {
    for (char byte : bytes) state_ = (state_ ^ static_cast<unsigned char>(byte)) * 0x100000001b3;
  }
  std::uint64_t value() const { return state_; }

 private:
  std::uint64_t state_ = 0xcbf29ce484222325;
};

std::uint64_t checksum_of(const models::DataSplit& data) {
  Fingerprint fingerprint;
  for (const models::Dataset* set : {&data.train, &data.held_out}) {
    fingerprint.add(set->inputs);
    fingerprint.add(set->labels);
  }
  return fingerprint.value();
}

}  // namespace

Job::Job(const Options& options, int rank, int ranks)
    : options_(options),
      ranks_(ranks),
      data_(read_data(options)),
      sampler_({.examples = data_.train.count(),
                .batch = options.batch,
                .ranks = ranks,
                .rank = rank,
                .seed = options.seed,
                .order = options.order}),
      last_step_(last_step_of(options, sampler_.steps_per_epoch())) {
  const auto file = first_parameters(options_);
  model_ = models::make_model(
      options_.model, {.sizes = options_.sizes, .inputs = data_.train.input_size(), .classes = data_.train.classes});
  values_.resize(models::parameter_elements(*model_));
  gradients_.resize(values_.size());
  model_->bind(values_, gradients_);
  if (file) {
    models::load_parameters(*file, *model_);
  } else {
    model_->initialise(options_.seed);
  }
  optimizer_ =
      models::make_optimizer({.name = options_.optimizer, .momentum = options_.momentum}, model_->parameters());
}

std::vector<Agreed> Job::agreed() const {
  auto all = agreed_part(options_);
  all.push_back({"--data", fmt::format("checksum {:016x}, {}", checksum_of(data_), data_.description)});
  return all;
}

std::string Job::description() const {
  const std::string_view no_eval =
      data_.held_out.count() > 0 ? "" : "eval      none: the data are too few to hold any out\n";
  const std::string start = options_.init.empty() ? fmt::format("seed {}", options_.seed) : "from " + options_.init;
  return fmt::format(
      "model     {}, {} parameters, {}\n"
      "data      {}\n{}"
      "training  {}, lr {}, momentum {}, {} rank{} x batch {}, {} steps\n",
      options_.model, values_.size(), start, data_.description, no_eval, options_.optimizer, options_.lr, options_.momentum,
      ranks_, ranks_ == 1 ? "" : "s", options_.batch, last_step_);
}

}  // namespace kolo::train
