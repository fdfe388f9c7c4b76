#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "models/model/model.h"
#include "models/model/settings.h"
#include "models/optim/schedule.h"

namespace kolo::models {

/// What a kind of model is trained on: images with labels (ModelSettings::image() and classes), or windows of tokens
/// (ModelSettings::llama's vocabulary and positions).
enum class DataKind : bool { images, tokens };

/// Default settings of training, used where no flag sets another value.
struct Recipe {
  std::int64_t epochs = 12;
  std::int64_t batch = 64;  ///< examples per rank and micro-batch: images, or sequences
  std::string optimizer = "sgd";
  double sgd_lr = 0.1;
  double adam_lr = 1e-3;  ///< of adam and adamw
  double beta2 = 0.999;
  double weight_decay = 0.01;  ///< of adamw
  Curve schedule = Curve::constant;
  std::int64_t warmup = 0;
  double clip = 0;  ///< none; of coloured images 1, since their gradients vary more
};

/// A field of ModelSettings.
template <class Value>
using SettingField = Value& (*)(ModelSettings& settings);

/// A size or a feature that a kind of model has, and its flag. Kinds may have flags of the same name.
struct ModelFlag {
  std::string_view name;
  std::string_view doc;
  std::int64_t usual = 1;  ///< without a field: what it is unless the flag or a checkpoint says otherwise
  std::int64_t least = 1;  ///< of whole numbers
  std::int64_t most = 1 << 24;
  /// Where the value is; its type is that of the flag's value, and a bool is a switch. Nothing: a whole number in
  /// ModelSettings::own, by the flag's name.
  std::variant<std::monostate, SettingField<std::int64_t>, SettingField<double>, SettingField<bool>,
               SettingField<std::vector<std::int64_t>>>
      field{};
  std::string_view accepts{};    ///< of a list, for errors: "the width of each layer, such as 784,10"
  std::string_view otherwise{};  ///< of a switch, for errors: what a model without it has
};

/// Sizes by name, and the recipe that trains a model of these sizes.
struct Preset {
  std::string_view name;
  std::function<void(ModelSettings& settings)> put;
  Recipe recipe{};
};

/// An extent of a tensor in a checkpoint; 0 if it has none of that name, or fewer dimensions.
using StoredExtent = std::function<std::int64_t(std::string_view tensor, std::size_t dimension)>;

/// A kind of model: all that a program must know to train it.
struct ModelKind {
  std::string_view name;
  std::vector<std::string_view> formerly{};  ///< names that it had: files and checkpoints that say one are of this kind
  DataKind data = DataKind::images;
  /// Not yet bound to storage. Errors: ModelError for sizes that make no model, or do not fit the data.
  std::unique_ptr<Model> (*make)(const ModelSettings& settings) = nullptr;
  Recipe recipe{};
  std::vector<ModelFlag> flags{};
  std::vector<Preset> presets{};  ///< --preset NAME
  /// Takes ModelSettings::own from the shapes of a checkpoint, with --init. Empty: nothing to take.
  std::function<void(const StoredExtent& extent, ModelSettings& settings)> sizes{};
  /// Sets the sizes that follow from the data's (ModelSettings::image(), inputs and classes) in a model that begins at
  /// random. Null: none do.
  void (*fit)(ModelSettings& settings) = nullptr;
  /// Whether the passes sum over the ranks, with ModelSettings::reduce. Null: they never do.
  bool (*reduces)(const ModelSettings& settings) = nullptr;
  /// FLOPs of the matrix products and convolutions in both passes of one example; a sequence has `positions` tokens.
  /// What is computed again to save memory does not count. Null: not known.
  double (*flops)(const Model& model, const ModelSettings& settings, std::int64_t positions) = nullptr;
  bool writes_text = false;  ///< the model is a Llama: samples and logits can be asked of it
};

/// All kinds, by name.
std::span<const ModelKind> model_kinds();

/// Errors: ModelError for an unknown name, which lists the known ones.
const ModelKind& kind_of(std::string_view name);

/// The name of the kind that was once called so, else `name` itself.
std::string_view present_name(std::string_view name);

/// The name by which files know a kind: one that kolo brings keeps its first one, whatever it is called now.
std::string_view name_in_files(const ModelKind& kind);

/// The names of all kinds.
std::vector<std::string_view> known_models();

/// Errors: ModelError for an unknown name, which lists the kind's presets.
const Preset& preset_of(const ModelKind& kind, std::string_view name);

/// Elements of the parameters that are matrices.
double matrix_elements(const Model& model);

/// Makes a model by name. Errors: as kind_of() and ModelKind::make; for recomputation in a model that has none.
std::unique_ptr<Model> make_model(std::string_view name, const ModelSettings& settings);

}  // namespace kolo::models
