#include <kolo/config.h>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <limits>
#include <numeric>
#include <utility>

#include <kolo/detail/cache_folder.h>
#include <kolo/error.h>

extern char** environ;

namespace kolo {
namespace {

[[noreturn]] void refuse(std::string_view variable, std::string_view value, std::string_view accepted) {
  throw Error(ErrorCode::invalid_argument, fmt::format("{} is '{}'; it takes {}", variable, value, accepted));
}

std::optional<double> parse_number(std::string_view text) {
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || !std::isfinite(value)) return std::nullopt;
  return value;
}

Setting bytes_setting(std::string_view variable, std::string_view doc, bool must_agree, std::int64_t Config::*field) {
  return {variable,
          "bytes",
          "bytes",
          doc,
          must_agree,
          [=](Config& config, std::string_view text) {
            const auto value = parse_bytes(text);
            if (!value || *value < 1)
              refuse(variable, text, "a positive number of bytes, such as 67108864 or 64MB (K, M, G count in 1024s)");
            config.*field = *value;
          },
          [=](const Config& config) { return fmt::format("{}", config.*field); }};
}

Setting seconds_setting(std::string_view variable, std::string_view doc, double Config::*field, bool zero_allowed) {
  return {variable,
          "seconds",
          "s",
          doc,
          false,
          [=](Config& config, std::string_view text) {
            const auto value = parse_number(text);
            if (!value || *value < 0 || (*value == 0 && !zero_allowed)) {
              refuse(variable, text,
                     zero_allowed ? "a number of seconds, 0 for never" : "a positive number of seconds");
            }
            config.*field = *value;
          },
          [=](const Config& config) { return fmt::format("{}", config.*field); }};
}

/// `what`: it counts, such as "microseconds".
Setting whole_setting(std::string_view variable, std::string_view what, std::string_view unit, std::int64_t least,
                      std::string_view doc, std::int64_t Config::*field) {
  return {variable,
          "integer",
          unit,
          doc,
          false,
          [=](Config& config, std::string_view text) {
            const auto value = parse_number(text);
            if (!value || *value < static_cast<double>(least) || *value > 1e9 || *value != std::floor(*value))
              refuse(variable, text, fmt::format("a whole number of {}, {} or more", what, least));
            config.*field = static_cast<std::int64_t>(*value);
          },
          [=](const Config& config) { return fmt::format("{}", config.*field); }};
}

Setting text_setting(std::string_view variable, std::string_view doc, bool must_agree, std::string Config::*field) {
  return {variable,
          "text",
          "",
          doc,
          must_agree,
          [=](Config& config, std::string_view text) { config.*field = std::string(text); },
          [=](const Config& config) { return config.*field; }};
}

Setting choice_setting(std::string_view variable, std::string_view doc, std::string Config::*field,
                       const std::vector<std::string>& choices) {
  return {variable,
          "text",
          "",
          doc,
          true,
          [=](Config& config, std::string_view text) {
            if (std::find(choices.begin(), choices.end(), text) == choices.end()) {
              refuse(variable, text, fmt::format("one of {}", fmt::join(choices, ", ")));
            }
            config.*field = std::string(text);
          },
          [=](const Config& config) { return config.*field; }};
}

Setting flag_setting(std::string_view variable, std::string_view doc, bool Config::*field, bool must_agree = false) {
  return {variable,
          "flag",
          "",
          doc,
          must_agree,
          [=](Config& config, std::string_view text) {
            if (text != "0" && text != "1") refuse(variable, text, "0 or 1");
            config.*field = text == "1";
          },
          [=](const Config& config) { return std::string(config.*field ? "1" : "0"); }};
}

/// Whoever sets it does not want another one.
Setting fusion_setting() {
  Setting setting =
      bytes_setting("KOLO_FUSION_BYTES", "Fusion threshold: a bucket is closed once it holds this many bytes.", true,
                    &Config::fusion_bytes);
  setting.parse = [parse = setting.parse](Config& config, std::string_view text) {
    parse(config, text);
    config.fusion_bytes_set = true;
  };
  return setting;
}

const std::array<Setting, 24>& table() {
  static const std::array<Setting, 24> rows{{
      fusion_setting(),
      choice_setting(
          "KOLO_FUSION_TUNING",
          "Whether rank 0 of a group tunes the fusion threshold of host tensors by the times of the program's steps, "
          "from KOLO_FUSION_BYTES downwards: on, off, or auto: unless KOLO_FUSION_BYTES is set.",
          &Config::fusion_tuning, {"auto", "on", "off"}),
      seconds_setting(
          "KOLO_TIMEOUT_SECONDS",
          "An operation fails on every rank that takes part, naming the ranks that are missing, when one of "
          "them has waited for it longer than this; calls may say otherwise; 0: never.",
          &Config::timeout_seconds, true),
      seconds_setting(
          "KOLO_STALL_REPORT_SECONDS",
          "Every rank that takes part reports an operation, or a session being created, that waits longer than this; "
          "again after 2, 4, 8 times as long.",
          &Config::stall_report_seconds, false),
      seconds_setting(
          "KOLO_STALL_ABORT_SECONDS",
          "The job is aborted with exit code 72 when an operation, or a session being created, waits longer than this, "
          "and nothing has moved on its rank for as long; 0: never.",
          &Config::stall_abort_seconds, true),
      whole_setting("KOLO_SPIN_US", "microseconds", "us", 0, "How long a waiting thread spins before it sleeps.",
                    &Config::spin_us),
      whole_setting("KOLO_REMEMBERED_TENSORS", "tensors", "", 1,
                    "Number of tensors whose names, shapes and buckets the ranks of a group remember; the least "
                    "recently used are "
                    "announced in full when they come back. Doubles where a quarter of the new ones come back.",
                    &Config::remembered_tensors),
      text_setting(
          "KOLO_INTERFACE",
          "Network interfaces, with commas between them, by whose addresses nodes reach each other; unset: all "
          "but the loopback one.",
          false, &Config::interfaces),
      text_setting("KOLO_FAKE_NODES",
                   "Number of ranks on each node, in rank order (\"2,2\"), instead of the real placement; for tests.",
                   true, &Config::fake_nodes),
      text_setting("KOLO_FAKE_DOMAINS",
                   "Number of ranks that share each cache, in rank order (\"2,2\"), instead of the real placement on "
                   "cores; for tests.",
                   true, &Config::fake_domains),
      choice_setting("KOLO_BACKEND",
                     "Backend of host tensors: auto, local (ranks in one process), shm (ranks on one node) or mpi.",
                     &Config::backend, {"auto", "local", "shm", "mpi"}),
      choice_setting(
          "KOLO_SHM_METHOD",
          "How large host tensors travel within a node: ring (through memory that ranks share), read (out of "
          "each other's memory), mapped (where session memory lies), each where it can be; measure: as the "
          "first operations of each size find out; auto: as KOLO_TUNING says, else measure.",
          &Config::shm_method, {"auto", "measure", "ring", "read", "mapped"}),
      text_setting("KOLO_TUNING",
                   "File in which kolo-bench --tune has noted what is fastest on this machine; none: no such file. "
                   "(unset: kolo/tuning in the user's cache folder)",
                   false, &Config::tuning),
      text_setting(
          "KOLO_XPMEM",
          "Device of XPMEM, by which ranks of a node attach the memory that their sessions have adopted, where "
          "all of them can; none: it becomes memory that they share.",
          false, &Config::xpmem),
      choice_setting("KOLO_GPU_BACKEND", "Backend of GPU tensors: auto, nccl, or staged (through host memory).",
                     &Config::gpu_backend, {"auto", "nccl", "staged"}),
      bytes_setting(
          "KOLO_GPU_DIRECT_BYTES",
          "NCCL reads and writes GPU tensors of at least this size directly; smaller ones are packed into a buffer.",
          true, &Config::gpu_direct_bytes),
      bytes_setting("KOLO_GPU_PACK_BYTES", "Size of the pack buffer on each rank's GPU, made on first use.", true,
                    &Config::gpu_pack_bytes),
      bytes_setting(
          "KOLO_GPU_STAGING_BYTES",
          "Pinned host memory of the staged backend, for each rank: made on first use, in up to 4 chunks that its "
          "groups share; one chunk for each that has something in flight, if that is more.",
          true, &Config::gpu_staging_bytes),
      choice_setting(
          "KOLO_NCCL_ALGO",
          "Algorithm of NCCL's all_reduce: auto, ring, tree or nvls. NCCL learns it from NCCL_ALGO only: the "
          "session is refused, saying what to set, where a rank has none.",
          &Config::nccl_algo, {"auto", "ring", "tree", "nvls"}),
      choice_setting(
          "KOLO_NCCL_WIRE",
          "How NCCL sums 16-bit floats: native (rounded after every addition) or f32 (sent and added as f32).",
          &Config::nccl_wire, {"native", "f32"}),
      flag_setting(
          "KOLO_NCCL_REGISTER",
          "1: session memory is registered with NCCL, which uses tensors where they are if all ranks have them "
          "at the same offsets in it; others go through the pack buffer.",
          &Config::nccl_register, true),
      flag_setting("KOLO_NCCL_BLOCKING",
                   "1: NCCL's communicators block, and threads of kolo's make and connect them; 0: they do not block, "
                   "and NCCL has a thread for each launch.",
                   &Config::nccl_blocking, true),
      flag_setting("KOLO_TIMINGS",
                   "1: SessionStats report how long collectives took; on GPUs this is measured with events, which "
                   "costs a little "
                   "time itself.",
                   &Config::timings),
      flag_setting("KOLO_BANNER",
                   "1: when a session starts, rank 0 prints the settings in effect and the GPU of each rank.",
                   &Config::banner),
  }};
  return rows;
}

/// KOLO_ variables of the tests and of PyTorch's package, not of a session.
constexpr std::array<std::string_view, 5> other_variables{"KOLO_IMPERSONATE", "KOLO_PYTHON", "KOLO_SHARED_DIR",
                                                          "KOLO_TORCH_PYTHON", "KOLO_TORCH_SITE"};

std::size_t edit_distance(std::string_view a, std::string_view b) {  // Levenshtein, one row at a time
  std::vector<std::size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), std::size_t{0});
  for (std::size_t i = 0; i < a.size(); ++i) {
    std::size_t diagonal = std::exchange(row[0], i + 1);
    for (std::size_t j = 0; j < b.size(); ++j) {
      const std::size_t replaced = diagonal + (a[i] == b[j] ? 0 : 1);
      diagonal = row[j + 1];
      row[j + 1] = std::min({replaced, row[j] + 1, row[j + 1] + 1});
    }
  }
  return row.back();
}

