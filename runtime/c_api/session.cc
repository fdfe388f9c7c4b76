#include <algorithm>

#include "runtime/c_api/parts.h"

// Settings, worlds, sessions and groups of the C API.

namespace kolo::c_api {
namespace {

kolo_config* config_from_environment() {
  auto made = std::make_unique<kolo_config>();
  made->config = Config::from_environment(&made->unknown);
  return made.release();
}

/// A row of settings() with null-terminated texts.
struct SettingTexts {
  explicit SettingTexts(const Setting& row)
      : variable(row.variable), type(row.type), unit(row.unit), doc(row.doc), must_agree(row.must_agree) {}
  std::string variable, type, unit, doc;
  bool must_agree;
};

const std::vector<SettingTexts>& setting_texts() {
  static const std::vector<SettingTexts> rows(settings().begin(), settings().end());
  return rows;
}

GroupOptions group_options(const kolo_group_options* given) {
  if (!given) return {};
  return {.order = enumerator<Order>(given->order, KOLO_ORDER_PROGRAM + 1, "kolo_order")};
}

int create_group(kolo_session* session, const int* ranks, size_t count, const kolo_group_options* options,
                 kolo_group** group, const char* function = __builtin_FUNCTION()) {
  const auto create = [&] {
    kolo_group*& made = result(group, "group");
    auto& chosen = at(session, "session").session;
    if (count > 0) at(ranks, "ranks");
    made = new kolo_group{chosen.new_group(std::span(ranks, count), group_options(options))};
  };
  return guarded(create, function);
}

int split_group(kolo_session* session, int color, int key, const kolo_group_options* options, kolo_group** group,
                const char* function = __builtin_FUNCTION()) {
  const auto split = [&] {
    kolo_group*& made = result(group, "group");
    made = new kolo_group{at(session, "session").session.split(color, key, group_options(options))};
  };
  return guarded(split, function);
}

}  // namespace

Config settings_of(const kolo_config* config) {
  const std::unique_ptr<kolo_config> environment(config ? nullptr : config_from_environment());
  const kolo_config& chosen = config ? *config : *environment;
  for (const std::string& line : chosen.unknown) report(chosen.config, line);
  return chosen.config;
}

}  // namespace kolo::c_api

using kolo::c_api::at;
using kolo::c_api::device_of;
using kolo::c_api::guarded;
using kolo::c_api::result;
using kolo::c_api::settings_of;

// ---- settings -------------------------------------------------------------------------------------------------------

int kolo_config_create(kolo_config** config) {
  return guarded([&] {
    kolo_config*& made = result(config, "config");
    made = new kolo_config{};
  });
}

int kolo_config_from_environment(kolo_config** config) {
  return guarded([&] {
    kolo_config*& made = result(config, "config");
    made = kolo::c_api::config_from_environment();
  });
}

int kolo_config_destroy(kolo_config* config) {
  return guarded([&] { delete config; });
}

int kolo_config_set(kolo_config* config, const char* variable, const char* value) {
  return guarded([&] { at(config, "config").config.set(&at(variable, "variable"), &at(value, "value")); });
}

int kolo_config_get(const kolo_config* config, const char* variable, const char** value) {
  return guarded([&] {
    const char*& text = result(value, "value");
    const kolo_config& chosen = at(config, "config");
    chosen.text = chosen.config.get(&at(variable, "variable"));
    text = chosen.text.c_str();
  });
}

int kolo_config_set_report(kolo_config* config, void (*report)(void*, const char*), void* user) {
  return guarded([&] {
    auto& target = at(config, "config").config.report;
    if (report) {
      target = [report, user](const std::string& line) { report(user, line.c_str()); };
    } else {
      target = kolo::report_to_stderr;
    }
  });
}

int kolo_config_set_may_exit(kolo_config* config, int may_exit) {
  return guarded([&] {
    auto& chosen = at(config, "config").config.may_exit;
    if (may_exit < -1 || may_exit > 1)
      throw std::invalid_argument(fmt::format("may_exit is {}; pass 1, 0, or -1 for the default", may_exit));
    chosen = may_exit == -1 ? std::nullopt : std::optional(may_exit == 1);
  });
}

