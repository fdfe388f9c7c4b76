#include "apps/train/options/flags.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cmath>
#include <limits>

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

std::vector<std::int64_t> sizes_of(const Given& given) {
  constexpr std::string_view accepted = "the width of each layer, such as 784,1024,1024,10";
  std::vector<std::int64_t> sizes;
  std::string_view rest = given.value;
  for (bool more = true; more;) {
    const auto comma = rest.find(',');
    const auto size = cli::number_in<std::int64_t>(rest.substr(0, comma));
    if (!size || *size < 1) cli::refuse(given, accepted);
    sizes.push_back(*size);
    more = comma != rest.npos;
    if (more) rest.remove_prefix(comma + 1);
  }
  if (sizes.size() < 2) cli::refuse(given, accepted);
  return sizes;
}

bool switch_of(const Given& given) {
  if (given.value == "yes" || given.value == "true") return true;
  if (given.value != "no" && given.value != "false") cli::refuse(given, "yes or no");
  return false;
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
std::string shown(const std::vector<std::int64_t>& sizes) {
  return sizes.empty() ? "the default" : fmt::format("{}", fmt::join(sizes, ","));
}
template <class Value>
std::string shown(const Value& value) {
  if constexpr (std::is_arithmetic_v<Value>)
    return fmt::format("{}", value);
  else
    return std::string(models::to_string(value));
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
  return flag(name, "", std::move(doc), field, switch_of);
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

/// "default: 12 for cnn, 1 for llama, 12 for mlp"
template <class Value>
std::string default_of(Value value_of) {
  std::vector<std::string> parts;
  for (const models::ModelKind& kind : models::model_kinds()) {
    parts.push_back(fmt::format("{} for {}", shown(std::invoke(value_of, kind.recipe)), kind.name));
  }
  return fmt::format("default: {}", fmt::join(parts, ", "));
}

std::vector<Row> model_flags() {
  return {
      flag("model", "NAME", fmt::format("what to train: {} (default: mlp)", fmt::join(models::known_models(), ", ")),
           &Options::model, known_word(models::kind_of)),
      path_flag("init", "DIR_OR_FILE",
                "start from pretrained parameters, and take the sizes from them: a .safetensors file, or the folder of "
                "a public checkpoint (config.json with model.safetensors or its index); a llama's file that another "
                "program wrote needs a config.json beside it, or its sizes as flags (default: random initialisation)",
                &Options::init, "a safetensors file, or a folder with a model", "a file"),
      flag("sizes", "N,N,...", "mlp: layer widths, input first (default: 784,1024,1024,10)", &Options::sizes, sizes_of),
      count_flag("filters", "cnn: output channels of the convolution (default: 32)", &Options::filters, 1,
                 largest_size),
      count_flag("dense", "cnn: width of the hidden layer (default: 64)", &Options::dense, 1, largest_size),
      count_flag("channels", "cnn: input channels (default: those of the data)", &Options::channels, 1, largest_size),
      switch_flag("sync-batch-norm", "cnn: batch normalisation after the convolution, with statistics over all ranks",
                  &Options::sync_batch_norm),
      flag("preset", "NAME",
           "llama: sizes by name: tiny, small or base; other flags change single ones (default: small)",
           &Options::preset, known_word(models::llama_preset)),
      count_flag("dim", "llama: hidden size", &Options::dim, 1, largest_size),
      count_flag("layers", "llama: transformer blocks", &Options::layers, 1, 10'000),
      count_flag("heads", "llama: attention heads", &Options::heads, 1, largest_size),
      count_flag("kv-heads", "llama: key/value heads (grouped-query attention)", &Options::kv_heads, 1, largest_size),
      count_flag("ffn", "llama: intermediate size of the feed-forward layer", &Options::ffn, 1, largest_size),
      count_flag("vocab", "llama: vocabulary size (default: the preset's, 256 for bytes)", &Options::vocab, 1,
                 largest_size),
      count_flag("positions", "llama: longest sequence that the model takes", &Options::positions, 1, largest_size),
      number_flag("rope-theta", "llama: RoPE base", &Options::rope_theta, above_0),
      number_flag("norm-eps", "llama: epsilon of RMSNorm", &Options::norm_eps, above_0),
      switch_flag("tied-head", "llama: tie the output head to the embedding", &Options::tied_head),
      flag("precision", "TYPE",
           "dtype of matrix products: f32, bf16, or f16 with dynamic loss scaling; weights and accumulation stay f32 "
           "(default: f32)",
           &Options::precision, [](const Given& given) { return models::precisions.parse(given.value); }),
      switch_flag("recompute", "llama: activation checkpointing: less memory, the same bits", &Options::recompute),
  };
}

/// Sizes that kinds of models have for themselves.
std::vector<Row> own_flags() {
  std::vector<Row> rows;
  for (const models::ModelKind& kind : models::model_kinds()) {
    for (const models::ModelFlag& own : kind.flags) {
      const std::string name(own.name);
      rows.push_back(
          {{"", own.name, "N", fmt::format("{}: {} (default: {})", kind.name, own.doc, own.usual)},
           [=](Options& options, const Given& given) { options.own[name] = cli::count_of(given, own.least, own.most); },
           [=](const Options& options) {
             const auto found = options.own.find(name);
             return found == options.own.end() ? "none" : shown(found->second);
           }});
    }
  }
  return rows;
}

std::vector<Row> data_flags() {
  return {
      path_flag(
          "data", "FILE_OR_DIR",
          "mlp, cnn: folder with MNIST's IDX files, gzipped or not: trains on train-*, holds out t10k-*; without "
          "train-*, trains on the first four fifths of t10k-* and holds out the rest (default: digits that the "
          "program renders). llama: file of text or tokens (llm.c's .bin, .npy; recognised by content), or a folder of "
          "such files, read in the order of their names (default: the project's own sources)",
          &Options::data, "a file or folder"),
      path_flag(
          "tokenizer", "FILE",
          "llama: tokenizer.json (byte-level BPE) to encode text and to decode samples; encoded text is kept in the "
          "user's cache folder; sets --vocab (default: bytes are tokens)",
          &Options::tokenizer, "a tokenizer.json", "a file"),
      flag("tokens", "TYPE",
           "llama: dtype of token files without a header: bytes, u16, u32 or u64, little-endian (default: text, as "
           "bytes)",
           &Options::tokens, [](const Given& given) { return std::optional(models::token_types.parse(given.value)); }),
      count_flag("seq", "llama: sequence length (default: the model's --positions)", &Options::seq, 1, largest_size),
      path_flag("val", "FILE",
                "llama: held-out file (default: the last tenth of --data if the order is shuffled, none if sequential)",
                &Options::val, "a file or folder"),
      flag("order", "ORDER",
           "shuffled: anew in each epoch; sequential: as in the file, batch x ranks x accumulate examples a step "
           "(default: shuffled)",
           &Options::order, [](const Given& given) { return models::orders.parse(given.value); }),
      switch_flag("augment", "mlp, cnn: shift, rotate and scale each image a little, at random in each epoch",
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
      count_flag("keep", "how many of the newest checkpoints to keep (default: 2)", &Options::keep, 1, 1'000'000),
      switch_flag("resume",
                  "resume from the newest usable checkpoint in --checkpoint DIR; from the beginning if there is none",
                  &Options::resume),
      number_flag("max-minutes",
                  "end the run after X minutes, with a checkpoint if there is --checkpoint, as SIGTERM does then "
                  "(SIGUSR1 writes one and goes on); --save is left to the run that comes to the end",
                  &Options::max_minutes, above_0),
  };
}

std::vector<Row> output_flags() {
  return {
      path_flag("save", "DIR_OR_FILE",
                "write the trained model: FILE.safetensors for one file, or a folder (config.json and "
                "model.safetensors), which other tools load",
                &Options::save, "a folder, or a file to write"),
      flag("save-dtype", "TYPE", "dtype of the parameters in --save: f32 or bf16 (default: f32)", &Options::save_dtype,
           save_dtype_of),
      path_flag("log", "FILE.jsonl", "write one JSON object per step and per evaluation", &Options::log,
                "a file to write"),
      path_flag("tensorboard", "DIR", "write the same as TensorBoard event files", &Options::tensorboard,
                "a folder to write to"),
      path_flag("plot", "FILE.svg", "draw the loss, at the end", &Options::plot, "a file to write"),
      count_flag("eval-every",
                 "steps between evaluations on the held-out data (default: after each epoch; always at the end)",
                 &Options::eval_every, 1),
      switch_flag("eval-only", "evaluate on the held-out data and train nothing", &Options::eval_only),
      path_flag("logits", "FILE.safetensors",
                "llama, with --eval-only: write the logits of the first --batch held-out sequences", &Options::logits,
                "a file to write"),
      count_flag("sample", "llama: generate N tokens at the end", &Options::sample, 0, 1'000'000),
      flag("prompt", "TEXT",
           "llama: prompt of the sample: text, or token ids if tokens are numbers without --tokenizer (default: a line "
           "break, or 0)",
           &Options::prompt, [](const Given& given) { return cli::text_of(given, "some text"); }),
      number_flag("temperature", "llama: sampling temperature; 0 takes the likeliest token (default: 0.8)",
                  &Options::temperature, cli::not_negative_of),
      count_flag("top-k", "llama: sample from the K likeliest tokens only; 0: from all (default: 0)", &Options::top_k,
                 0),
      flag("top-p", "P",
           "llama: sample from the fewest of the likeliest tokens that together have this probability (default: 1)",
           &Options::top_p, probability_of),
      count_flag("samples", "llama: how many samples to write (default: 1)", &Options::samples, 1, 1'000'000),
      flag("sample-seed", "N",
           "llama: random seed of the first sample, the next have the numbers behind it (default: "
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
    add("Model", model_flags());
    add("Model", own_flags());
    add("Data", data_flags());
    add("Training", training_flags());
    add("Optimizer", optimizer_flags());
    add("Checkpoints", checkpoint_flags());
    add("Output", output_flags());
    return all;
  }();
  return table;
}

}  // namespace kolo::train