/// The setting that was probably meant: one with nearly this spelling, or the only one with this prefix. Empty if there
/// is none.
std::string_view suggestion(std::string_view name) {
  const auto nearest = std::min_element(table().begin(), table().end(), [&](const Setting& a, const Setting& b) {
    return edit_distance(name, a.variable) < edit_distance(name, b.variable);
  });
  if (edit_distance(name, nearest->variable) <= name.size() / 3) return nearest->variable;
  const auto has_prefix = [&](const Setting& row) { return row.variable.starts_with(name); };
  if (std::count_if(table().begin(), table().end(), has_prefix) != 1) return {};
  return std::find_if(table().begin(), table().end(), has_prefix)->variable;
}

std::string unknown_variable(std::string_view name) {
  const auto meant = suggestion(name);
  return meant.empty() ? fmt::format("{} is no setting", name)
                       : fmt::format("{} is no setting; did you mean {}?", name, meant);
}

}  // namespace

void report_to_stderr(const std::string& line) {
  const std::string text = "kolo: " + line + "\n";
  for (std::size_t written = 0; written < text.size();) {
    const auto count = write(STDERR_FILENO, text.data() + written, text.size() - written);
    if (count <= 0) return;
    written += static_cast<std::size_t>(count);
  }
}

void report(const Config& config, const std::string& line) noexcept {
  try {
    config.report(line);
  } catch (...) {
    report_to_stderr(line);
  }
}

