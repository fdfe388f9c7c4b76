#include "runtime/control/handshake.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <iterator>
#include <map>
#include <numeric>
#include <set>
#include <span>
#include <string>
#include <thread>

#include <kolo/detail/hash.h>
#include <kolo/error.h>

#include "runtime/control/topology.h"
#include "runtime/control/wire.h"
#include "runtime/types/rank_set.h"

namespace kolo {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::size_t most_hosts = 8;  // that are named

using Values = std::map<std::string, RankSet>;  // value of a setting → the ranks with it
using Survey = std::map<std::string, Values>;   // by setting

Survey own_settings(const Config& config, int rank) {
  Survey survey;
  for (const Setting& row : settings()) {
    if (row.must_agree) survey[std::string(row.variable)][row.print(config)] = {rank};
  }
  return survey;
}

void put(Writer& writer, const Survey& survey) {
  writer.put(static_cast<std::uint32_t>(survey.size()));
  for (const auto& [setting, values] : survey) {
    writer.put(setting);
    writer.put(static_cast<std::uint32_t>(values.size()));
    for (const auto& [value, ranks] : values) {
      writer.put(value);
      encode(writer, ranks);
    }
  }
}

void merge(Survey& survey, Reader& reader) {
  for (auto settings = reader.get_length(8); settings > 0; --settings) {
    Values& values = survey[reader.get_string()];
    for (auto count = reader.get_length(8); count > 0; --count) {
      RankSet& ranks = values[reader.get_string()];
      ranks.add(decode_rank_set(reader));
    }
  }
}

/// "host0", "host0, host1"; of very many the first ones.
std::string names_of_hosts(const RankSet& ranks, std::span<const std::string> hosts) {
  std::set<std::string> names;
  for (std::size_t rank = 0; rank < hosts.size() && names.size() <= most_hosts; ++rank) {
    if (ranks.contains(static_cast<int>(rank))) names.insert(hosts[rank]);
  }
  const bool too_many = names.size() > most_hosts;
  if (too_many) names.erase(std::prev(names.end()));
  return fmt::format("{}{}", fmt::join(names, ", "), too_many ? " and others" : "");
}

/// Which setting is not the same on all ranks, and where it is what; hosts by rank.
std::string verdict(const Survey& survey, std::span<const std::string> hosts) {
  const bool one_host = std::ranges::all_of(hosts, [&](const std::string& host) { return host == hosts.front(); });
  for (const auto& [setting, values] : survey) {
    if (values.size() == 1) continue;
    std::string sides;
    for (const auto& [value, ranks] : values) {
      sides += fmt::format("{}{}{}: {}", sides.empty() ? "" : "; ", to_string(ranks),
                           one_host ? "" : " on " + names_of_hosts(ranks, hosts), value.empty() ? "none" : value);
    }
    return fmt::format("ranks have different values of {} ({}); export the same value to every rank, with mpirun -x {}",
                       setting, sides, setting);
  }
  return "";
}

/// A loss that is noticed meanwhile is left in the channel unless nothing comes any more. Where the watchdog ends the
/// job when this takes too long there is no deadline.
ControlChannel::Message next_message(ControlChannel& control, Clock::time_point deadline) {
  ControlChannel::Message message;
  constexpr auto never = Clock::time_point::max();
  auto since = never;  // something is pending which is no message
  while (!control.receive(message)) {
    if (Clock::now() >= deadline)
      throw Error(ErrorCode::stalled,
                  "making the session: not every rank has come (reports say which); see how the others have ended");
    if (Clock::now() - since > ControlChannel::word_comes_within) {
      if (const auto loss = control.take_loss())
        throw Error(ErrorCode::aborted, fmt::format("while the session was made: {}; see what it printed", loss->text));
    }
    control.flush();
    const auto ticket = control.doorbell().arm();
    control.listen();
    if (!control.pending()) {
      since = never;
      control.doorbell().sleep(ticket, std::chrono::milliseconds(100));
    } else if (since == never) {
      since = Clock::now();
    } else {
      control.doorbell().sleep(ticket, std::chrono::milliseconds(1));
    }
    control.doorbell().disarm();
  }
  return message;
}

/// What others send before it is kept in `early`.
ControlChannel::Message message_of_parent(ControlChannel& control, const TreePosition& position,
                                          std::vector<ControlChannel::Message>& early, Clock::time_point deadline) {
  auto message = next_message(control, deadline);
  for (; message.from != position.parent; message = next_message(control, deadline))
    early.push_back(std::move(message));
  return message;
}

void send_down(ControlChannel& control, const TreePosition& position, const Writer& message) {
  for (int child : position.children) control.send(child, message.bytes());
  while (!control.flush()) std::this_thread::yield();
}

/// Whether every rank has this hash; known to all when it returns.
bool all_have(std::uint64_t hash, ControlChannel& control, const TreePosition& position,
              std::vector<ControlChannel::Message>& early, Clock::time_point deadline) {
  bool all = true;
  for (std::size_t child = 0; child < position.children.size(); ++child) {
    const auto message = next_message(control, deadline);
    Reader reader(message.bytes);
    all = reader.get<std::uint8_t>() != 0 && reader.get<std::uint64_t>() == hash && all;
  }
  if (!position.root()) {
    Writer up;
    up.put(static_cast<std::uint8_t>(all));
    up.put(hash);
    control.send(position.parent, up.bytes());
    all = Reader(message_of_parent(control, position, early, deadline).bytes).get<std::uint8_t>() != 0;
  }
  Writer down;
  down.put(static_cast<std::uint8_t>(all));
  send_down(control, position, down);
  return all;
}

}  // namespace

