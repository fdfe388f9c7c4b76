#include "models/checkpoint/manifest.h"

#include <fmt/format.h>

#include <array>
#include <fstream>
#include <nlohmann/json.hpp>
#include <system_error>
#include <vector>

#include "models/checkpoint/crc32c.h"
#include "models/checkpoint/store.h"
#include "models/util/atomic_file.h"
#include "models/util/error.h"

namespace kolo::models {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

constexpr const char* manifest_file = "manifest.json";
constexpr std::array listed{model_file, optimizer_file, state_file};

/// What a manifest says of a file.
struct Seal {
  std::uint64_t bytes = 0;
  std::uint32_t crc = 0;
};

[[noreturn]] void unreadable(const fs::path& path) {
  throw ModelError(
      fmt::format("cannot read {} (it is missing or not readable); check the path and its permissions", path.string()));
}

Seal seal_of(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) unreadable(path);
  Seal seal;
  std::vector<char> piece(1 << 20);
  while (file.read(piece.data(), static_cast<std::streamsize>(piece.size())) || file.gcount() > 0) {
    const std::string_view bytes(piece.data(), static_cast<std::size_t>(file.gcount()));
    seal.bytes += bytes.size();
    seal.crc = crc32c(bytes, seal.crc);
  }
  return seal;
}

std::string text_of(const fs::path& path) {
  constexpr std::size_t most = 1 << 20;
  std::error_code error;
  if (!fs::is_regular_file(path, error)) unreadable(path);  // a pipe would be waited for
  std::ifstream file(path, std::ios::binary);
  if (!file) unreadable(path);
  std::string text(most, '\0');
  file.read(text.data(), static_cast<std::streamsize>(text.size()));
  text.resize(static_cast<std::size_t>(file.gcount()));
  return text;
}

std::string hex(std::uint32_t crc) {
  return fmt::format("{:08x}", crc);
}

std::optional<std::string> problem_of_file(const fs::path& folder, const std::string& name, const Json& said) {
  std::error_code error;
  const std::uint64_t bytes = fs::file_size(folder / name, error), wanted = said.at("bytes").get<std::uint64_t>();
  if (error) return fmt::format("{}: {}", name, error.message());
  if (bytes != wanted) return fmt::format("{} has {} bytes instead of {}", name, bytes, wanted);
  const std::string crc = hex(seal_of(folder / name).crc);
  if (crc != said.at("crc32c").get<std::string>()) return fmt::format("the CRC-32C of {} is wrong", name);
  return std::nullopt;
}

}  // namespace

void write_manifest(const fs::path& folder, std::int64_t step) {
  nlohmann::ordered_json manifest{{"format", "kolo checkpoint 1"}, {"step", step}};
  for (const char* name : listed) {
    const Seal seal = seal_of(folder / name);
    manifest["files"][name] = {{"bytes", seal.bytes}, {"crc32c", hex(seal.crc)}};
  }
  write_atomic_file(folder / manifest_file, manifest.dump(1) + "\n");
}

std::string read_state(const fs::path& folder) {
  return text_of(folder / state_file);
}

std::optional<std::string> problem_of(const StoredCheckpoint& checkpoint) {
  try {
    const Json manifest = Json::parse(text_of(checkpoint.folder / manifest_file));
    if (manifest.at("step").get<std::int64_t>() != checkpoint.step) return "manifest.json is of another step";
    for (const char* name : listed) {
      if (auto problem = problem_of_file(checkpoint.folder, name, manifest.at("files").at(name))) return problem;
    }
    return std::nullopt;
  } catch (const Json::exception&) {
    return "manifest.json is no manifest";
  } catch (const ModelError& error) {
    return error.what();
  }
}

}  // namespace kolo::models
