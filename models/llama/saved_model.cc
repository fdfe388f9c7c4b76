#include "models/llama/saved_model.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <regex>
#include <span>
#include <system_error>

#include "models/checkpoint/checkpoint.h"
#include "models/checkpoint/safetensors.h"
#include "models/llama/config.h"
#include "models/llama/json_file.h"
#include "models/llama/pretrained.h"
#include "models/llama/token_ids.h"
#include "models/util/atomic_file.h"
#include "models/util/atomic_folder.h"
#include "models/util/error.h"

namespace kolo::models {
namespace {

namespace fs = std::filesystem;

constexpr const char* config_name = "config.json";
constexpr const char* generation_name = "generation_config.json";
constexpr std::array model_names{config_name, generation_name};
constexpr const char* tokenizer_name = "tokenizer.json";
constexpr const char* tokenizer_config_name = "tokenizer_config.json";
constexpr std::array tokenizer_names{tokenizer_name, tokenizer_config_name, "tokenizer.model",
                                     "special_tokens_map.json", "chat_template.jinja"};

bool is_of_parameters(const std::string& name) {
  static const std::regex pattern(R"(model(-\d{5}-of-\d{5})?\.safetensors(\.index\.json)?)");
  return std::regex_match(name, pattern);
}

bool is_of_model(const std::string& name) {
  const auto among = [&](const auto& names) { return std::ranges::find(names, name) != names.end(); };
  return is_of_parameters(name) || among(model_names) || among(tokenizer_names);
}

/// Puts the texts of those of the named files that a folder has.
void read_files(const fs::path& folder, std::span<const char* const> names, std::map<std::string, std::string>& texts) {
  for (const char* const name : names) {
    std::error_code ignored;
    if (fs::is_regular_file(folder / name, ignored)) texts[name] = read_text_file(folder / name);
  }
}

/// The folder itself: links are followed, and no slash is left at its end.
fs::path folder_at(const fs::path& path) {
  std::error_code error;
  fs::path folder = fs::weakly_canonical(path, error);
  if (error) refuse_to_write(path, error.message());
  return folder.has_filename() ? folder : folder.parent_path();
}

/// What a folder holds; nothing if there is none. Errors: ModelError if it is something else, or cannot be read.
std::vector<std::string> names_in(const fs::path& folder) {
  std::vector<std::string> names;
  std::error_code error;
  if (!fs::exists(folder, error)) return names;
  if (!fs::is_directory(folder, error)) {
    throw ModelError(fmt::format(
        "cannot write {} (it is a file); name a new folder, or a file that ends in .safetensors", folder.string()));
  }
  for (fs::directory_iterator at(folder, error), end; !error && at != end; at.increment(error)) {
    names.push_back(at->path().filename().string());
  }
  if (error) refuse_to_write(folder, error.message());
  return names;
}

/// Two texts of one tokenizer.json, whatever the spaces between its words and the order of its keys.
bool is_same_tokenizer(const std::string& one, const std::string& other) {
  const auto content = [](const std::string& text) { return nlohmann::json::parse(text, nullptr, false); };
  return one == other || content(one) == content(other);  // what is no JSON is like nothing
}

AtomicFolder begin_folder(const fs::path& folder) {
  return {folder.parent_path() / (".writing-" + folder.filename().string()), folder};
}

}  // namespace

bool is_saved_as_file(const fs::path& path) {
  return path.extension() == ".safetensors";
}

void check_savable(const fs::path& path) {
  if (is_saved_as_file(path)) return check_writable(path);
  const fs::path folder = folder_at(path);
  for (const std::string& name : names_in(folder)) {
    if (is_of_model(name)) continue;
    throw ModelError(
        fmt::format("cannot write {} (it holds {}, which is no file of a model); name a new folder, or a "
                    "file that ends in .safetensors",
                    path.string(), in_quotes(name)));
  }
  const AtomicFolder probe = begin_folder(folder);
}

std::map<std::string, std::string> companions_of(const fs::path& path) {
  std::map<std::string, std::string> texts;
  const auto folder = model_folder(path);
  if (!folder) return texts;
  read_files(*folder, model_names, texts);
  read_files(*folder, tokenizer_names, texts);
  return texts;
}

void replace_tokenizer(std::map<std::string, std::string>& companions, const fs::path& file) {
  const std::string text = file.empty() ? "" : read_text_file(file);
  const auto before = companions.find(tokenizer_name);
  const bool is_same = before != companions.end() && is_same_tokenizer(before->second, text);
  for (const char* const name : tokenizer_names) companions.erase(name);
  if (file.filename() == tokenizer_name) read_files(file.parent_path(), tokenizer_names, companions);
  if (!file.empty()) {
    companions[tokenizer_name] = text;
    companions.try_emplace(tokenizer_config_name, "{\n  \"tokenizer_class\": \"PreTrainedTokenizerFast\"\n}\n");
  }
  if (is_same) return;
  companions.try_emplace(config_name, "{}");
  put_token_ids(companions);
}

void SavedModel::write(const fs::path& path, Model& values) const {
  const HostValues tensors(values);
  const auto base = companions.find(config_name);
  const std::string config =
      config_text(model, settings, stored, base == companions.end() ? std::string() : base->second);
  if (is_saved_as_file(path)) {
    write_safetensors(path, tensors.all(), {{"format", "pt"}, {config_key, config}}, stored);
    return;
  }
  const fs::path folder = folder_at(path);
  AtomicFolder content = begin_folder(folder);
  write_model_files(content.path(), tensors.all(), {{"format", "pt"}}, stored, shard_bytes);
  std::map<std::string, std::string> texts = companions;
  if (model == "llama") texts.emplace(generation_name, "{\n  \"_from_model_config\": true\n}\n");
  texts[config_name] = config;
  for (const auto& [name, text] : texts) write_atomic_file(content.path() / name, text);
  for (const std::string& name : names_in(folder)) {  // what others have put there meanwhile is not lost
    std::error_code error;
    if (is_of_model(name)) continue;  // of the older one
    fs::create_hard_link(folder / name, content.path() / name, error);
    if (error) fs::rename(folder / name, content.path() / name, error);  // a folder
    if (error) refuse_to_write(folder / name, error.message());
  }
  content.commit();
}

}  // namespace kolo::models
