#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
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

/// A size that a kind of model has for itself, and its flag: --NAME N. Found in ModelSettings::own.
struct ModelFlag {
  std::string_view name;
  std::string_view doc;
  std::int64_t usual = 1;  ///< unless the flag or a checkpoint says otherwise
  std::int64_t least = 1;
  std::int64_t most = 1 << 24;
};

/// An extent of a tensor in a checkpoint; 0 if it has none of that name, or fewer dimensions.
using StoredExtent = std::function<std::int64_t(std::string_view tensor, std::size_t dimension)>;

/// A kind of model: all that a program must know to train it.
struct ModelKind {
  std::string_view name;
  DataKind data = DataKind::images;
  /// Not yet bound to storage. Errors: ModelError for sizes that make no model, or do not fit the data.
  std::unique_ptr<Model> (*make)(const ModelSettings& settings) = nullptr;
  Recipe recipe{};
  std::vector<ModelFlag> flags{};
  /// Takes ModelSettings::own from the shapes of a checkpoint, with --init. Empty: nothing to take.
  std::function<void(const StoredExtent& extent, ModelSettings& settings)> sizes{};
};

/// All kinds, by name.
std::span<const ModelKind> model_kinds();

/// Errors: ModelError for an unknown name, which lists the known ones.
const ModelKind& kind_of(std::string_view name);

/// The names of those that are trained on such data, or of all.
std::vector<std::string_view> known_models();
std::vector<std::string_view> known_models(DataKind data);

/// Makes a model by name. Errors: as kind_of() and ModelKind::make.
std::unique_ptr<Model> make_model(std::string_view name, const ModelSettings& settings);

}  // namespace kolo::models
