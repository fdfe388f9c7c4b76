#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <unordered_map>

#include <kolo/detail/hash.h>

#include "models/tokenizer/byte_alphabet.h"
#include "models/tokenizer/definition.h"
#include "models/util/input_file.h"

namespace kolo::models {
namespace {

using Json = nlohmann::json;
using Ids = std::unordered_map<std::string, std::int32_t, detail::StringHash, std::equal_to<>>;

/// Why the file is not used; read_tokenizer() says which it is.
[[noreturn]] void refuse(const std::string& why) {
  throw ModelError(why);
}

const Json& null() {
  static const Json nothing;
  return nothing;
}

/// The value of a key, null if there is none. Errors: ModelError if `in` is no object.
const Json& value_of(const Json& in, const char* key) {
  if (!in.is_object()) refuse(fmt::format("it has no object with '{}'", key));
  const auto found = in.find(key);
  return found == in.end() ? null() : *found;
}

std::string text_of(const Json& in, const char* key) {
  const Json& value = value_of(in, key);
  if (!value.is_string()) refuse(fmt::format("its '{}' is missing or no text", key));
  return value.get<std::string>();
}

const Json& list_of(const Json& in, const char* key) {
  const Json& value = value_of(in, key);
  if (!value.is_array()) refuse(fmt::format("its '{}' is missing or no list", key));
  return value;
}

bool is_set(const Json& in, const char* key, bool otherwise = false) {
  const Json& value = value_of(in, key);
  if (!value.is_null() && !value.is_boolean()) refuse(fmt::format("its '{}' is neither true nor false", key));
  return value.is_null() ? otherwise : value.get<bool>();
}

std::int32_t id_of(const Json& value, const std::string& token) {
  constexpr std::uint64_t largest = (1 << 24) - 1;  // as of a model's vocabulary
  if (!value.is_number_unsigned() || value.get<std::uint64_t>() > largest)
    refuse(fmt::format("the id of its token {} is not a number from 0 to {}", in_quotes(token), largest));
  return value.get<std::int32_t>();
}

/// Refuses what has a value here, and changes ids in a way that is not known.
void check_plain(const Json& in, const char* key) {
  const Json& value = value_of(in, key);
  const bool unset =
      value.is_null() || value == false || (value.is_string() && value.get_ref<const Json::string_t&>().empty());
  if (!unset) refuse(fmt::format("it has '{}', which is not known", key));
}

/// The model's options, and its tokens.
void read_model(const Json& model, TokenizerDefinition& to, Ids& ids) {
  if (const std::string type = text_of(model, "type"); type != "BPE")
    refuse(fmt::format("its model is of the type {}, and only BPE is known", in_quotes(type)));
  for (const char* const option :
       {"dropout", "unk_token", "continuing_subword_prefix", "end_of_word_suffix", "fuse_unk", "byte_fallback"}) {
    check_plain(model, option);
  }
  to.ignore_merges = is_set(model, "ignore_merges");
  const Json& vocabulary = value_of(model, "vocab");
  if (!vocabulary.is_object()) refuse("its 'vocab' is missing or no object");
  for (const auto& [token, value] : vocabulary.items()) {
    if (token.empty()) refuse("it has a token without text");
    ids.emplace(token, id_of(value, token));
  }
}

std::int32_t token_id(const Ids& ids, std::string_view token, std::size_t merge) {
  const auto found = ids.find(token);
  if (found == ids.end()) refuse(fmt::format("merge {} is of {}, which is no token", merge, in_quotes(token)));
  return found->second;
}

/// "a b", or since 0.20 of the library ["a", "b"].
void read_merges(const Json& model, const Ids& ids, TokenizerDefinition& to) {
  for (const Json& merge : list_of(model, "merges")) {
    const std::size_t number = to.merges.size();
    std::string left, right;
    if (merge.is_array() && merge.size() == 2 && merge[0].is_string() && merge[1].is_string()) {
      left = merge[0].get<std::string>();
      right = merge[1].get<std::string>();
    } else if (merge.is_string()) {
      const auto& both = merge.get_ref<const std::string&>();
      const auto space = both.find(' ');
      if (space == both.npos) refuse(fmt::format("merge {} has no two tokens", number));
      left = both.substr(0, space);
      right = both.substr(space + 1);
    } else {
      refuse(fmt::format("merge {} has no two tokens", number));
    }
    to.merges.emplace_back(token_id(ids, left, number), token_id(ids, right, number));
    (void)token_id(ids, left + right, number);
  }
}

void read_added(const Json& file, TokenizerDefinition& to, Ids& ids) {
  if (value_of(file, "added_tokens").is_null()) return;
  for (const Json& token : list_of(file, "added_tokens")) {
    const std::string content = text_of(token, "content");
    if (content.empty()) refuse("it has an added token without text");
    for (const char* const option : {"single_word", "lstrip", "rstrip"}) {
      if (is_set(token, option))
        refuse(fmt::format("its token {} has '{}', which is not known", in_quotes(content), option));
    }
    const std::int32_t id = id_of(value_of(token, "id"), content);
    if (const auto known = ids.emplace(content, id).first; known->second != id)
      refuse(fmt::format("its token {} has the ids {} and {}", in_quotes(content), known->second, id));
    to.added.push_back({id, content, is_set(token, "special"), is_set(token, "normalized")});
  }
}

/// Puts the model's tokens in the order of their ids, which all must have one.
void place(const Ids& ids, const Json& model_vocabulary, TokenizerDefinition& to) {
  std::vector<const std::string*> tokens(ids.size());
  for (const auto& [token, id] : ids) {
    const auto at = static_cast<std::size_t>(id);
    if (at >= tokens.size())
      refuse(fmt::format("the id of its token {} is {}, and it has {} tokens: ids have holes", in_quotes(token), id,
                         tokens.size()));
    if (tokens[at] != nullptr)
      refuse(fmt::format("its tokens {} and {} have the id {}", in_quotes(std::min(*tokens[at], token)),
                         in_quotes(std::max(*tokens[at], token)), id));
    tokens[at] = &token;
  }
  for (const std::string* const token : tokens)
    to.vocabulary.push_back(model_vocabulary.contains(*token) ? *token : std::string());
  for (unsigned byte = 0; byte < 256; ++byte) {
    const char text = static_cast<char>(byte);
    if (!model_vocabulary.contains(to_characters({&text, 1})))
      refuse(fmt::format("it has no token for the byte 0x{:02x}", byte));
  }
}

SplitPattern pattern_of(const Json& split) {
  const Json& pattern = value_of(split, "pattern");
  if (text_of(split, "behavior") == "Isolated" && !is_set(split, "invert") && pattern.is_object() &&
      pattern.contains("Regex")) {
    const std::string regex = text_of(pattern, "Regex");
    for (const SplitPattern known : {SplitPattern::gpt2, SplitPattern::llama3}) {
      if (regex == regex_of(known)) return known;
    }
  }
  refuse("it splits text by another pattern than GPT-2 and Llama 3");
}

/// ByteLevel with its own pattern, or a Split and then ByteLevel without.
void read_splitting(const Json& stage, TokenizerDefinition& to) {
  const auto is_a = [](const Json& json, std::string_view type) { return text_of(json, "type") == type; };
  if (!stage.is_object()) refuse("its 'pre_tokenizer' is missing");
  const bool is_sequence = is_a(stage, "Sequence");
  const Json& stages = is_sequence ? list_of(stage, "pretokenizers") : null();
  const Json& bytes = is_sequence && !stages.empty() ? stages.back() : stage;
  const bool own_pattern = is_a(bytes, "ByteLevel") && is_set(bytes, "use_regex", true);
  if (is_a(bytes, "ByteLevel") && stages.size() <= 1 && own_pattern) {
    to.add_prefix_space = is_set(bytes, "add_prefix_space", true);
  } else if (is_a(bytes, "ByteLevel") && stages.size() == 2 && !own_pattern && is_a(stages[0], "Split") &&
             !is_set(bytes, "add_prefix_space", true)) {
    to.split = pattern_of(stages[0]);
  } else {
    refuse("its 'pre_tokenizer' is neither ByteLevel nor a Split and ByteLevel, as GPT-2 and Llama 3 have it");
  }
}

/// The template's tokens around a single text.
void read_template(const Json& stage, TokenizerDefinition& to) {
  bool text_was = false;
  for (const Json& part : list_of(stage, "single")) {
    const Json& special = value_of(part, "SpecialToken");
    if (special.is_null()) {
      if (text_was || text_of(value_of(part, "Sequence"), "id") != "A") refuse("its template has not one text");
      text_was = true;
      continue;
    }
    const std::string name = text_of(special, "id");
    for (const Json& id : list_of(value_of(value_of(stage, "special_tokens"), name.c_str()), "ids")) {
      (text_was ? to.behind : to.before).push_back(id_of(id, name));
      if (id.get<std::int64_t>() >= to.size()) refuse("its template has an id without a token");
    }
  }
  if (!text_was) refuse("its template has not one text");
}

void read_template_of(const Json& stage, TokenizerDefinition& to) {
  if (stage.is_null()) return;
  const std::string type = text_of(stage, "type");
  if (type == "Sequence") {
    for (const Json& inner : list_of(stage, "processors")) read_template_of(inner, to);
  } else if (type == "TemplateProcessing" && to.before.empty() && to.behind.empty()) {
    read_template(stage, to);
  } else if (type != "ByteLevel") {  // which changes no ids
    refuse(fmt::format("its 'post_processor' is {}, which is not known", in_quotes(type)));
  }
}

TokenizerDefinition parse(const std::string& text) {
  const Json file = Json::parse(text, nullptr, false);
  if (file.is_discarded() || !file.is_object()) refuse("it is not JSON, or damaged");
  const Json& normalizer = value_of(file, "normalizer");
  if (!normalizer.is_null())
    refuse(fmt::format("its normalizer is {}, and none is known", in_quotes(text_of(normalizer, "type"))));
  if (const Json& decoder = value_of(file, "decoder"); text_of(decoder, "type") != "ByteLevel")
    refuse("its decoder is not ByteLevel");
  TokenizerDefinition definition;
  Ids ids;
  const Json& model = value_of(file, "model");
  read_model(model, definition, ids);
  read_merges(model, ids, definition);
  read_added(file, definition, ids);
  place(ids, model.at("vocab"), definition);
  read_splitting(value_of(file, "pre_tokenizer"), definition);
  read_template_of(value_of(file, "post_processor"), definition);
  return definition;
}

}  // namespace

TokenizerDefinition read_tokenizer(const std::filesystem::path& path) {
  const InputFile file(
      path,
      "give the tokenizer.json of byte-level BPE, such as Llama 3's or one that 'kolo-train tokenizer' "
      "writes");
  const std::string text = file.text();
  try {
    return parse(text);
  } catch (const ModelError& error) {
    file.refuse(error.what());
  }
}

}  // namespace kolo::models
