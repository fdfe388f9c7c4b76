#pragma once

#include <optional>

#include <kolo/session.h>

#include "apps/train/data/corpus.h"
#include "apps/train/options/options.h"
#include "models/llama/pretrained.h"
#include "models/model/settings.h"
#include "models/registry.h"
#include "models/tokenizer/tokenizer.h"

namespace kolo::train {

/// Opens the parameters that --init names; nothing without --init. Errors: models::ModelError.
std::optional<models::Pretrained> open_pretrained(const Options& options);

/// Takes the sizes that the parameters at `init` say to a model of this kind. Errors: UsageError if they are of another
/// kind, models::ModelError.
void take_sizes(const models::ModelKind& kind, const std::string& init, const models::Pretrained& pretrained,
                models::ModelSettings& settings);

/// The sizes from flags and pretrained parameters, without those that depend on the data.
/// Errors: as take_sizes(); UsageError for a flag that contradicts the parameters.
models::ModelSettings model_settings(const Options& options, const std::optional<models::Pretrained>& pretrained);

/// The tokenizer.json of --tokenizer, or that beside the model of --init (models::model_folder) unless --tokenizer is
/// given; empty: none.
std::string tokenizer_file(const Options& options);

/// Makes the vocabulary the tokenizer's, unless a flag or --init says another. Errors: UsageError if that is smaller.
void fit_to_tokenizer(models::ModelSettings& settings, const Options& options, const models::Tokenizer& tokenizer);

/// Tokens of a sequence.
std::int64_t positions_of(const Options& options, const models::ModelSettings& settings);

/// Fills in the sizes of the data, and the sums over ranks that the model needs. Errors: UsageError.
void fit_to_data(models::ModelSettings& settings, const Options& options, const Corpus& corpus, Session& session);

}  // namespace kolo::train
