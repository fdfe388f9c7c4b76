#include <kolo/session.h>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <exception>
#include <map>
#include <utility>

#include "ops/gpu/gpu.h"
#include "runtime/operation/block_sizes.h"
#include "runtime/session/parts.h"
#include "runtime/world/parts.h"

namespace kolo {
namespace {

Config environment_with_warnings() {
  std::vector<std::string> unknown;
  Config config = Config::from_environment(&unknown);
  for (const auto& line : unknown) report(config, line);
  return config;
}

void print_banner(const Config& config, int size) {
  report(config, fmt::format("session of {} rank{}", size, size == 1 ? "" : "s"));
  for (const Setting& row : settings()) report(config, fmt::format("  {}={}", row.variable, row.print(config)));
}

/// Where the watchdog must not end the process, what waits for too long fails.
Config config_of(const ControlChannel& control, Config config) {
  if (!control.may_end_job() && config.timeout_seconds == 0) config.timeout_seconds = config.stall_abort_seconds;
  return config;
}

WorldParts& parts_of(World& world) {
  if (const std::string& why = world.parts().why_no_session; !why.empty())
    throw Error(ErrorCode::invalid_argument, why);
  return world.parts();
}

/// The shape as all ranks must have it.
Shape agreed_shape(OpKind kind, const Shape& shape) {
  if (!has_rows(kind) || shape.dims() == 0 || !shape.valid()) return shape;
  std::vector<std::int64_t> extents(shape.extents().begin(), shape.extents().end());
  extents[0] = any_rows;
  return Shape(extents);
}

}  // namespace

Session::Parts::Parts(World world, const Config& asked)
    : memory(memory_sources(parts_of(world).backends)),
      device(world.parts().device),
      driver(std::make_shared<Driver>(std::move(world.parts().control), std::move(world.parts().backends), device,
                                      config_of(*world.parts().control, asked))),
      exceptions_at_start_(std::uncaught_exceptions()) {
  if (driver->control().spans_processes()) {
    at_exit_.emplace([this](bool failed) {
      driver->end(failed);
      if (driver->lost_a_rank()) LeaveAtExit::lost_a_rank();
    });
  }
  const Config& config = driver->config();
  const int size = static_cast<int>(driver->world_group()->ranks.size());
  if (config.banner && driver->control().rank() == 0) print_banner(config, size);
}

/// In a child of fork() nothing acts for the parent: what the driver owns stays as it is.
Session::Parts::~Parts() {
  if (driver->in_child()) {
    driver->stay(driver);
  } else {
    driver->close(std::uncaught_exceptions() > exceptions_at_start_);
    if (driver->lost_a_rank()) LeaveAtExit::lost_a_rank();
  }
}

std::string_view Session::Parts::user_name(std::string_view name) {
  if (name.starts_with(reserved_prefix)) {
    throw Error(
        ErrorCode::invalid_argument,
        fmt::format("'{}': names that begin with '{}' are the runtime's own; use another", name, reserved_prefix));
  }
  return name;
}

/// The group of an operation, which this rank calls as a member.
const std::shared_ptr<const GroupInfo>& Session::Parts::member(const Group& group) const {
  if (!group.info()) return driver->world_group();
  if (const auto failure = check_group(group.shared_info())) throw Error(*failure);
  if (group.info()->member()) return group.shared_info();
  throw Error(ErrorCode::invalid_argument,
              fmt::format("rank {} is no member of group {}; only members call its operations",
                          driver->control().rank(), group.info()->name));
}

/// Groups of different sessions have the same numbers.
std::optional<Failure> Session::Parts::check_group(const std::shared_ptr<const GroupInfo>& group) const {
  const auto& world = driver->world_group();
  if (group == world || group->world == world) return std::nullopt;
  return Failure{ErrorCode::invalid_argument,
                 fmt::format("group {} belongs to another session; use one that this session has made", group->name)};
}

void Session::Parts::check_naming(const Request& request, bool named) {
  const GroupInfo& group = *request.group;
  const bool in_order = group.order == Order::program;
  if (named != in_order) return;
  if (in_order)
    throw Error(ErrorCode::invalid_argument, describe(request) +
                                                 ": the group matches operations by their order, and they "
                                                 "have no name; leave it out");
  throw Error(ErrorCode::invalid_argument,
              fmt::format("{} in group {}: the group matches operations by name; pass one, or make an ordered group",
                          to_string(request.signature.kind), group.name));
}

/// The call's time-out, or the session's.
void Session::Parts::set_timeout(Request& request, std::optional<double> asked) const {
  const double seconds = asked.value_or(driver->config().timeout_seconds);
  if (seconds == 0) return;
  request.invalid = check_timeout(seconds);
  if (!request.invalid) request.timeout_seconds = seconds;
}

Request Session::Parts::new_request(Signature signature, const Group& group,
                                    std::optional<double> timeout_seconds) const {
  Request request;
  set_timeout(request, timeout_seconds);
  request.group = member(group);
  request.signature = std::move(signature);
  return request;
}

void Session::Parts::add_member(Request& request, const NamedTensor& tensor) {
  Signature& signature = request.signature;
  request.tensors.push_back({tensor.in, tensor.out});
  signature.members.push_back(
      {std::string(user_name(tensor.name)), tensor.in.dtype, agreed_shape(signature.kind, tensor.in.shape)});
}

SubmissionPtr Session::Parts::submit(Request&& request, const RowArguments& rows, bool will_wait, void* ready) {
  Signature& signature = request.signature;
  const bool grouped = !signature.members.empty();
  for (std::size_t i = 0; i < request.tensors.size() && !request.invalid; ++i) {
    const BucketTensor& tensor = request.tensors[i];
    if (grouped) signature.dtype = tensor.in.dtype;
    request.invalid = check_arguments(signature, tensor, *request.group, rows);
    if (!request.invalid && tensor.in.device.kind != signature.device) {
      request.invalid = Failure{ErrorCode::invalid_argument,
                                "tensors submitted together are on different kinds of devices; submit them apart"};
    }
    if (request.invalid && grouped)
      request.invalid->message = fmt::format("'{}': {}", clipped(signature.members[i].name), request.invalid->message);
    if (request.invalid || !has_rows(signature.kind)) continue;
    const auto sizes = own_sizes(signature.kind, tensor, rows.splits, rows.allocates, *request.group, signature.root);
    request.sizes.insert(request.sizes.end(), sizes.begin(), sizes.end());
  }
  if (grouped) signature.dtype = request.tensors.front().in.dtype;
  if (request.invalid) request.sizes.clear();
  if (has_rows(signature.kind)) signature.shape = agreed_shape(signature.kind, signature.shape);
  if (signature.device != DeviceKind::cpu && !request.invalid) mark_ready(request, ready);
  if (request.keeps_its_place() && request.invalid)  // it takes no place in the order
    throw Error(request.invalid->code, fmt::format("{} in group {}: {}", to_string(signature.kind), request.group->name,
                                                   request.invalid->message));
  return driver->submit(std::move(request), will_wait);
}

/// Device tensors lie on the rank's own GPU, and are read after what is on the program's stream now.
void Session::Parts::mark_ready(Request& request, void* stream) const {
  if (device.kind == DeviceKind::cpu) return;  // no backend runs it: that becomes its failure
  for (const BucketTensor& tensor : request.tensors) {
    for (const Tensor& side : {tensor.in, tensor.out}) {
      if (!side.data || side.device == device) continue;
      request.invalid =
          Failure{ErrorCode::invalid_argument,
                  fmt::format("a tensor is on GPU {}, and this rank's GPU is {} (Session::device()); move it there",
                              side.device.index, device.index)};
      return;
    }
  }
  try {
    Gpu& gpu = cuda_gpu(device.index);
    if (gpu.is_capturing(stream)) {
      request.invalid =
          Failure{ErrorCode::invalid_argument,
                  "the stream 'ready' is being captured into a CUDA graph, of which kolo's operations cannot be a "
                  "part; submit before the capture begins or after it ends"};
      return;
    }
    request.ready = gpu.mark(stream);
  } catch (const Error& error) {
    request.invalid = error.failure();
  }
}

// Barriers and joins match in order: PendingQueue numbers them.

SubmissionPtr Session::Parts::barrier(const BarrierOptions& options, bool will_wait) {
  Request request =
      new_request({.kind = OpKind::barrier, .priority = options.priority}, options.group, options.timeout_seconds);
  if (request.keeps_its_place() && request.invalid) throw Error(*request.invalid);
  return driver->submit(std::move(request), will_wait);
}

SubmissionPtr Session::Parts::abandon_group(const Group& group) {
  if (!group.info() || group.shared_info() == driver->world_group())
    throw Error(ErrorCode::invalid_argument, "the group of all ranks cannot be abandoned alone; abandon the session");
  Request request = new_request({.kind = OpKind::remove_group}, group, 0);
  if (!driver->has_group(*group.info())) return nullptr;
  request.ends = Failure{ErrorCode::closed, fmt::format("group {}: rank {} has abandoned it; make another",
                                                        group.info()->name, driver->control().rank())};
  return driver->submit(std::move(request), true);
}

SubmissionPtr Session::Parts::refusal(OpKind kind, std::string_view name, const Failure& why, const Group& group) {
  if (!moves_data(kind) || kind == OpKind::send_recv)
    throw Error(ErrorCode::invalid_argument, fmt::format("{} cannot be refused: it is no collective", to_string(kind)));
  Request request = new_request({.kind = kind}, group);
  request.text = name;
  check_naming(request, true);
  request.invalid = why;
  return driver->submit(std::move(request), false);
}

/// Waits for as long as the others have data.
SubmissionPtr Session::Parts::join(const Group& group) {
  Request request = new_request({.kind = OpKind::join}, group, 0);
  if (request.keeps_its_place())
    throw Error(ErrorCode::invalid_argument,
                "join works where operations are matched by name; use a group that is not ordered");
  return driver->submit(std::move(request), true);
}

SubmissionPtr Session::Parts::remove_group(const Group& group, std::optional<double> timeout_seconds, bool will_wait) {
  if (!group.info() || group.shared_info() == driver->world_group())
    throw Error(ErrorCode::invalid_argument, "the group of all ranks cannot be removed; close the session instead");
  if (const auto failure = check_group(group.shared_info())) throw Error(*failure);
  if (!driver->has_group(*group.info())) return nullptr;
  return driver->submit(new_request({.kind = OpKind::remove_group}, group, timeout_seconds), will_wait);
}

Session::Session() : Session(environment_with_warnings()) {}
Session::Session(const Config& config) : Session(launcher_world(config), config) {}
Session::Session(World world, const Config& config) : parts_(std::make_unique<Parts>(std::move(world), config)) {}
Session::Session(Session&&) noexcept = default;
Session& Session::operator=(Session&&) noexcept = default;
Session::~Session() = default;

void Session::close() {
  parts_->driver->close(false);
}
void Session::abandon() {
  parts_->driver->close(true);
}

int Session::rank() const {
  return parts_->driver->control().rank();
}
int Session::size() const {
  return parts_->driver->control().topology().size();
}
int Session::local_rank() const {
  const auto ranks = parts_->driver->control().topology().node_ranks(rank());
  return static_cast<int>(std::lower_bound(ranks.begin(), ranks.end(), rank()) - ranks.begin());
}
int Session::local_size() const {
  return static_cast<int>(parts_->driver->control().topology().node_ranks(rank()).size());
}
Group Session::world() const {
  return Group(parts_->driver->world_group());
}
const Config& Session::config() const {
  return parts_->driver->config();
}
Device Session::device() const {
  return parts_->device;
}

SessionStats Session::stats() const {
  SessionStats stats = parts_->driver->stats();
  if (parts_->device.kind == DeviceKind::cuda)
    stats.device_peak_bytes = cuda_gpu(parts_->device.index).memory_use().peak;
  return stats;
}

TensorId Session::declare(std::string_view name) {
  return {parts_->driver->declare(parts_->user_name(name))};
}

Handle Session::barrier_async(const Group& group) {
  return barrier_async({.group = group});
}
Handle Session::barrier_async(const BarrierOptions& options) {
  return {parts_->driver, parts_->barrier(options, false)};
}
void Session::barrier(const Group& group) {
  barrier({.group = group});
}
void Session::barrier(const BarrierOptions& options) {
  parts_->finish(parts_->barrier(options, true));
}

void Session::monitored_barrier(double seconds, const Group& group) {
  constexpr double at_once = 1e-3;  // 0 would be no time-out
  barrier({.group = group, .timeout_seconds = seconds == 0 ? at_once : seconds});
}

int Session::join(const Group& group) {
  const auto submission = parts_->join(group);
  parts_->finish(submission);
  const auto& ranks = submission->request.group->ranks;
  return static_cast<int>(std::find(ranks.begin(), ranks.end(), submission->completion.last_to_join) - ranks.begin());
}

Group Session::new_group(std::span<const int> ranks, const GroupOptions& options) {
  std::vector<int> members(ranks.begin(), ranks.end());
  std::sort(members.begin(), members.end());
  return Group(parts_->driver->make_group(std::move(members), options.order));
}

Group Session::split(int color, int key, const GroupOptions& options) {
  const auto ranks = static_cast<std::size_t>(size());
  std::vector<std::int64_t> chosen(2 * ranks, 0);  // colours, then keys
  chosen[static_cast<std::size_t>(rank())] = color;
  chosen[ranks + static_cast<std::size_t>(rank())] = key;
  parts_->finish(parts_->collective(OpKind::all_reduce, std::string_view("kolo.split"), view(chosen), view(chosen),
                                    AllReduceOptions{}, true));
  if (color < 0)
    return Group(std::make_shared<const GroupInfo>(
        GroupInfo{.name = "none", .rank = -1, .world = parts_->driver->world_group()}));
  std::vector<int> members;
  for (int other = 0; other < size(); ++other) {
    if (chosen[static_cast<std::size_t>(other)] == color) members.push_back(other);
  }
  std::ranges::stable_sort(members, {}, [&](int other) { return chosen[ranks + static_cast<std::size_t>(other)]; });
  return Group(parts_->driver->make_group(std::move(members), options.order));
}

void Session::remove_group(const Group& group) {
  if (const auto submission = parts_->remove_group(group, {}, true)) parts_->finish(submission);
}
void Session::abandon_group(const Group& group) {
  if (const auto submission = parts_->abandon_group(group)) parts_->finish(submission);
}
Handle Session::remove_group_async(const Group& group) {
  auto submission = parts_->remove_group(group, 0, false);
  return submission ? Handle{parts_->driver, std::move(submission)} : Handle{};
}

}  // namespace kolo