std::string tuning_path(const Config& config) {
  if (config.tuning == "none") return "";
  if (!config.tuning.empty()) return config.tuning;
  const std::string cache = detail::cache_folder();
  return cache.empty() ? "" : cache + "/tuning";
}

std::span<const Setting> settings() {
  return table();
}

Config Config::from_environment(std::vector<std::string>* unknown) {
  Config config;
  for (char** entry = environ; *entry; ++entry) {
    const std::string_view text(*entry);
    const auto equals = text.find('=');
    if (!text.starts_with("KOLO_") || equals == text.npos) continue;
    const auto name = text.substr(0, equals);
    const bool known =
        std::any_of(table().begin(), table().end(), [&](const Setting& row) { return row.variable == name; });
    const bool foreign = std::find(other_variables.begin(), other_variables.end(), name) != other_variables.end();
    if (known) config.set(name, text.substr(equals + 1));
    if (!known && !foreign && unknown) unknown->push_back(unknown_variable(name));
  }
  return config;
}

void Config::set(std::string_view variable, std::string_view value) {
  for (const Setting& row : table()) {
    if (row.variable == variable) return row.parse(*this, value);
  }
  throw Error(ErrorCode::invalid_argument, unknown_variable(variable));
}

bool Config::tunes_fusion() const {
  const bool fixed = fusion_bytes_set || fusion_bytes != Config().fusion_bytes;
  return fusion_tuning == "on" || (fusion_tuning == "auto" && !fixed);
}

