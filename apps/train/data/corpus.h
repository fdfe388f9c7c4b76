#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "apps/train/options/options.h"
#include "models/data/dataset.h"
#include "models/data/examples.h"
#include "models/data/token_layout.h"
#include "models/tokenizer/tokenizer.h"

namespace kolo::train {

/// The training and the held-out examples of a run.
struct Corpus {
  std::unique_ptr<models::DataSplit> images;   ///< behind the examples, if they are images
  std::unique_ptr<models::Examples> train;     ///< has at least one example
  std::unique_ptr<models::Examples> held_out;  ///< may have none
  std::string description;                     ///< for output: the source, and how it was split
  std::uint64_t fingerprint = 0;               ///< a hash of the contents
  bool bytes = false;                          ///< tokens are the bytes of text
  /// Bytes of text that a held-out target stands for, by its number plus one (0: of no target); all 0: not known.
  std::vector<std::int32_t> bytes_of_targets;
};

/// Images with labels, for an mlp or a cnn. Errors: models::ModelError.
Corpus read_images(const Options& options);

/// Windows of tokens, for a llama.
///
/// tokenizer   encodes files of text; null: their bytes are the tokens
/// positions   tokens of a window
/// vocabulary  every token must be below it; that is checked when a token is used
/// Errors: models::ModelError, UsageError if there is nothing to train on.
Corpus read_tokens(const Options& options, const models::Tokenizer* tokenizer, std::int64_t positions,
                   std::int64_t vocabulary);

}  // namespace kolo::train