std::string Build::own() {
  return KOLO_BUILD;
}

std::uint64_t hash_of_settings(const Config& config, const Build& build) {
  return detail::Hash().add(settings_message(config, 0, "", build)).value();
}

/// Begins in the same way in all versions of kolo: protocol, build, host.
std::vector<std::byte> settings_message(const Config& config, int rank, std::string_view host, const Build& build) {
  Writer writer;
  writer.put(build.protocol);
  writer.put(std::string_view(build.kolo));
  writer.put(host);
  put(writer, own_settings(config, rank));
  return {writer.bytes().begin(), writer.bytes().end()};
}

void check_settings(std::span<const std::vector<std::byte>> messages) {
  std::map<std::string, RankSet> builds;
  std::vector<std::string> hosts;
  std::vector<Reader> settings;
  for (const auto& message : messages) {
    Reader& reader = settings.emplace_back(message);
    const auto protocol = reader.get<std::uint32_t>();
    const std::string build = fmt::format("{}, protocol {}", reader.get_string(), protocol);
    builds[build].add(static_cast<int>(settings.size()) - 1);
    hosts.push_back(reader.get_string());
  }
  if (builds.size() > 1) {
    std::vector<std::string> sides;
    for (const auto& [build, ranks] : builds)
      sides.push_back(fmt::format("{} on {}: kolo {}", to_string(ranks), names_of_hosts(ranks, hosts), build));
    throw Error(ErrorCode::mismatch,
                fmt::format("ranks run different builds of kolo ({}); start the same one on every host",
                            fmt::join(sides, "; ")));
  }
  Survey survey;
  for (Reader& reader : settings) merge(survey, reader);
  if (const std::string problem = verdict(survey, hosts); !problem.empty()) throw Error(ErrorCode::mismatch, problem);
}

std::vector<ControlChannel::Message> agree_on_settings(ControlChannel& control, const Config& config) {
  std::vector<int> all_ranks(static_cast<std::size_t>(control.topology().size()));
  std::iota(all_ranks.begin(), all_ranks.end(), 0);
  const TreePosition position = tree_position(control.topology(), all_ranks, control.rank());
  std::vector<ControlChannel::Message> early;
  auto deadline = Clock::time_point::max();
  if (!control.may_end_job() && config.stall_abort_seconds > 0)
    deadline = Clock::now() + std::chrono::seconds(std::llround(std::clamp(config.stall_abort_seconds, 1.0, 1e8)));
  if (all_have(hash_of_settings(config), control, position, early, deadline)) return early;

  Survey survey = own_settings(config, control.rank());
  for (std::size_t child = 0; child < position.children.size(); ++child) {
    const auto message = next_message(control, deadline);
    Reader reader(message.bytes);
    merge(survey, reader);
  }
  std::string problem;
  if (position.root()) {
    std::vector<std::string> hosts;
    for (const Topology::Place& place : control.topology().places) hosts.push_back(place.host);
    problem = verdict(survey, hosts);
  } else {
    Writer up;
    put(up, survey);
    control.send(position.parent, up.bytes());
    problem = Reader(message_of_parent(control, position, early, deadline).bytes).get_string();
  }
  Writer down;
  down.put(std::string_view(problem));
  send_down(control, position, down);
  throw Error(ErrorCode::mismatch, problem);
}

}  // namespace kolo
