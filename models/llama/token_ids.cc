#include "models/llama/token_ids.h"

#include <array>
#include <cstdint>
#include <iterator>
#include <nlohmann/json.hpp>
#include <optional>
#include <string_view>
#include <vector>

#include "models/llama/json_file.h"

namespace kolo::models {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::array always{"bos_token_id", "eos_token_id"};  // without them the format's defaults would count
constexpr std::array of_older{"tokenizer_class", "bad_words_ids",         "force_words_ids",    "suppress_tokens",
                              "stop_strings",    "begin_suppress_tokens", "forced_decoder_ids", "sequence_bias"};

/// What a file says; an empty object if there is none, or it is damaged: what it lacks is not known.
Json object_in(const std::map<std::string, std::string>& files, const char* name) {
  const auto text = files.find(name);
  if (text == files.end()) return Json::object();
  Json parsed = Json::parse(text->second, nullptr, false);
  return parsed.is_object() ? parsed : Json::object();
}

/// A member of that name; null if it is not there.
const Json& member(const Json& of, std::string_view name) {
  static const Json none;
  if (!of.is_object()) return none;
  const auto found = of.find(name);
  return found == of.end() ? none : *found;
}

/// A token is its text, or an object that has it.
std::string content_of(const Json& token) {
  const Json& text = token.is_object() ? member(token, "content") : token;
  return text.is_string() ? text.get<std::string>() : "";
}

/// Of a tokenizer.json.
std::optional<std::int64_t> id_of(const Json& tokenizer, const std::string& content) {
  if (content.empty()) return std::nullopt;
  for (const Json& token : member(tokenizer, "added_tokens")) {
    if (content_of(token) == content && member(token, "id").is_number_integer()) return token["id"];
  }
  const Json& id = member(member(member(tokenizer, "model"), "vocab"), content);
  return id.is_number_integer() ? std::optional(id.get<std::int64_t>()) : std::nullopt;
}

/// The tokens that a template puts around a text.
struct Around {
  std::vector<std::string> before, behind;
};

void read_template(const Json& stage, Around& around) {
  for (const Json& inner : member(stage, "processors")) read_template(inner, around);
  bool is_behind = false;
  for (const Json& piece : member(stage, "single")) {
    const Json& token = member(member(piece, "SpecialToken"), "id");
    is_behind = is_behind || member(piece, "Sequence").is_object();
    if (token.is_string()) (is_behind ? around.behind : around.before).push_back(token);
  }
}

/// The id of a token by its role, such as "bos_token"; null if that is not known.
class Roles {
 public:
  explicit Roles(const std::map<std::string, std::string>& files)
      : tokenizer_(object_in(files, "tokenizer.json")),
        names_{object_in(files, "tokenizer_config.json"), object_in(files, "special_tokens_map.json")} {
    read_template(member(tokenizer_, "post_processor"), around_);
  }

  Json id_of_role(const std::string& role) const {
    std::optional<std::int64_t> id;
    for (const Json& names : names_) {
      if (!id) id = id_of(tokenizer_, content_of(member(names, role)));
    }
    if (!id && role == "bos_token" && around_.before.size() == 1) id = id_of(tokenizer_, around_.before.front());
    if (!id && role == "eos_token" && around_.behind.size() == 1) id = id_of(tokenizer_, around_.behind.front());
    return id ? Json(*id) : Json();
  }

 private:
  Json tokenizer_;
  std::array<Json, 2> names_;
  Around around_;
};

}  // namespace

void put_token_ids(std::map<std::string, std::string>& files) {
  const Roles roles(files);
  const std::string_view id = "_id", token_id = "_token_id";
  for (const char* const name : {"config.json", "generation_config.json"}) {
    const auto text = files.find(name);
    if (text == files.end()) continue;
    Json json = parse_json_object(text->second, name);
    for (const char* const key : of_older) json.erase(key);
    for (const char* const key : always) json.emplace(key, nullptr);
    if (const Json pad = roles.id_of_role("pad_token"); !pad.is_null()) json["pad_token_id"] = pad;
    for (auto& [key, value] : json.items()) {
      if (key.ends_with(token_id)) value = roles.id_of_role(key.substr(0, key.size() - id.size()));
    }
    text->second = json.dump(2) + "\n";
  }
}

}  // namespace kolo::models
