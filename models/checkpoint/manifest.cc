#include "models/checkpoint/manifest.h"

#include <fmt/format.h>

#include <algorithm>
#include <fstream>
#include <nlohmann/json.hpp>
#include <system_error>

namespace kolo::models {
namespace {

namespace fs = std::filesystem;
using OrderedJson = nlohmann::ordered_json;

constexpr std::string_view any_format = "kolo checkpoint ", this_format = "kolo checkpoint 2";

[[noreturn]] void unreadable(const fs::path& path) {
  const std::string why =
      fmt::format("cannot read {} (it is missing or not readable); check the path and its permissions", path.string());
  if (is_certainly_missing(path)) throw ModelError(why);
  throw Unreadable(why);
}

[[noreturn]] void no_manifest(std::string_view reason) {
  throw ModelError(fmt::format("{} is no manifest ({})", manifest_file, reason));
}

std::string hex(std::uint32_t crc) {
  return fmt::format("{:08x}", crc);
}

OrderedJson json_of(const Seal& seal) {
  return {{"bytes", seal.bytes}, {"crc32c", hex(seal.crc)}};
}

Seal seal_in(const OrderedJson& json) {
  const auto crc = json.at("crc32c").get<std::string>();
  Seal seal{json.at("bytes").get<std::uint64_t>(), static_cast<std::uint32_t>(std::stoul(crc, nullptr, 16))};
  if (hex(seal.crc) != crc) no_manifest(fmt::format("{} is no CRC-32C", in_quotes(crc)));
  return seal;
}

std::uint64_t elements_of(const CutTensor& tensor) {
  std::uint64_t elements = 1;
  for (const std::uint64_t extent : tensor.shape) {
    if (__builtin_mul_overflow(elements, extent, &elements))
      no_manifest(fmt::format("{} has too many elements", in_quotes(tensor.name)));
  }
  return elements;
}

void check_cuts(const CutTensor& tensor, std::size_t parts) {
  const bool fit = tensor.cuts.size() == parts + 1 && std::ranges::is_sorted(tensor.cuts) && tensor.cuts.front() == 0 &&
                   tensor.cuts.back() == elements_of(tensor);
  if (!fit) no_manifest(fmt::format("{} is not cut into {} parts", in_quotes(tensor.name), parts));
}

/// Older manifests do not say what the loss is of: it is like no other's but theirs.
HeldOut held_out_in(const OrderedJson& json) {
  HeldOut found{json.at("held_out_loss").get<double>(), {.batches = -1}};
  if (json.contains("held_out_settled_for")) found.settled_for = json.at("held_out_settled_for").get<std::int64_t>();
  if (!json.contains("held_out_of")) return found;
  const OrderedJson& of = json.at("held_out_of");
  const auto number = [&](const char* key) {
    const auto value = of.at(key).get<std::int64_t>();
    if (value < 0) no_manifest(fmt::format("its {} are below 0", key));
    return value;
  };
  found.of = of == "all" ? EvaluatedOn{} : EvaluatedOn{number("batches"), number("ranks"), number("examples")};
  return found;
}

OrderedJson json_of(const EvaluatedOn& of) {
  if (of.is_all()) return "all";
  return {{"batches", of.batches}, {"ranks", of.ranks}, {"examples", of.examples}};
}

Manifest manifest_in(const OrderedJson& json) {
  const auto said = json.at("format").get<std::string>();
  if (said != this_format && said.starts_with(any_format)) {
    throw OtherFormat(fmt::format("it is a {}, and this version of kolo reads {}; go on with the version that wrote it",
                                  in_quotes(said), in_quotes(this_format)));
  }
  if (said != this_format) no_manifest("it is of no known format");
  Manifest manifest{.step = json.at("step").get<std::int64_t>()};
  if (json.contains("held_out_loss")) manifest.held_out = held_out_in(json);
  const OrderedJson& files = json.at("files");
  manifest.state = seal_in(files.at(state_file));
  const std::size_t parts = files.size() - 1;
  if (parts == 0) no_manifest("it has no parts");
  for (std::size_t part = 0; part < parts; ++part) manifest.parts.push_back(seal_in(files.at(file_of({part, parts}))));
  for (const auto& [name, tensor] : json.at("tensors").items()) {
    manifest.tensors.push_back({name, tensor.at("shape").get<std::vector<std::uint64_t>>(),
                                tensor.at("cuts").get<std::vector<std::uint64_t>>()});
    check_cuts(manifest.tensors.back(), parts);
  }
  return manifest;
}

}  // namespace

std::string file_of(const Part& part) {
  return fmt::format("part-{:05}-of-{:05}.safetensors", part.index, part.of);
}

std::vector<std::uint64_t> even_cuts(std::uint64_t elements, std::size_t parts) {
  const std::uint64_t each = elements / parts, more = elements % parts;
  std::vector<std::uint64_t> cuts;
  for (std::uint64_t part = 0; part <= parts; ++part) cuts.push_back(part * each + std::min(part, more));
  return cuts;
}

std::string to_text(const Manifest& manifest) {
  OrderedJson json{{"format", this_format}, {"step", manifest.step}};
  if (manifest.held_out) json["held_out_loss"] = manifest.held_out->loss;
  if (manifest.held_out && manifest.held_out->of.batches >= 0) json["held_out_of"] = json_of(manifest.held_out->of);
  if (manifest.held_out && manifest.held_out->settled_for >= 0)
    json["held_out_settled_for"] = manifest.held_out->settled_for;
  json["files"][state_file] = json_of(manifest.state);
  for (std::size_t part = 0; part < manifest.parts.size(); ++part)
    json["files"][file_of({part, manifest.parts.size()})] = json_of(manifest.parts[part]);
  std::string tensors;  // one a line
  for (const CutTensor& tensor : manifest.tensors) {
    tensors += fmt::format("{}\n  {}: {}", tensors.empty() ? "" : ",", OrderedJson(tensor.name).dump(),
                           OrderedJson{{"shape", tensor.shape}, {"cuts", tensor.cuts}}.dump());
  }
  std::string text = json.dump(1);
  text.resize(text.size() - std::string_view("\n}").size());
  return fmt::format("{},\n \"tensors\": {{{}\n }}\n}}\n", text, tensors);
}

Manifest parse_manifest(std::string_view text) {
  try {
    return manifest_in(OrderedJson::parse(text));
  } catch (const OrderedJson::exception&) {
    no_manifest("its text is damaged");
  } catch (const std::logic_error&) {  // of std::stoul
    no_manifest("its text is damaged");
  }
}

bool is_certainly_missing(const fs::path& path) {
  std::error_code ignored;
  if (fs::symlink_status(path, ignored).type() != fs::file_type::not_found) return false;
  const fs::path folder = path.parent_path();
  return folder.empty() || fs::exists(folder, ignored) || is_certainly_missing(folder);
}

std::string text_of(const fs::path& path) {
  constexpr std::uintmax_t most = std::uintmax_t{256} << 20;
  std::error_code error;
  const fs::file_status status = fs::status(path, error);
  if (error || !fs::exists(status)) unreadable(path);
  if (!fs::is_regular_file(status))  // a pipe would be waited for
    throw ModelError(fmt::format("{} is no regular file", path.filename().string()));
  std::ifstream file(path, std::ios::binary | std::ios::ate);  // the size is that of what is read: it may be replaced
  const auto bytes = static_cast<std::uintmax_t>(file.tellg());
  if (!file || bytes > most) unreadable(path);
  std::string text(bytes, '\0');
  file.seekg(0);
  file.read(text.data(), static_cast<std::streamsize>(text.size()));
  if (file.bad()) unreadable(path);
  text.resize(static_cast<std::size_t>(file.gcount()));
  return text;
}

Seal seal_of(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) unreadable(path);
  Seal seal;
  std::vector<char> piece(1 << 20);
  while (file.read(piece.data(), static_cast<std::streamsize>(piece.size())) || file.gcount() > 0)
    seal.add({piece.data(), static_cast<std::size_t>(file.gcount())});
  return seal;
}

std::optional<std::string> problem_of_size(const fs::path& path, const Seal& wanted) {
  std::error_code error;
  const std::string name = path.filename().string();
  const std::uint64_t bytes = fs::file_size(path, error);
  if (error) return fmt::format("{}: {}", name, error.message());
  if (bytes != wanted.bytes) return fmt::format("{} has {} bytes instead of {}", name, bytes, wanted.bytes);
  return std::nullopt;
}

std::optional<std::string> problem_of_file(const fs::path& path, const Seal& wanted) {
  if (auto problem = problem_of_size(path, wanted)) return problem;
  if (seal_of(path) == wanted) return std::nullopt;
  return fmt::format("the CRC-32C of {} is wrong", path.filename().string());
}

}  // namespace kolo::models
