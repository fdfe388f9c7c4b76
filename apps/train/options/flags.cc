#include "apps/train/options/flags.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cmath>
#include <limits>

#include "apps/train/options/model_flags.h"
#include "models/optim/optimizer.h"
#include "models/registry.h"
#include "models/util/error.h"

namespace kolo::train {
namespace {

using cli::Given;
using Row = cli::Flag<Options>;

constexpr std::int64_t largest_size = std::int64_t{1} << 24;

// What a value means. Errors: UsageError that says what the flag takes.

double share_of(const Given& given, std::string_view usual) {
  const auto value = cli::number_in<double>(given.value);
  if (!value || !(*value >= 0 && *value < 1))
    cli::refuse(given, fmt::format("a number from 0 to below 1; {} is usual", usual));
  return *value;
}

std::uint64_t seed_of(const Given& given) {
  const auto value = cli::number_in<std::uint64_t>(given.value);
  if (!value) cli::refuse(given, fmt::format("a whole number from 0 to {}", std::numeric_limits<std::uint64_t>::max()));
  return *value;
}

std::int64_t count_or_all_of(const Given& given) {
  const auto value = cli::number_in<std::int64_t>(given.value);
  if (!value || *value < 0 || *value > cli::largest_count)
    cli::refuse(given, fmt::format("a whole number from 0 to {}, or all", cli::largest_count));
  return *value;
}

std::string resume_of(const Given& given) {
  if (given.value == "best" || cli::number_in<std::uint64_t>(given.value)) return given.value;
  if (given.value == "no" || given.value == "false") return "";
  if (given.value != "yes" && given.value != "true")
    cli::refuse(given, "best, the number of steps of a checkpoint, yes or no");
  return "newest";
}

models::Precision save_dtype_of(const Given& given) {
  const models::Precision dtype = models::precisions.parse(given.value);
  if (dtype == models::Precision::f16) cli::refuse(given, "f32 or bf16");
  return dtype;
}

/// The value itself, once `known` has found it among the words it may be.
template <class Check>
auto known_word(Check known) {
  return [known](const Given& given) {
    (void)known(given.value);
    return given.value;
  };
}

// How a value is written, so that ranks can be compared.

std::string shown(const std::string& value) {
  return value.empty() ? "none" : value;
}
std::string shown(bool value) {
  return value ? "yes" : "no";
}
template <class Value>
std::string shown(const Value& value) {
  if constexpr (std::is_arithmetic_v<Value>)
    return fmt::format("{}", value);
  else
    return std::string(to_string(value));
}
template <class Value>
std::string shown(const std::optional<Value>& value) {
  return value ? shown(*value) : "none";
}

// Kinds of rows.

/// Puts what `parse` makes of the value into a field, which must be equal on all ranks.
template <class Field, class Parse>
Row flag(std::string_view name, std::string_view value, std::string doc, Field Options::*field, Parse parse) {
  return {{"", name, value, std::move(doc)},
          [=](Options& options, const Given& given) { options.*field = parse(given); },
          [=](const Options& options) { return shown(options.*field); }};
}

Row switch_flag(std::string_view name, std::string doc, bool Options::*field) {
  return flag(name, "", std::move(doc), field, cli::switch_of);
}

template <class Field>
Row count_flag(std::string_view name, std::string doc, Field Options::*field, std::int64_t least,
               std::int64_t largest = cli::largest_count) {
  return flag(name, "N", std::move(doc), field,
              [=](const Given& given) { return cli::count_of(given, least, largest); });
}

Row number_flag(std::string_view name, std::string doc, auto Options::*field, double (*parse)(const Given&)) {
  return flag(name, "X", std::move(doc), field, parse);
}

double probability_of(const Given& given) {
  const auto value = cli::number_in<double>(given.value);
  if (!value || !(*value > 0 && *value <= 1)) cli::refuse(given, "a number above 0, at most 1");
  return *value;
}

double above_0(const Given& given) {
  return cli::positive_of(given);
}

/// Names a file or folder. Ranks may name different ones; `agreed`: all must name one, or none.
Row path_flag(std::string_view name, std::string_view value, std::string doc, std::string Options::*field,
              std::string_view accepted, std::string_view agreed = "") {
  Row row = flag(name, value, std::move(doc), field, [=](const Given& given) { return cli::text_of(given, accepted); });
  row.agreed = nullptr;
  if (!agreed.empty()) {
    row.agreed = [=](const Options& options) { return std::string((options.*field).empty() ? "none" : agreed); };
  }
  return row;
}

/// "default: 12 for cnn, 1 for llama, 12 for mlp", and the presets whose recipe has another value.
template <class Value>
std::string default_of(Value value_of) {
  const auto text_of = [&](const models::Recipe& recipe) { return shown(std::invoke(value_of, recipe)); };
  std::vector<std::string> parts;
  for (const models::ModelKind& kind : models::model_kinds()) {
    parts.push_back(fmt::format("{} for {}", text_of(kind.recipe), kind.name));
    for (const models::Preset& preset : kind.presets) {
      if (const std::string own = text_of(preset.recipe); own != text_of(kind.recipe))
        parts.push_back(fmt::format("{} for its preset {}", own, preset.name));
    }
  }
  return fmt::format("default: {}", fmt::join(parts, ", "));
}

std::vector<Row> model_flags() {
  return {
      flag("model", "NAME",
           fmt::format("what to train: {} (default: {})", fmt::join(models::known_models(), ", "), Options().model),
           &Options::model, known_word(models::kind_of)),
      path_flag("init", "DIR_OR_FILE",
                "start from pretrained parameters, and take the sizes from them: a .safetensors file, or the folder of "
                "a public checkpoint (config.json with model.safetensors or its index); a llama's file that another "
                "program wrote needs a config.json beside it, or its sizes as flags (default: random initialisation)",
                &Options::init, "a safetensors file, or a folder with a model", "a file"),
      flag("precision", "TYPE",
           "dtype of matrix products: f32, bf16, or f16 with dynamic loss scaling; weights and accumulation stay f32 "
           "(default: f32)",
           &Options::precision, [](const Given& given) { return models::precisions.parse(given.value); }),
      flag(
          "device", "KIND",
          "where the model is and computes: cpu, or cuda, which is the GPU that each rank's session has (default: cpu)",
          &Options::device, [](const Given& given) { return device_kinds.parse(given.value); }),
      switch_flag("tf32", "cuda: round operands of f32 products to tf32, with 10 bits of mantissa: faster",
                  &Options::tf32),
  };
}

/// "cnn, mlp"
std::string trained_on(models::DataKind data) {
  return kinds_with([data](const models::ModelKind& kind) { return kind.data == data; });
}

/// "none" stands for no file, also where --init has one.
Row tokenizer_flag() {
  Row row = path_flag(
      "tokenizer", "FILE",
      trained_on(models::DataKind::tokens) +
          ": tokenizer.json (byte-level BPE) to encode text and to decode samples; encoded text is kept "
          "in the user's cache folder; sets --vocab (default: that in the folder of --init, or beside its file "
          "and a config.json; without one, or "
          "with none, bytes are tokens)",
      &Options::tokenizer, "a tokenizer.json, or none", "a file");
  row.set = [set = row.set](Options& options, const Given& given) {
    set(options, given);
    if (options.tokenizer == "none") options.tokenizer.clear();
    options.tokenizer_given = true;
  };
  return row;
}

std::vector<Row> data_flags() {
  const std::string images = trained_on(models::DataKind::images) + ": ",
                    tokens = trained_on(models::DataKind::tokens) + ": ";
  return {
      path_flag(
          "data", "FILE_OR_DIR",
          images +
              "folder with MNIST's IDX files, gzipped or not: trains on train-*, holds out t10k-*; without "
              "train-*, trains on the first four fifths of t10k-* and holds out the rest (default: digits that the "
              "program renders). " +
              tokens +
              "file of text or tokens (llm.c's .bin, .npy; recognised by content), or a folder of "
              "such files, read in the order of their names (default: the project's own sources)",
          &Options::data, "a file or folder"),
      tokenizer_flag(),
      flag("tokens", "TYPE",
           tokens + "dtype of token files without a header: bytes, u16, u32 or u64, little-endian (default: text, as "
                    "bytes)",
           &Options::tokens, [](const Given& given) { return std::optional(models::token_types.parse(given.value)); }),
      count_flag("seq", tokens + "sequence length (default: the model's --positions)", &Options::seq, 1, largest_size),
      path_flag(
          "val", "FILE",
          tokens + "held-out file (default: the last tenth of --data if the order is shuffled, none if sequential)",
          &Options::val, "a file or folder"),
      flag("order", "ORDER",
           "shuffled: anew in each epoch; sequential: as in the file, batch x ranks x accumulate examples a step "
           "(default: shuffled)",
           &Options::order, [](const Given& given) { return models::orders.parse(given.value); }),
      switch_flag("augment", images + "shift, rotate and scale each image a little, at random in each epoch",
                  &Options::augment),
  };
}

std::vector<Row> training_flags() {
  return {
      count_flag(
          "epochs",
          fmt::format("passes over the data ({}; no limit if --steps is given)", default_of(&models::Recipe::epochs)),
          &Options::epochs, 0, 1'000'000),
      count_flag("steps",
                 "optimizer steps in all, resumed ones included; with --epochs, whichever comes first ends the run",
                 &Options::steps, 0),
      count_flag("batch", fmt::format("examples per rank and micro-batch ({})", default_of(&models::Recipe::batch)),
                 &Options::batch, 1, 1'000'000'000),
      count_flag("accumulate", "gradient accumulation: micro-batches per step; only the last communicates (default: 1)",
                 &Options::accumulate, 1, 1'000'000),
      flag("wire", "TYPE",
           "dtype in which gradients are communicated: f32, or bf16 or f16, averaged before they are rounded "
           "(default: f32)",
           &Options::wire, [](const Given& given) { return models::precisions.parse(given.value); }),
      count_flag("zero",
                 "ZeRO stage: 1 shares the optimizer's state and work out among the ranks, the same bits; 0 does not "
                 "(default: 1 within one node, 0 over several)",
                 &Options::zero, 0, 1),
      flag("seed", "N", "random seed for initial weights, data order and augmentation (default: 1)", &Options::seed,
           seed_of),
  };
}

std::vector<Row> optimizer_flags() {
  const auto lr_of = [](const models::Recipe& recipe) {
    return recipe.optimizer == "sgd" ? recipe.sgd_lr : recipe.adam_lr;
  };
  const auto optimizer = [](const std::string& word) {
    return models::index_of(word, models::known_optimizers, "optimizer");
  };
  const auto share = [](std::string_view usual) { return [=](const Given& given) { return share_of(given, usual); }; };
  return {
      flag("optimizer", "NAME",
           fmt::format("{} ({})", fmt::join(models::known_optimizers, ", "), default_of(&models::Recipe::optimizer)),
           &Options::optimizer, known_word(optimizer)),
      number_flag("lr", fmt::format("peak learning rate ({}; other optimizers have other defaults)", default_of(lr_of)),
                  &Options::lr, above_0),
      switch_flag("scale-lr", "multiply learning rates by the number of ranks", &Options::scale_lr),
      flag("schedule", "CURVE",
           fmt::format("learning rate after the warm-up: constant, linear or cosine ({})",
                       default_of(&models::Recipe::schedule)),
           &Options::schedule, [](const Given& given) { return models::curves.parse(given.value); }),
      count_flag("warmup", fmt::format("steps of linear warm-up ({})", default_of(&models::Recipe::warmup)),
                 &Options::warmup, 0),
      number_flag("min-lr", "final learning rate of linear and cosine (default: a tenth of --lr)", &Options::min_lr,
                  cli::not_negative_of),
      flag("momentum", "X", "sgd: momentum (default: 0.9)", &Options::momentum, share("0.9")),
      flag("beta1", "X", "adam, adamw: decay of the first moment (default: 0.9)", &Options::beta1, share("0.9")),
      flag("beta2", "X",
           fmt::format("adam, adamw: decay of the second moment ({})", default_of(&models::Recipe::beta2)),
           &Options::beta2, share("0.999")),
      number_flag("eps", "adam, adamw: epsilon, added to the root of the second moment (default: 1e-8)", &Options::eps,
                  above_0),
      number_flag("weight-decay",
                  fmt::format("adam, adamw: weight decay of matrices, not of norms and biases ({}; 0 with adam)",
                              default_of(&models::Recipe::weight_decay)),
                  &Options::weight_decay, cli::not_negative_of),
      flag("clip", "NORM",
           fmt::format("clip gradients to this global norm; 0: never ({}, and 1 for coloured images)",
                       default_of(&models::Recipe::clip)),
           &Options::clip, cli::not_negative_of),
  };
}

std::vector<Row> checkpoint_flags() {
  return {
      path_flag("checkpoint", "DIR",
                "write checkpoints there in the background, and one at the end: all that it takes to resume",
                &Options::checkpoint, "a folder", "a folder"),
      count_flag("every", "steps between checkpoints (default: only the one at the end)", &Options::every, 1),
      count_flag("keep",
                 "how many of the newest checkpoints to keep, beside that of them all with the lowest held-out loss, "
                 "if a step with a checkpoint was evaluated (default: 2)",
                 &Options::keep, 1, 1'000'000),
      flag("resume", "[best|STEP]",
           "resume from the newest usable checkpoint in --checkpoint DIR, from the beginning if there is none; "
           "--resume=best: from the one with the lowest held-out loss, which --eval-every keeps; --resume=STEP: from "
           "the one behind so many steps",
           &Options::resume, resume_of),
      number_flag("max-minutes",
                  "end the run X minutes after its start, with a checkpoint if there is --checkpoint, as SIGTERM does "
                  "(SIGUSR1 writes one and goes on); --save is left to the run that comes to the end",
                  &Options::max_minutes, above_0),
  };
}

std::vector<Row> output_flags() {
  const std::string writing = kinds_with([](const models::ModelKind& kind) { return kind.writes_text; });
  return {
      path_flag("save", "DIR_OR_FILE",
                "write the trained model: FILE.safetensors for one file, or a folder (config.json and "
                "model.safetensors), which other tools load",
                &Options::save, "a folder, or a file to write"),
      flag("save-dtype", "TYPE", "dtype of the parameters in --save: f32 or bf16 (default: f32)", &Options::save_dtype,
           save_dtype_of),
      path_flag("log", "FILE.jsonl", "write one JSON object per step and per evaluation", &Options::log,
                "a file to write"),
      path_flag("tensorboard", "DIR",
                "write the same as TensorBoard event files, and norms of each parameter's values and gradients",
                &Options::tensorboard, "a folder to write to", "a folder"),
      count_flag("log-every", "steps between those in --log and --tensorboard (default: 1)", &Options::log_every, 1),
      count_flag("norms-every", "steps between norms of parameters in --tensorboard (default: 50)",
                 &Options::norms_every, 1),
      path_flag("plot", "FILE.svg", "draw the loss, at the end", &Options::plot, "a file to write"),
      count_flag(
          "eval-every",
          "steps between evaluations on the held-out data (default: after each epoch; always at the end); if this "
          "is given, with --checkpoint one that has the lowest loss so far makes a checkpoint",
          &Options::eval_every, 1),
      flag("eval-batches", "N",
           "batches per rank of an evaluation at most, the same ones every time; 0 or all: all; --eval-only and the "
           "last evaluation use all, if there is time (default: as many as take no longer than the training between "
           "two evaluations)",
           &Options::eval_batches,
           [](const Given& given) { return std::optional(given.value == "all" ? 0 : count_or_all_of(given)); }),
      switch_flag("eval-only", "evaluate on the held-out data and train nothing", &Options::eval_only),
      path_flag("logits", "FILE.safetensors",
                writing + ", with --eval-only: write the logits of the first --batch held-out sequences",
                &Options::logits, "a file to write"),
      count_flag("sample", writing + ": generate N tokens at the end", &Options::sample, 0, 1'000'000),
      flag("prompt", "TEXT",
           writing +
               ": prompt of the sample: text, or token ids if tokens are numbers without --tokenizer (default: a line "
               "break, or 0)",
           &Options::prompt, [](const Given& given) { return cli::text_of(given, "some text"); }),
      number_flag("temperature", writing + ": sampling temperature; 0 takes the likeliest token (default: 0.8)",
                  &Options::temperature, cli::not_negative_of),
      count_flag("top-k", writing + ": sample from the K likeliest tokens only; 0: from all (default: 0)",
                 &Options::top_k, 0),
      flag(
          "top-p", "P",
          writing + ": sample from the fewest of the likeliest tokens that together have this probability (default: 1)",
          &Options::top_p, probability_of),
      count_flag("samples", writing + ": how many samples to write (default: 1)", &Options::samples, 1, 1'000'000),
      flag("sample-seed", "N",
           writing + ": random seed of the first sample, the next have the numbers behind it (default: "
                     "--seed)",
           &Options::sample_seed, [](const Given& given) { return std::optional(seed_of(given)); }),
  };
}

}  // namespace

std::span<const Row> flags() {
  static const std::vector<Row> table = [] {
    std::vector<Row> all;
    const auto add = [&](std::string_view section, std::vector<Row> rows) {
      for (Row& row : rows) {
        row.section = section;
        all.push_back(std::move(row));
      }
    };
    add(model_section, model_flags());
    add(model_section, model_kind_flags());
    add(data_section, data_flags());
    add("Training", training_flags());
    add("Optimizer", optimizer_flags());
    add(checkpoint_section, checkpoint_flags());
    add(output_section, output_flags());
    return all;
  }();
  return table;
}

}  // namespace kolo::train
