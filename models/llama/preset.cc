#include <fmt/format.h>

#include "models/model/settings.h"
#include "models/util/error.h"

namespace kolo::models {

LlamaSettings llama_preset(std::string_view name) {
  if (name == "tiny") {
    return {.vocabulary = 256, .dim = 32, .layers = 2, .heads = 4, .kv_heads = 2, .ffn = 88, .positions = 64};
  }
  if (name == "small") return {};
  if (name == "base") {
    return {.vocabulary = 50000, .dim = 768, .layers = 12, .heads = 12, .kv_heads = 3, .ffn = 3072, .positions = 2048};
  }
  throw ModelError(fmt::format("unknown preset '{}' (known: tiny, small, base); choose one of them", name));
}

}  // namespace kolo::models
