#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace kolo {

/// Writes "kolo: LINE" to stderr in one piece.
void report_to_stderr(const std::string& line);

/// Settings of a session. Read from KOLO_* variables by from_environment(), or filled by hand.
struct Config {
  std::int64_t fusion_bytes = 64 << 20;
  std::string fusion_tuning = "auto";
  double timeout_seconds = 0;
  double stall_report_seconds = 10;
  double stall_abort_seconds = 600;
  std::int64_t spin_us = 200;
  std::int64_t remembered_tensors = 8192;
  std::string interfaces;
  std::string fake_nodes;
  std::string fake_domains;
  std::string backend = "auto";
  std::string shm_method = "auto";
  std::string tuning;
  std::string xpmem = "/dev/xpmem";
  std::string gpu_backend = "auto";
  std::int64_t gpu_direct_bytes = 2 << 20;
  std::int64_t gpu_pack_bytes = 64 << 20;
  std::int64_t gpu_staging_bytes = 16 << 20;
  std::string nccl_algo = "auto";
  std::string nccl_wire = "native";
  bool nccl_register = false;
  bool nccl_blocking = true;
  bool timings = false;
  bool banner = false;

  /// Whether the watchdog may end the process after `stall_abort_seconds`. Not set: only under MPI, whose launcher then
  /// ends the job. Where it may not, operations have that as their time-out unless they have another one, and making a
  /// world from a store fails after it.
  std::optional<bool> may_exit;

  /// Whether set() has set `fusion_bytes`, as from_environment() does.
  bool fusion_bytes_set = false;

  /// Whether the fusion threshold tunes itself, by `fusion_tuning`. With "auto" it does unless `fusion_bytes` was set,
  /// or is not the default.
  bool tunes_fusion() const;

  /// Receives one line for each warning and each stalled operation; the default writes to stderr. Called from any
  /// thread. May throw anything: that ends here.
  std::function<void(const std::string&)> report = report_to_stderr;

  /// Reads the process environment. Throws Error{invalid_argument} that names the variable, its value and the accepted
  /// values. `unknown`, unless null, gets one line for each KOLO_* variable that is no setting, with the nearest name.
  static Config from_environment(std::vector<std::string>* unknown = nullptr);

  /// Sets one value by its variable's name ("KOLO_FUSION_BYTES"). Throws Error{invalid_argument}.
  void set(std::string_view variable, std::string_view value);

  /// The value as text that set() reads back.
  std::string get(std::string_view variable) const;
};

/// The file that KOLO_TUNING names, or the default one in the user's cache folder; empty: none.
std::string tuning_path(const Config& config);

/// Calls config.report; if that throws, whatever it is, the line goes to stderr.
void report(const Config& config, const std::string& line) noexcept;

/// One row of the table of settings, the source of parser, validation, help text, README and start-up banner.
struct Setting {
  std::string_view variable;  ///< "KOLO_FUSION_BYTES"
  std::string_view type;      ///< "bytes", "seconds", "integer", "text", "flag"
  std::string_view unit;      ///< "" if none
  std::string_view doc;       ///< one line
  bool must_agree;            ///< whether every rank needs the same value
  std::function<void(Config&, std::string_view)> parse;
  std::function<std::string(const Config&)> print;
};

/// All settings, in the order in which they are documented.
std::span<const Setting> settings();

/// The table of settings for `--help`: name, default, doc line.
std::string settings_help();

/// The same table in Markdown, as it stands in README.md (a test compares them).
std::string settings_markdown();

/// "67108864", "64MB", "1.5G" → bytes; suffixes K, M, G, T (optionally followed by B or iB) count in 1024s.
std::optional<std::int64_t> parse_bytes(std::string_view text);

}  // namespace kolo