int kolo_config_get_may_exit(const kolo_config* config, int* may_exit) {
  return guarded([&] {
    at(may_exit, "may_exit") = -1;
    if (const auto& chosen = at(config, "config").config.may_exit) *may_exit = *chosen ? 1 : 0;
  });
}

int kolo_config_report(const kolo_config* config, const char* line) {
  return guarded([&] { kolo::report(at(config, "config").config, &at(line, "line")); });
}

int kolo_settings_help(const char** text) {
  return guarded([&] {
    static const std::string help = kolo::settings_help();
    at(text, "text") = help.c_str();
  });
}

int kolo_settings_markdown(const char** text) {
  return guarded([&] {
    static const std::string table = kolo::settings_markdown();
    at(text, "text") = table.c_str();
  });
}

int kolo_parse_bytes(const char* text, int64_t* bytes) {
  return guarded([&] {
    at(bytes, "bytes") = 0;
    const auto parsed = kolo::parse_bytes(&at(text, "text"));
    if (!parsed)
      throw std::invalid_argument(fmt::format("'{}' is no number of bytes (such as 4096, 64MB, 1.5G)", text));
    *bytes = *parsed;
  });
}

int kolo_setting_count(int* count) {
  return guarded([&] { at(count, "count") = static_cast<int>(kolo::settings().size()); });
}

int kolo_setting_at(int index, kolo_setting* setting) {
  return guarded([&] {
    const auto& rows = kolo::c_api::setting_texts();
    at(setting, "setting") = {};
    if (index < 0 || index >= static_cast<int>(rows.size())) {
      throw std::invalid_argument(fmt::format("there is no setting {} (there are {}, from 0)", index, rows.size()));
    }
    const kolo::c_api::SettingTexts& row = rows[static_cast<std::size_t>(index)];
    *setting = {row.variable.c_str(), row.type.c_str(), row.unit.c_str(), row.doc.c_str(), row.must_agree ? 1 : 0};
  });
}

// ---- worlds ---------------------------------------------------------------------------------------------------------

int kolo_launcher_world(const kolo_config* config, kolo_world** world) {
  return guarded([&] {
    kolo_world*& made = result(world, "world");
    const kolo::Config settings = settings_of(config);
    made = new kolo_world{kolo::launcher_world(settings), settings};
  });
}

int kolo_solo_world(const kolo_config* config, kolo_world** world) {
  return guarded([&] {
    kolo_world*& made = result(world, "world");
    const kolo::Config settings = settings_of(config);
    made = new kolo_world{kolo::solo_world(settings), settings};
  });
}

int kolo_thread_worlds(int size, const kolo_config* config, kolo_world** worlds) {
  return guarded([&] {
    at(worlds, "worlds");
    const kolo::Config settings = settings_of(config);
    std::vector<std::unique_ptr<kolo_world>> made;
    for (kolo::World& world : kolo::thread_worlds(size, settings)) {
      made.push_back(std::make_unique<kolo_world>(kolo_world{std::move(world), settings}));
    }
    for (std::size_t rank = 0; rank < made.size(); ++rank) worlds[rank] = made[rank].release();
  });
}

int kolo_world_destroy(kolo_world* world) {
  return guarded([&] { delete world; });
}

// ---- sessions -------------------------------------------------------------------------------------------------------

int kolo_session_create(const kolo_config* config, kolo_session** session) {
  return guarded([&] {
    kolo_session*& made = result(session, "session");
    made = new kolo_session{kolo::Session(settings_of(config))};
  });
}

int kolo_session_create_in(kolo_world* world, kolo_session** session) {
  return guarded([&] {
    kolo_session*& made = result(session, "session");
    auto& chosen = at(world, "world").world;
    if (!chosen) throw std::invalid_argument("the world has served a session already; make another one");
    kolo::World taken = std::move(*chosen);
    chosen.reset();
    made = new kolo_session{kolo::Session(std::move(taken), world->config)};
  });
}

int kolo_session_close(kolo_session* session) {
  return guarded([&] { at(session, "session").session.close(); });
}

int kolo_session_destroy(kolo_session* session) {
  return guarded([&] { delete session; });
}

int kolo_session_abandon(kolo_session* session) {
  return guarded([&] {
    const std::unique_ptr<kolo_session> owner(session);
    if (session) session->session.abandon();
  });
}

