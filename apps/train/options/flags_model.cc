#include "apps/cli/flag_values.h"
#include "models/model/settings.h"
#include "models/registry.h"

namespace kolo::train {
namespace {

constexpr std::int64_t largest_size = std::int64_t{1} << 24;

Flag init_flag() {
  Flag init =
      path_flag("init", "DIR_OR_FILE",
                "parameters to start from, and with them the sizes: a .safetensors file, or the folder of a public "
                "checkpoint (config.json, model.safetensors or its index); of a llama's file the sizes are in the "
                "config.json beside it, or given as flags (default: random ones)",
                &Options::init, "a safetensors file, or a folder with a model");
  init.agreed = [](const Options& options) -> std::string { return options.init.empty() ? "none" : "a file"; };
  return init;
}

std::vector<Flag> llama_flags() {
  const auto size = [](std::string_view name, std::string doc, auto field) {
    return count_flag(name, "llama: " + std::move(doc), field, 1, largest_size);
  };
  return {
      flag("preset", "NAME",
           "llama: sizes by name: tiny, small or base; other flags change single ones (default: small)",
           &Options::preset,
           [](const Given& given) {
             (void)models::llama_preset(given.value);  // there is one of that name
             return given.value;
           }),
      size("dim", "numbers of a position's state", &Options::dim),
      count_flag("layers", "llama: blocks", &Options::layers, 1, 10'000),
      size("heads", "attention heads; dim is divided among them", &Options::heads),
      size("kv-heads", "heads of keys and values, each for heads / kv-heads of the others", &Options::kv_heads),
      size("ffn", "units of the feed-forward layer", &Options::ffn),
      size("vocab", "tokens that there are (default: the preset's, 256 for bytes)", &Options::vocab),
      flag("rope-theta", "X", "llama: base of the rotary positions' wavelengths", &Options::rope_theta, positive_of),
      flag("norm-eps", "X", "llama: what is added under the root of the norms", &Options::norm_eps, positive_of),
      switch_flag("tied-head", "llama: the embedding is the head, too", &Options::tied_head),
  };
}

}  // namespace

std::vector<Flag> model_flags() {
  std::vector<Flag> rows{
      flag("model", "NAME", fmt::format("what to train: {} (default: mlp)", fmt::join(models::known_models(), ", ")),
           &Options::model,
           [](const Given& given) {
             models::check_known(given.value);
             return given.value;
           }),
      init_flag(),
      flag("sizes", "N,N,...", "mlp: units of the layers, inputs first (default: 784,1024,1024,10)", &Options::sizes,
           sizes_of),
      count_flag("filters", "cnn: of the convolution (default: 32)", &Options::filters, 1, largest_size),
      count_flag("dense", "cnn: units of the hidden layer (default: 64)", &Options::dense, 1, largest_size),
      count_flag("channels", "cnn: planes of an image (default: those of the data)", &Options::channels, 1,
                 largest_size),
      switch_flag("sync-batch-norm", "cnn: normalise behind the convolution, by statistics over all ranks",
                  &Options::sync_batch_norm),
  };
  for (Flag& row : llama_flags()) rows.push_back(std::move(row));
  rows.push_back(
      flag("precision", "TYPE",
           "what matrix products take: f32, bf16, or f16 with a loss scale that adapts; weights and sums stay f32 "
           "(default: f32)",
           &Options::precision, [](const Given& given) { return models::precision_of(given.value); }));
  rows.push_back(switch_flag("recompute",
                             "llama: keep less for the way back and compute it again: the same bits, less memory",
                             &Options::recompute));
  return rows;
}

}  // namespace kolo::train
