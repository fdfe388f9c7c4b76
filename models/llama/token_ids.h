#pragma once

#include <map>
#include <string>

namespace kolo::models {

/// Gives config.json and generation_config.json, as far as they are among these texts of files by name, the ids of the
/// tokenizer whose files are beside them, in place of another one's.
///
/// "bos_token_id" is the id of the token that tokenizer_config.json or special_tokens_map.json calls "bos_token", and
/// so on; else, for bos and eos, that which the tokenizer's template puts before or behind each text. Without a name
/// for a token, or without a tokenizer, it is null. What else a config says of an older tokenizer's tokens is left out.
void put_token_ids(std::map<std::string, std::string>& files);

}  // namespace kolo::models
