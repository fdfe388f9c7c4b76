#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include <kolo/device.h>

#include "apps/cli/agreement.h"
#include "apps/cli/flags.h"
#include "apps/cli/terminal.h"
#include "models/compute/precision.h"
#include "models/data/sampler.h"
#include "models/data/token_stream.h"
#include "models/optim/schedule.h"
#include "models/registry.h"

namespace kolo::train {

using cli::UsageError;

inline constexpr models::WordTable<DeviceKind, 2> device_kinds{"device", {"cpu", "cuda"}};

/// The options of a run, with the defaults of its model.
struct Options {
  std::string model{models::present_name("mlp")};
  std::string init;  ///< file or folder of parameters to start from; empty: random ones
  /// The flags of the model's kind (models/registry.h), and "preset", as they were given.
  std::map<std::string, cli::Given, std::less<>> model_flags;
  models::Precision precision = models::Precision::f32;
  DeviceKind device = DeviceKind::cpu;  ///< cuda: the GPU of each rank
  bool tf32 = false;

  std::string data;  ///< folder of digits, or file or folder of tokens; empty: what the program has itself
  std::string val;   ///< tokens held out; empty: the last tenth of `data`, or nothing if the order is sequential
  std::optional<models::TokenType> tokens;  ///< of files without a header; nothing: text
  std::string tokenizer;                    ///< file that text is encoded with; empty: that beside `init`, or bytes
  bool tokenizer_given = false;             ///< explicitly, if only as none: that of `init` does not count
  std::optional<std::int64_t> seq;          ///< tokens of a sequence; nothing: the model's positions
  models::Order order = models::Order::shuffled;
  bool augment = false;

  std::optional<std::int64_t>
      epochs;  ///< at least one of epochs and steps is set; the first to be reached ends the run
  std::optional<std::int64_t> steps;
  std::int64_t batch = 0;    ///< examples per rank and micro-batch
  bool batch_given = false;  ///< explicitly; else it is the model's default
  std::int64_t accumulate = 1;
  std::uint64_t seed = 1;
  models::Precision wire = models::Precision::f32;
  std::optional<std::int64_t> zero;  ///< ZeRO stage, 0 or 1; nothing: 1 within a node

  std::string optimizer;
  double lr = 0;
  double momentum = 0.9;
  double beta1 = 0.9;
  double beta2 = 0;
  double eps = 1e-8;
  double weight_decay = 0;
  models::Curve schedule = models::Curve::constant;
  std::int64_t warmup = 0;
  std::optional<double> min_lr;  ///< nothing: a tenth of lr
  double clip = 0;               ///< 0: not at all
  bool clip_given = false;       ///< explicitly
  bool scale_lr = false;

  std::string checkpoint;             ///< folder; empty: none
  std::optional<std::int64_t> every;  ///< steps; nothing: at the end only
  std::int64_t keep = 2;
  std::string resume;  ///< from which checkpoint: "newest", "best", or a number of steps; empty: from the beginning
  std::optional<double> max_minutes;  ///< after which the run ends; nothing: none

  std::string save;                                       ///< file or folder for the trained model; empty: none
  models::Precision save_dtype = models::Precision::f32;  ///< of its parameters: f32 or bf16
  std::string log;                         ///< file for one JSON object per step and evaluation; empty: none
  std::string tensorboard;                 ///< folder for event files; empty: none
  std::int64_t log_every = 1;              ///< steps between those in `log` and `tensorboard`
  std::string plot;                        ///< file for a picture of the loss; empty: none
  std::optional<std::int64_t> eval_every;  ///< steps; nothing: after each epoch
  std::optional<std::int64_t>
      eval_batches;               ///< of a rank at most, but for the last evaluation; 0: all; nothing: by time
  std::int64_t norms_every = 50;  ///< steps between the norms of each parameter in `tensorboard`
  bool eval_only = false;
  std::string logits;       ///< llama: file for those of the first held-out sequences; empty: none
  std::int64_t sample = 0;  ///< tokens to write at the end
  std::string prompt;
  double temperature = 0.8;
  std::int64_t top_k = 0;  ///< as of models::Sampling, like the next
  double top_p = 1;
  std::optional<std::uint64_t> sample_seed;  ///< of the first sample; nothing: seed
  std::int64_t samples = 1;

  bool takes_tokens() const;  ///< the model is trained on sequences of tokens, not on images
};

/// Reads the command line, and the file of its --config; the command line takes precedence.
/// Errors: UsageError that names the flag, or the file and the key.
Options parse_options(int argc, const char* const* argv);

/// The text that --help, --version or --preset help ask for, if the command line has one of them.
std::optional<std::string> requested_text(int argc, const char* const* argv);

/// The options that must be equal on all ranks.
std::vector<cli::Agreed> agreed_part(const Options& options);

/// Those of them that shape the run: all but what is written, shown and kept.
std::vector<cli::Agreed> shaping_part(const Options& options);

/// Those of them that an evaluation depends on: the model, and what is held out.
std::vector<cli::Agreed> measured_part(const Options& options);

}  // namespace kolo::train
