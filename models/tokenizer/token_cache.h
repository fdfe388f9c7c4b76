#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <span>

#include "models/tokenizer/tokenizer.h"

namespace kolo::models {

/// Encodes text files, each a text of its own, or finds what was encoded before: returns a .npy file of all ids (u2, or
/// u4 if there are more than 65536), which is kept in `folder` under a hash of the texts and of the tokenizer; one that
/// was cut is written again. Of several processes that want the same one encodes, and the others wait.
///
/// folder   made if it is not there
/// encodes  called before anything is encoded, with the bytes of all files; may be empty
/// Errors: ModelError: a file that cannot be read, is empty or changes meanwhile; Unwritable: a folder that
/// cannot be written to, or has no room.
std::filesystem::path encode_files(const Tokenizer& tokenizer, std::span<const std::filesystem::path> files,
                                   const std::filesystem::path& folder,
                                   const std::function<void(std::uint64_t bytes)>& encodes = {});

}  // namespace kolo::models
