#pragma once

#include <string>

namespace kolo::train {

/// `kolo-train tokenizer`: trains a byte-level BPE tokenizer on files of text, and writes DIR/tokenizer.json. No
/// session, and one process does it: others that the launcher starts return at once.
///
/// argv  begins with the word "tokenizer"
/// Errors: UsageError, models::ModelError.
void train_tokenizer(int argc, const char* const* argv);

/// The text of `kolo-train tokenizer --help`.
std::string tokenizer_help();

}  // namespace kolo::train