int kolo_session_rank(const kolo_session* session, int* rank) {
  return guarded([&] { at(rank, "rank") = at(session, "session").session.rank(); });
}
int kolo_session_size(const kolo_session* session, int* size) {
  return guarded([&] { at(size, "size") = at(session, "session").session.size(); });
}
int kolo_session_local_rank(const kolo_session* session, int* local_rank) {
  return guarded([&] { at(local_rank, "local_rank") = at(session, "session").session.local_rank(); });
}
int kolo_session_local_size(const kolo_session* session, int* local_size) {
  return guarded([&] { at(local_size, "local_size") = at(session, "session").session.local_size(); });
}

int kolo_session_config(const kolo_session* session, kolo_config** config) {
  return guarded([&] {
    kolo_config*& made = result(config, "config");
    made = new kolo_config{.config = at(session, "session").session.config()};
  });
}

int kolo_session_device(const kolo_session* session, int* device_kind, int* device_index) {
  return guarded([&] {
    const kolo::Device device = at(session, "session").session.device();
    at(device_index, "device_index") = 0;
    at(device_kind, "device_kind") = static_cast<int>(device.kind);
    *device_index = device.index;
  });
}

int kolo_session_stats(const kolo_session* session, kolo_stats* stats) {
  return guarded([&] {
    at(stats, "stats") = {};
    const kolo::SessionStats now = at(session, "session").session.stats();
    stats->agreements = now.agreements;
    stats->tensors = now.tensors;
    stats->buckets = now.buckets;
    stats->full_announcements = now.full_announcements;
    stats->control_bytes_sent = now.control_bytes_sent;
    stats->control_bytes_received = now.control_bytes_received;
    stats->control_messages_sent = now.control_messages_sent;
    stats->staged_bytes = now.staged_bytes;
    stats->late_wakeups = now.late_wakeups;
    stats->bucket_seconds = now.bucket_seconds;
    stats->method = now.method;
    stats->device_peak_bytes = now.device_peak_bytes;
  });
}

// ---- groups ---------------------------------------------------------------------------------------------------------

int kolo_group_world(const kolo_session* session, kolo_group** group) {
  return guarded([&] {
    kolo_group*& made = result(group, "group");
    made = new kolo_group{at(session, "session").session.world()};
  });
}

int kolo_group_create(kolo_session* session, const int* ranks, size_t count, kolo_group** group) {
  return kolo::c_api::create_group(session, ranks, count, nullptr, group);
}
int kolo_group_create_with(kolo_session* session, const int* ranks, size_t count, const kolo_group_options* options,
                           kolo_group** group) {
  return kolo::c_api::create_group(session, ranks, count, options, group);
}

int kolo_group_split(kolo_session* session, int color, int key, kolo_group** group) {
  return kolo::c_api::split_group(session, color, key, nullptr, group);
}
int kolo_group_split_with(kolo_session* session, int color, int key, const kolo_group_options* options,
                          kolo_group** group) {
  return kolo::c_api::split_group(session, color, key, options, group);
}

int kolo_group_remove(kolo_session* session, const kolo_group* group) {
  return guarded([&] { at(session, "session").session.remove_group(at(group, "group").group); });
}

int kolo_group_destroy(kolo_group* group) {
  return guarded([&] { delete group; });
}

int kolo_group_rank(const kolo_group* group, int* rank) {
  return guarded([&] { at(rank, "rank") = at(group, "group").group.info()->rank; });
}
int kolo_group_size(const kolo_group* group, int* size) {
  return guarded([&] { at(size, "size") = at(group, "group").group.info()->size(); });
}
int kolo_group_ranks(const kolo_group* group, int* ranks) {
  return guarded([&] {
    const auto& members = at(group, "group").group.info()->ranks;
    if (!members.empty()) std::ranges::copy(members, &at(ranks, "ranks"));
  });
}
int kolo_group_name(const kolo_group* group, const char** name) {
  return guarded([&] { at(name, "name") = at(group, "group").group.info()->name.c_str(); });
}
int kolo_group_order(const kolo_group* group, int* order) {
  return guarded([&] { at(order, "order") = static_cast<int>(at(group, "group").group.info()->order); });
}
