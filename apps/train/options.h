#pragma once

#include <cstdint>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include "apps/train/agreement.h"
#include "models/data/sampler.h"

namespace kolo::train {

/// A command line or configuration file that cannot be used. `what()` is one line: *problem; what to try*.
class UsageError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// What one run is to do. Defaults that depend on the model are filled in.
struct Options {
  std::string model = "mlp";
  std::vector<std::int64_t> sizes;  ///< empty: those of `init`, or the model's default
  std::string init;                 ///< file of parameters to start from; empty: random ones
  std::string data;                 ///< folder; empty: rendered digits
  models::Order order = models::Order::shuffled;
  std::optional<std::int64_t>
      epochs;  ///< at least one of epochs and steps is set; the first to be reached ends the run
  std::optional<std::int64_t> steps;
  std::int64_t batch = 0;    ///< examples per rank and step
  bool batch_given = false;  ///< somebody chose it; else it is the model's default
  std::string optimizer = "sgd";
  double lr = 0;
  double momentum = 0;
  std::uint64_t seed = 1;
  std::string save;                        ///< file for the trained parameters; empty: none
  std::string log;                         ///< file for one JSON object per step and evaluation; empty: none
  std::optional<std::int64_t> eval_every;  ///< steps; nothing: after each epoch
};

/// Reads the command line, and the file that its --config names; where both say something, the command line wins.
/// Errors: UsageError that names the flag, or the file and the key; models::ModelError for an unknown model or order.
Options parse_options(int argc, const char* const* argv);

/// The text that --help or --version ask for, if the command line has one of them.
std::optional<std::string> requested_text(int argc, const char* const* argv);

/// What must be equal on all ranks.
std::vector<Agreed> agreed_part(const Options& options);

}  // namespace kolo::train