std::string Config::get(std::string_view variable) const {
  for (const Setting& row : table()) {
    if (row.variable == variable) return row.print(*this);
  }
  throw Error(ErrorCode::invalid_argument, unknown_variable(variable));
}

std::string settings_help() {
  std::string text;
  for (const Setting& row : table()) {
    const auto value = row.print(Config());
    text += fmt::format("  {:<28} {} (default: {}{}{})\n", row.variable, row.doc, value.empty() ? "unset" : value,
                        row.unit.empty() ? "" : " ", row.unit);
  }
  return text;
}

std::string settings_markdown() {
  std::string text = "| variable | default | unit | same on all ranks | what it does |\n|---|---|---|---|---|\n";
  for (const Setting& row : table()) {
    const auto value = row.print(Config());
    text += fmt::format("| `{}` | {} | {} | {} | {} |\n", row.variable, value.empty() ? "unset" : value, row.unit,
                        row.must_agree ? "yes" : "no", row.doc);
  }
  return text;
}

std::optional<std::int64_t> parse_bytes(std::string_view text) {
  std::size_t digits = 0;
  while (digits < text.size() && (std::isdigit(static_cast<unsigned char>(text[digits])) || text[digits] == '.'))
    ++digits;
  const auto number = parse_number(text.substr(0, digits));
  std::string suffix(text.substr(digits));
  std::transform(suffix.begin(), suffix.end(), suffix.begin(), [](unsigned char c) { return std::toupper(c); });
  if (suffix.ends_with("IB"))
    suffix.erase(suffix.size() - 2);
  else if (suffix.ends_with("B"))
    suffix.pop_back();
  constexpr std::string_view scales = "KMGT";
  double factor = 1;
  if (suffix.size() == 1 && scales.find(suffix[0]) != scales.npos) {
    factor = std::pow(1024.0, static_cast<double>(scales.find(suffix[0]) + 1));
  } else if (!suffix.empty()) {
    return std::nullopt;
  }
  if (!number || *number * factor > 9e18) return std::nullopt;
  return static_cast<std::int64_t>(*number * factor);
}

}  // namespace kolo
