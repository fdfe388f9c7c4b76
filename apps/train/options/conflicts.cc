#include "apps/train/options/flags.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "apps/cli/files.h"
#include "apps/train/options/model_flags.h"
#include "models/llama/saved_model.h"
#include "models/registry.h"

namespace kolo::train {
namespace {

using ExplicitlySet = std::function<bool(std::string_view)>;

struct NamedFile {
  std::string_view flag;
  std::string path;  // empty: none
};

void check_apart(const NamedFile& one, const NamedFile& other) {
  if (one.path.empty() || other.path.empty() || !cli::same_file(one.path, other.path)) return;
  const std::string both =
      one.path == other.path
          ? fmt::format("{} and {} both name {}", one.flag, other.flag, one.path)
          : fmt::format("{} {} and {} {} are the same file", one.flag, one.path, other.flag, other.path);
  throw UsageError(both + "; give each a file of its own");
}

/// An output in a folder that is read is refused if it exists. A new file beside the others is fine.
void check_not_inside(const NamedFile& input, const NamedFile& output) {
  if (input.path.empty() || output.path.empty() || !cli::is_file_in(output.path, input.path)) return;
  throw UsageError(
      fmt::format("{} {} is a file of {} {}; name another", output.flag, output.path, input.flag, input.path));
}

/// The folder of --save is replaced as a whole at the end.
void check_not_in_saved(const NamedFile& output, const std::string& save) {
  if (output.path.empty() || save.empty() || models::is_saved_as_file(save)) return;
  if (!cli::is_below(output.path, save)) return;
  throw UsageError(fmt::format("{} {} is in the folder of --save {}, which is for the model alone; name another place",
                               output.flag, output.path, save));
}

/// It would be replaced with the folder.
void check_input_not_in_saved(const NamedFile& input, const std::string& save) {
  if (input.path.empty() || save.empty() || models::is_saved_as_file(save)) return;
  if (!cli::is_below(input.path, save)) return;
  throw UsageError(fmt::format("{} {} is in the folder of --save {}, which is replaced as a whole; name another folder",
                               input.flag, input.path, save));
}

/// Every output must be a file of its own, and none of the inputs.
void check_files(const std::string& config, const Options& options) {
  const std::array read{NamedFile{"--config", config}, NamedFile{"--init", options.init},
                        NamedFile{"--data", options.data}, NamedFile{"--val", options.val},
                        NamedFile{"--tokenizer", options.tokenizer}};
  const std::array written{NamedFile{"--log", options.log},
                           NamedFile{"--save", options.save},
                           NamedFile{"--plot", options.plot},
                           NamedFile{"--tensorboard", options.tensorboard},
                           NamedFile{"--checkpoint", options.checkpoint},
                           NamedFile{"--logits", options.logits}};
  for (const NamedFile& input : read) {
    for (const NamedFile& output : written) {
      check_apart(input, output);
      check_not_inside(input, output);
    }
    check_input_not_in_saved(input, options.save);
  }
  for (const NamedFile& output : written) check_not_in_saved(output, options.save);
  for (std::size_t i = 0; i < written.size(); ++i) {
    for (std::size_t j = i + 1; j < written.size(); ++j) check_apart(written[i], written[j]);
  }
}

/// A flag that only some models, or some optimizers, have.
struct Limited {
  std::string flag;
  std::string those;
};

/// The flags that single kinds of models have, and those that only some data, or models that write text, give a
/// meaning.
std::vector<Limited> by_kinds() {
  using models::ModelKind;
  std::vector<Limited> all;
  const auto add = [&](std::string_view flag, const std::function<bool(const ModelKind&)>& has) {
    all.push_back({std::string(flag), kinds_with(has, " and ")});
  };
  for (const ModelKind& kind : models::model_kinds()) {
    for (const models::ModelFlag& flag : kind.flags) {
      add(flag.name, [&](const ModelKind& other) {
        return std::ranges::find(other.flags, flag.name, &models::ModelFlag::name) != other.flags.end();
      });
    }
  }
  add("preset", [](const ModelKind& kind) { return !kind.presets.empty(); });
  add("augment", [](const ModelKind& kind) { return kind.data == models::DataKind::images; });
  for (const std::string_view flag : {"tokens", "seq", "val", "tokenizer"})
    add(flag, [](const ModelKind& kind) { return kind.data == models::DataKind::tokens; });
  for (const std::string_view flag :
       {"sample", "prompt", "temperature", "top-k", "top-p", "samples", "sample-seed", "logits"})
    add(flag, [](const ModelKind& kind) { return kind.writes_text; });
  return all;
}

std::vector<Limited> by_optimizers() {
  return {{"momentum", "sgd"},
          {"beta1", "adam and adamw"},
          {"beta2", "adam and adamw"},
          {"eps", "adam and adamw"},
          {"weight-decay", "adam and adamw"}};
}

bool knows(std::string_view those, std::string_view name) {
  const auto at = those.find(name);
  if (at == those.npos) return false;
  const auto end = at + name.size();  // "adam" is not the end of "adamw"
  return (at == 0 || those[at - 1] == ' ') && (end == those.size() || those[end] == ' ');
}

void check_meaning(const std::vector<Limited>& table, std::string_view chooser, const std::string& chosen,
                   const ExplicitlySet& explicitly_set) {
  for (const Limited& row : table) {
    if (!explicitly_set(row.flag) || knows(row.those, chosen)) continue;
    throw UsageError(fmt::format("--{} means nothing to --{} {} (it is for {}); leave it out", row.flag, chooser,
                                 chosen, row.those));
  }
}

void check_needs(const ExplicitlySet& explicitly_set, std::span<const std::string_view> flags, std::string_view needed,
                 std::string_view how) {
  for (const std::string_view flag : flags) {
    if (explicitly_set(flag) && !explicitly_set(needed))
      throw UsageError(fmt::format("--{} needs --{}; add it", flag, how));
  }
}

void check_contradictions(const Options& options, const ExplicitlySet& explicitly_set) {
  if (explicitly_set("min-lr") && options.schedule == models::Curve::constant) {
    throw UsageError("--min-lr means nothing to --schedule constant; choose linear or cosine");
  }
  if (options.min_lr && *options.min_lr > options.lr) {
    throw UsageError(fmt::format("--min-lr {} is above --lr {}; give a smaller one", *options.min_lr, options.lr));
  }
  if (options.eval_only && !options.checkpoint.empty() && options.resume.empty()) {
    throw UsageError("--eval-only writes no checkpoints; add --resume to read the newest one in --checkpoint");
  }
}

}  // namespace

void check_conflicts(const Options& options, const ExplicitlySet& explicitly_set, const std::string& config) {
  check_files(config, options);
  check_meaning(by_kinds(), "model", options.model, explicitly_set);
  check_meaning(by_optimizers(), "optimizer", options.optimizer, explicitly_set);
  check_meaning({{"tf32", "cuda"}}, "device", std::string(device_kinds[options.device]), explicitly_set);
  check_needs(explicitly_set, std::array<std::string_view, 3>{"every", "keep", "resume"}, "checkpoint",
              "checkpoint DIR");
  check_needs(explicitly_set,
              std::array<std::string_view, 6>{"prompt", "temperature", "top-k", "top-p", "samples", "sample-seed"},
              "sample", "sample N");
  if (!explicitly_set("log") && !explicitly_set("tensorboard"))
    check_needs(explicitly_set, std::array<std::string_view, 1>{"log-every"}, "log",
                "log FILE.jsonl or --tensorboard DIR");
  check_needs(explicitly_set, std::array<std::string_view, 1>{"norms-every"}, "tensorboard", "tensorboard DIR");
  check_needs(explicitly_set, std::array<std::string_view, 1>{"save-dtype"}, "save", "save DIR_OR_FILE");
  check_needs(explicitly_set, std::array<std::string_view, 1>{"logits"}, "eval-only", "eval-only");
  check_contradictions(options, explicitly_set);
}

}  // namespace kolo::train
