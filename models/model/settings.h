#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <kolo/reduce_fn.h>
#include <kolo/tensor.h>

#include "models/compute/precision.h"

namespace kolo::models {

/// Sizes of a Cnn. Images are `channels` planes of `height` rows of `width` pixels.
struct CnnSettings {
  std::int64_t channels = 1;
  std::int64_t height = 28;
  std::int64_t width = 28;
  std::int64_t filters = 32;  ///< of the convolution
  std::int64_t dense = 64;    ///< units of the hidden layer
  std::int64_t classes = 10;
  bool batch_norm = false;  ///< between convolution and ReLU, with statistics over all ranks
};

/// Llama 3's scaling of rotary frequencies to longer texts than it was first trained on, the "rope_scaling" of
/// rope_type "llama3" in its config.json: frequencies whose wavelength is above original_positions / low_freq_factor
/// are divided by `factor`, those below original_positions / high_freq_factor stay, and between them it is
/// interpolated.
struct RopeScaling {
  double factor = 8;
  double low_freq_factor = 1;
  double high_freq_factor = 4;             ///< above low_freq_factor
  std::int64_t original_positions = 8192;  ///< original_max_position_embeddings

  bool operator==(const RopeScaling&) const = default;
};

/// Sizes of a Llama, those of its config.json.
struct LlamaSettings {
  std::int64_t vocabulary = 256;  ///< vocab_size
  std::int64_t dim = 256;         ///< hidden_size
  std::int64_t layers = 4;        ///< num_hidden_layers
  std::int64_t heads = 8;         ///< num_attention_heads; each takes dim / heads numbers, an even count
  std::int64_t kv_heads = 4;      ///< num_key_value_heads; divides heads
  std::int64_t ffn = 688;         ///< intermediate_size
  std::int64_t positions = 256;   ///< max_position_embeddings: the longest sequence
  double rope_theta = 1e4;
  double norm_eps = 1e-5;  ///< rms_norm_eps
  bool tied_head = false;  ///< tie_word_embeddings: the head shares the embedding's weights
  std::optional<RopeScaling> rope_scaling{};
};

/// Sizes by name: "tiny" (trains in a test), "small" (trains on two cores), "base" (wants a GPU).
/// Errors: ModelError for any other word.
LlamaSettings llama_preset(std::string_view name);

/// The settings of all models; each reads its own.
struct ModelSettings {
  std::vector<std::int64_t> sizes;  ///< mlp: units of each layer; empty: inputs, 1024, 1024, classes
  std::int64_t inputs = 0;          ///< mlp, cnn: inputs of the data, checked against the sizes; 0: not checked
  std::int64_t classes = 0;         ///< mlp, cnn: classes of the data; the model may have more
  CnnSettings cnn;
  LlamaSettings llama;
  Precision precision = Precision::f32;
  Device device{};         ///< where its passes are computed
  bool tf32 = false;       ///< see Compute::allow_tf32()
  bool recompute = false;  ///< llama: activation checkpointing, keeps only each block's input
  ReduceFn reduce;         ///< cnn with batch norm: sum over the ranks; empty: one rank
  std::map<std::string, std::int64_t, std::less<>>
      own{};  ///< the flags of the model's kind (models/registry.h), by name

  /// Extents of one image of the data.
  Shape image() const { return {cnn.channels, cnn.height, cnn.width}; }
};

}  // namespace kolo::models
