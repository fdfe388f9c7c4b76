#include "apps/train/reports/tensorboard.h"

#include <fmt/format.h>
#include <unistd.h>

#include <array>
#include <bit>
#include <chrono>
#include <filesystem>
#include <string_view>
#include <system_error>

#include "apps/train/options/options.h"
#include "models/checkpoint/crc32c.h"

namespace kolo::train {
namespace {

// Fields of the messages Event, Summary, Summary.Value and SessionLog, and the wire types of protocol buffers.
enum Field : unsigned char {
  event_wall_time = 1,
  event_step = 2,
  event_file_version = 3,
  event_summary = 5,
  event_session_log = 7,
  summary_value = 1,
  value_tag = 1,
  value_simple_value = 2,
  session_log_status = 1
};
enum WireType : unsigned char { varint = 0, fixed64 = 1, bytes = 2, fixed32 = 5 };

void append_varint(std::string& to, std::uint64_t number) {
  for (; number >= 0x80; number >>= 7) to += static_cast<char>(number | 0x80);
  to += static_cast<char>(number);
}

template <class Number>
void append_fixed(std::string& to, Number number) {
  for (std::size_t i = 0; i < sizeof(number); ++i) to += static_cast<char>(number >> (8 * i) & 0xff);
}

void append_key(std::string& to, Field field, WireType type) {
  append_varint(to, static_cast<std::uint64_t>(field) << 3 | type);
}
void append_bytes(std::string& to, Field field, std::string_view value) {
  append_key(to, field, bytes);
  append_varint(to, value.size());
  to += value;
}
void append_number(std::string& to, Field field, std::int64_t number) {
  append_key(to, field, varint);
  append_varint(to, static_cast<std::uint64_t>(number));
}

double seconds_now() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

std::string event_at(std::int64_t step) {
  std::string event;
  append_key(event, event_wall_time, fixed64);
  append_fixed(event, std::bit_cast<std::uint64_t>(seconds_now()));
  append_number(event, event_step, step);
  return event;
}

/// What TFRecord files store instead of a CRC, so that a CRC of bytes with CRCs in them is sound.
std::uint32_t masked_crc(std::string_view data) {
  const std::uint32_t crc = models::crc32c(data);
  return std::rotr(crc, 15) + 0xa282ead8u;
}

/// events.out.tfevents.SECONDS.HOST.PID.kolo: TensorBoard looks for "tfevents", and takes files by name.
std::string file_name() {
  std::array<char, 256> host{};
  if (::gethostname(host.data(), host.size() - 1) != 0) host[0] = '\0';
  return fmt::format("events.out.tfevents.{:010}.{}.{}.kolo", static_cast<std::int64_t>(seconds_now()), host.data(),
                     ::getpid());
}

constexpr std::string_view advice = "give --tensorboard a folder that is writable and has room";

/// The path of a new file in the folder, which is made if it is not there.
std::string new_file_in(const std::string& folder) {
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  if (error) throw UsageError(fmt::format("cannot write events to {} ({}); {}", folder, error.message(), advice));
  return (std::filesystem::path(folder) / file_name()).string();
}

}  // namespace

TensorBoard::TensorBoard(const std::string& folder, std::optional<std::int64_t> first, std::int64_t every)
    : FileListener(new_file_in(folder), "wbe", "events to", advice, every) {
  std::string version = event_at(0);
  append_bytes(version, event_file_version, "brain.Event:2");
  write_record(version);
  if (first) {
    std::string start, event = event_at(*first);
    append_number(start, session_log_status, 1);  // START: events of later steps in older files count no more
    append_bytes(event, event_session_log, start);
    write_record(event);
  }
  if (gives_up()) close();
}

void TensorBoard::write_step(const StepEvent& event) {
  Scalars scalars{{"train/loss", event.loss},
                  {"train/lr", event.lr},
                  {"train/grad_norm", event.grad_norm},
                  {"speed/samples_per_s", event.samples_per_s()},
                  {"speed/exposed_comm", event.exposed_comm()},
                  {"speed/data_wait", event.data_wait()}};
  if (event.tokens > 0) scalars.emplace_back("speed/tokens_per_s", event.tokens_per_s());
  if (event.flops > 0) scalars.emplace_back("speed/flops_per_s", event.flops_per_s());
  if (event.of_peak() > 0) scalars.emplace_back("speed/of_peak", event.of_peak());
  if (event.loss_scale > 0) {
    scalars.emplace_back("train/loss_scale", event.loss_scale);
    scalars.emplace_back("train/skipped", event.skipped ? 1 : 0);
  }
  write_scalars(event.step, scalars);
}

void TensorBoard::on_eval(const EvalEvent& event) {
  Scalars scalars{{"eval/loss", event.loss}, {"eval/accuracy", event.accuracy}};
  if (const auto perplexity = event.perplexity()) scalars.emplace_back("eval/perplexity", *perplexity);
  if (const auto bits = event.bits_per_byte()) scalars.emplace_back("eval/bits_per_byte", *bits);
  write_scalars(event.step, scalars);
}

void TensorBoard::on_norms(std::int64_t step, std::span<const ParameterNorm> norms) {
  Scalars scalars;
  for (const ParameterNorm& norm : norms) {
    scalars.emplace_back(fmt::format("norm/value/{}", norm.name), norm.value);
    scalars.emplace_back(fmt::format("norm/gradient/{}", norm.name), norm.gradient);
  }
  write_scalars(step, scalars);
}

void TensorBoard::write_scalars(std::int64_t step, const Scalars& scalars) {
  std::string summary;
  for (const auto& [tag, number] : scalars) {
    std::string value;
    append_bytes(value, value_tag, tag);
    append_key(value, value_simple_value, fixed32);
    append_fixed(value, std::bit_cast<std::uint32_t>(static_cast<float>(number)));
    append_bytes(summary, summary_value, value);
  }
  std::string event = event_at(step);
  append_bytes(event, event_summary, summary);
  write_record(event);
}

void TensorBoard::write_record(const std::string& message) {
  std::string record;
  append_fixed(record, std::uint64_t{message.size()});
  append_fixed(record, masked_crc(record));
  record += message;
  append_fixed(record, masked_crc(message));
  write(record);
}

}  // namespace kolo::train
