#include <fmt/format.h>
#include <fmt/ranges.h>

#include <nlohmann/json.hpp>

#include "models/tokenizer/definition.h"

namespace kolo::models {
namespace {

using OrderedJson = nlohmann::ordered_json;

OrderedJson byte_level(bool add_prefix_space, bool use_regex) {
  return {
      {"type", "ByteLevel"}, {"add_prefix_space", add_prefix_space}, {"trim_offsets", true}, {"use_regex", use_regex}};
}

OrderedJson pre_tokenizer(const TokenizerDefinition& definition) {
  if (definition.split == SplitPattern::gpt2) return byte_level(definition.add_prefix_space, true);
  const OrderedJson split{{"type", "Split"},
                          {"pattern", {{"Regex", regex_of(definition.split)}}},
                          {"behavior", "Isolated"},
                          {"invert", false}};
  return {{"type", "Sequence"}, {"pretokenizers", {split, byte_level(false, false)}}};
}

/// The added token of that id, or else the model's.
std::string name_of(const TokenizerDefinition& definition, std::int32_t id) {
  for (const AddedToken& token : definition.added) {
    if (token.id == id) return token.content;
  }
  return definition.vocabulary[static_cast<std::size_t>(id)];
}

OrderedJson post_processor(const TokenizerDefinition& definition) {
  if (definition.before.empty() && definition.behind.empty()) return byte_level(true, true);
  OrderedJson tokens = OrderedJson::object(), single = OrderedJson::array();
  const auto add = [&](const std::vector<std::int32_t>& ids) {
    for (const std::int32_t id : ids) {
      const std::string name = name_of(definition, id);
      single.push_back({{"SpecialToken", {{"id", name}, {"type_id", 0}}}});
      tokens[name] = {{"id", name}, {"ids", OrderedJson::array({id})}, {"tokens", OrderedJson::array({name})}};
    }
  };
  add(definition.before);
  single.push_back({{"Sequence", {{"id", "A"}, {"type_id", 0}}}});
  add(definition.behind);
  OrderedJson pair = single;
  pair.push_back({{"Sequence", {{"id", "B"}, {"type_id", 1}}}});
  return {{"type", "TemplateProcessing"}, {"single", single}, {"pair", pair}, {"special_tokens", tokens}};
}

std::string quoted(const std::string& text) {
  return OrderedJson(text).dump();
}

}  // namespace

std::string json_of(const TokenizerDefinition& definition) {
  OrderedJson added = OrderedJson::array();
  for (const AddedToken& token : definition.added) {
    added.push_back({{"id", token.id},
                     {"content", token.content},
                     {"single_word", false},
                     {"lstrip", false},
                     {"rstrip", false},
                     {"normalized", token.normalized},
                     {"special", token.special}});
  }
  const OrderedJson head{{"version", "1.0"},
                         {"truncation", nullptr},
                         {"padding", nullptr},
                         {"added_tokens", added},
                         {"normalizer", nullptr},
                         {"pre_tokenizer", pre_tokenizer(definition)},
                         {"post_processor", post_processor(definition)},
                         {"decoder", byte_level(true, true)}};
  const OrderedJson options{{"type", "BPE"},
                            {"dropout", nullptr},
                            {"unk_token", nullptr},
                            {"continuing_subword_prefix", nullptr},
                            {"end_of_word_suffix", nullptr},
                            {"fuse_unk", false},
                            {"byte_fallback", false},
                            {"ignore_merges", definition.ignore_merges}};
  // The long lists are written as text: an object of a hundred thousand keys in their order takes minutes to fill.
  std::vector<std::string> tokens, merges;
  for (std::size_t id = 0; id < definition.vocabulary.size(); ++id) {
    if (const std::string& token = definition.vocabulary[id]; !token.empty())
      tokens.push_back(fmt::format("{}:{}", quoted(token), id));
  }
  for (const auto& [left, right] : definition.merges) {
    merges.push_back(fmt::format("[{},{}]", quoted(definition.vocabulary[static_cast<std::size_t>(left)]),
                                 quoted(definition.vocabulary[static_cast<std::size_t>(right)])));
  }
  const auto open = [](const OrderedJson& object) {
    std::string text = object.dump();
    text.pop_back();
    return text;
  };
  return fmt::format("{},\n\"model\":{},\n\"vocab\":{{\n{}\n}},\n\"merges\":[\n{}\n]}}}}\n", open(head), open(options),
                     fmt::join(tokens, ",\n"), fmt::join(merges, ",\n"));
}

}  // namespace kolo::models
