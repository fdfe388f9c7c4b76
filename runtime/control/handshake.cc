#include "runtime/control/handshake.h"

#include <fmt/format.h>

#include <chrono>
#include <map>
#include <numeric>
#include <thread>

#include <kolo/error.h>

#include "runtime/control/topology.h"
#include "runtime/control/wire.h"
#include "runtime/types/rank_set.h"

namespace kolo {
namespace {

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

std::string verdict(const Survey& survey) {
  for (const auto& [setting, values] : survey) {
    if (values.size() == 1) continue;
    std::string sides;
    for (const auto& [value, ranks] : values) {
      sides += fmt::format("{}{}: {}", sides.empty() ? "" : "; ", to_string(ranks), value.empty() ? "none" : value);
    }
    return fmt::format("ranks have different values of {} ({}); export the same value to every rank, with mpirun -x {}",
                       setting, sides, setting);
  }
  return "";
}

ControlChannel::Message next_message(ControlChannel& control) {
  ControlChannel::Message message;
  while (!control.receive(message)) {
    control.flush();
    const auto ticket = control.doorbell().arm();
    if (!control.pending())
      control.doorbell().sleep(ticket, std::chrono::milliseconds(control.needs_polling() ? 1 : 100));
    control.doorbell().disarm();
  }
  return message;
}

}  // namespace

std::vector<std::byte> settings_message(const Config& config, int rank) {
  Writer writer;
  put(writer, own_settings(config, rank));
  return {writer.bytes().begin(), writer.bytes().end()};
}

void check_settings(std::span<const std::byte> messages) {
  Survey survey;
  for (Reader reader(messages); !reader.done();) merge(survey, reader);
  if (const std::string problem = verdict(survey); !problem.empty()) throw Error(ErrorCode::mismatch, problem);
}

std::vector<ControlChannel::Message> agree_on_settings(ControlChannel& control, const Config& config) {
  std::vector<int> all_ranks(static_cast<std::size_t>(control.topology().size()));
  std::iota(all_ranks.begin(), all_ranks.end(), 0);
  const TreePosition position = tree_position(control.topology(), all_ranks, control.rank());

  Survey survey = own_settings(config, control.rank());
  for (std::size_t child = 0; child < position.children.size(); ++child) {
    const auto message = next_message(control);
    Reader reader(message.bytes);
    merge(survey, reader);
  }
  std::string problem;
  std::vector<ControlChannel::Message> early;
  if (position.root()) {
    problem = verdict(survey);
  } else {
    Writer up;
    put(up, survey);
    control.send(position.parent, up.bytes());
    auto message = next_message(control);
    for (; message.from != position.parent; message = next_message(control)) early.push_back(std::move(message));
    problem = Reader(message.bytes).get_string();
  }
  Writer down;
  down.put(std::string_view(problem));
  for (int child : position.children) control.send(child, down.bytes());
  while (!control.flush()) std::this_thread::yield();
  if (!problem.empty()) throw Error(ErrorCode::mismatch, problem);
  return early;
}

}  // namespace kolo
