#include <kolo/session.h>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <atomic>
#include <exception>
#include <map>
#include <optional>
#include <utility>

#include "runtime/arguments.h"
#include "runtime/at_exit.h"
#include "runtime/coordinator.h"
#include "runtime/names.h"

namespace kolo {
namespace {

constexpr std::string_view reserved_prefix = "kolo.";  // of names the runtime uses itself

Config environment_with_warnings() {
  std::vector<std::string> unknown;
  Config config = Config::from_environment(&unknown);
  for (const auto& line : unknown) config.report(line);
  return config;
}

void print_banner(const Config& config, int size) {
  config.report(fmt::format("session of {} rank{}", size, size == 1 ? "" : "s"));
  for (const Setting& row : settings()) config.report(fmt::format("  {}={}", row.variable, row.print(config)));
}

}  // namespace

class Session::Parts {
 public:
  Parts(World world, const Config& config)
      : coordinator(std::make_shared<Coordinator>(std::move(world), config)), exceptions_at_start(std::uncaught_exceptions()) {
    if (coordinator->control().spans_processes()) at_exit.emplace([this](bool failed) { coordinator->end(failed); });
    const int size = static_cast<int>(coordinator->world_group()->ranks.size());
    if (config.banner && coordinator->control().rank() == 0) print_banner(config, size);
  }

  ~Parts() { coordinator->close(std::uncaught_exceptions() > exceptions_at_start); }

  /// Hop 3: checks arguments, builds the submission and hands it over. A bad argument is announced as the name's failure.
  SubmissionPtr submit(std::string name, const Signature& signature, const Tensor& in, const Tensor& out, const Group& group,
                       bool will_wait) {
    const auto submission = new_submission(std::move(name), signature, group);
    submission->in = in;
    submission->out = out;
    submission->failure = check_arguments(signature, in, out, *submission->group);
    coordinator->submit(submission, will_wait);
    return submission;
  }

  SubmissionPtr new_submission(std::string name, const Signature& signature, const Group& group) const {
    auto submission = std::make_shared<Submission>();
    submission->group = group.info() ? member(group) : coordinator->world_group();
    submission->name = std::move(name);
    submission->signature = signature;
    return submission;
  }

  std::string user_name(std::string_view name) const {
    if (name.starts_with(reserved_prefix)) {
      throw Error(ErrorCode::invalid_argument,
                  fmt::format("'{}': names that begin with '{}' are the runtime's own; use another", name, reserved_prefix));
    }
    return std::string(name);
  }

  /// A collective with these options; which parts of a signature they give shows in what members they have.
  template <class Options>
  SubmissionPtr collective(OpKind kind, std::string name, const Tensor& in, const Tensor& out, const Options& options,
                           bool will_wait) {
    Signature signature{.kind = kind, .dtype = in.dtype, .device = in.device.kind, .shape = in.shape};
    if constexpr (requires { options.root; }) signature.root = options.root;
    if constexpr (requires { options.op; }) {
      signature.op = options.op;
      signature.prescale = options.prescale;
      signature.postscale = options.postscale;
    }
    return submit(std::move(name), signature, in, out, options.group, will_wait);
  }

  /// Barriers match in order: PendingQueue numbers them.
  SubmissionPtr barrier(const Group& group, bool will_wait) {
    return submit("", {.kind = OpKind::barrier}, {}, {}, group, will_wait);
  }

  /// Changes of groups are operations of the world; they match in order.
  std::shared_ptr<const GroupInfo> make_group(std::span<const int> members) {
    auto draft = std::make_shared<GroupInfo>();
    draft->ranks.assign(members.begin(), members.end());
    std::sort(draft->ranks.begin(), draft->ranks.end());
    const auto submission = new_submission("", {.kind = OpKind::make_group, .detail = fmt::format("ranks {}", fmt::join(draft->ranks, ", "))}, {});
    submission->failure = check_members(draft->ranks, static_cast<int>(coordinator->world_group()->ranks.size()));
    submission->subject = std::move(draft);
    coordinator->submit(submission, true);
    finish(submission);
    return submission->subject;
  }

  void remove_group(const Group& group) {
    if (!group.info() || group.info()->id == 0) {
      throw Error(ErrorCode::invalid_argument, "the group of all ranks cannot be removed; close the session instead");
    }
    const auto submission = new_submission("", {.kind = OpKind::remove_group, .detail = "group " + group.info()->name}, {});
    submission->subject = group.shared_info();
    coordinator->submit(submission, true);
    finish(submission);
  }

  void finish(const SubmissionPtr& submission) { Handle(coordinator, submission).wait(); }

  std::shared_ptr<Coordinator> coordinator;
  Names names;

 private:
  const std::shared_ptr<const GroupInfo>& member(const Group& group) const {
    if (group.info()->member()) return group.shared_info();
    throw Error(ErrorCode::invalid_argument, fmt::format("rank {} is no member of group {}; only members call its operations",
                                                         coordinator->control().rank(), group.info()->name));
  }

  int exceptions_at_start;
  std::optional<LeaveAtExit> at_exit;
};

Session::Session() : Session(environment_with_warnings()) {}
Session::Session(const Config& config) : Session(launcher_world(config), config) {}
Session::Session(World world, const Config& config) : parts_(std::make_unique<Parts>(std::move(world), config)) {}
Session::Session(Session&&) noexcept = default;
Session& Session::operator=(Session&&) noexcept = default;
Session::~Session() = default;

void Session::close() { parts_->coordinator->close(false); }

int Session::rank() const { return parts_->coordinator->control().rank(); }
int Session::size() const { return parts_->coordinator->control().topology().size(); }
int Session::local_rank() const {
  const auto ranks = parts_->coordinator->control().topology().node_ranks(rank());
  return static_cast<int>(std::lower_bound(ranks.begin(), ranks.end(), rank()) - ranks.begin());
}
int Session::local_size() const {
  return static_cast<int>(parts_->coordinator->control().topology().node_ranks(rank()).size());
}
Group Session::world() const { return Group(parts_->coordinator->world_group()); }
const Config& Session::config() const { return parts_->coordinator->config(); }
SessionStats Session::stats() const { return parts_->coordinator->stats(); }

TensorId Session::declare(std::string_view name) { return parts_->names.declare(parts_->user_name(name)); }

Handle Session::all_reduce_async(TensorId tensor, Tensor in, Tensor out, const AllReduceOptions& options) {
  return {parts_->coordinator, parts_->collective(OpKind::all_reduce, parts_->names.name(tensor), in, out, options, false)};
}
Handle Session::all_reduce_async(std::string_view name, Tensor in_out, const AllReduceOptions& options) {
  return {parts_->coordinator, parts_->collective(OpKind::all_reduce, parts_->user_name(name), in_out, in_out, options, false)};
}
void Session::all_reduce(std::string_view name, Tensor in_out, const AllReduceOptions& options) {
  parts_->finish(parts_->collective(OpKind::all_reduce, parts_->user_name(name), in_out, in_out, options, true));
}

Handle Session::broadcast_async(TensorId tensor, Tensor in_out, const BroadcastOptions& options) {
  return {parts_->coordinator, parts_->collective(OpKind::broadcast, parts_->names.name(tensor), in_out, in_out, options, false)};
}
Handle Session::broadcast_async(std::string_view name, Tensor in_out, const BroadcastOptions& options) {
  return {parts_->coordinator, parts_->collective(OpKind::broadcast, parts_->user_name(name), in_out, in_out, options, false)};
}
void Session::broadcast(std::string_view name, Tensor in_out, const BroadcastOptions& options) {
  parts_->finish(parts_->collective(OpKind::broadcast, parts_->user_name(name), in_out, in_out, options, true));
}

Handle Session::reduce_async(TensorId tensor, Tensor in, Tensor out, const ReduceOptions& options) {
  return {parts_->coordinator, parts_->collective(OpKind::reduce, parts_->names.name(tensor), in, out, options, false)};
}
Handle Session::reduce_async(std::string_view name, Tensor in_out, const ReduceOptions& options) {
  return {parts_->coordinator, parts_->collective(OpKind::reduce, parts_->user_name(name), in_out, in_out, options, false)};
}
void Session::reduce(std::string_view name, Tensor in_out, const ReduceOptions& options) {
  parts_->finish(parts_->collective(OpKind::reduce, parts_->user_name(name), in_out, in_out, options, true));
}

Handle Session::all_gather_async(TensorId tensor, Tensor in, Tensor out, const AllGatherOptions& options) {
  return {parts_->coordinator, parts_->collective(OpKind::all_gather, parts_->names.name(tensor), in, out, options, false)};
}
Handle Session::all_gather_async(std::string_view name, Tensor in, Tensor out, const AllGatherOptions& options) {
  return {parts_->coordinator, parts_->collective(OpKind::all_gather, parts_->user_name(name), in, out, options, false)};
}
void Session::all_gather(std::string_view name, Tensor in, Tensor out, const AllGatherOptions& options) {
  parts_->finish(parts_->collective(OpKind::all_gather, parts_->user_name(name), in, out, options, true));
}

Handle Session::reduce_scatter_async(TensorId tensor, Tensor in, Tensor out, const ReduceScatterOptions& options) {
  return {parts_->coordinator, parts_->collective(OpKind::reduce_scatter, parts_->names.name(tensor), in, out, options, false)};
}
Handle Session::reduce_scatter_async(std::string_view name, Tensor in, Tensor out, const ReduceScatterOptions& options) {
  return {parts_->coordinator, parts_->collective(OpKind::reduce_scatter, parts_->user_name(name), in, out, options, false)};
}
void Session::reduce_scatter(std::string_view name, Tensor in, Tensor out, const ReduceScatterOptions& options) {
  parts_->finish(parts_->collective(OpKind::reduce_scatter, parts_->user_name(name), in, out, options, true));
}

Handle Session::all_to_all_async(TensorId tensor, Tensor in, Tensor out, const AllToAllOptions& options) {
  return {parts_->coordinator, parts_->collective(OpKind::all_to_all, parts_->names.name(tensor), in, out, options, false)};
}
Handle Session::all_to_all_async(std::string_view name, Tensor in, Tensor out, const AllToAllOptions& options) {
  return {parts_->coordinator, parts_->collective(OpKind::all_to_all, parts_->user_name(name), in, out, options, false)};
}
void Session::all_to_all(std::string_view name, Tensor in, Tensor out, const AllToAllOptions& options) {
  parts_->finish(parts_->collective(OpKind::all_to_all, parts_->user_name(name), in, out, options, true));
}

Handle Session::gather_async(TensorId tensor, Tensor in, Tensor out, const GatherOptions& options) {
  return {parts_->coordinator, parts_->collective(OpKind::gather, parts_->names.name(tensor), in, out, options, false)};
}
Handle Session::gather_async(std::string_view name, Tensor in, Tensor out, const GatherOptions& options) {
  return {parts_->coordinator, parts_->collective(OpKind::gather, parts_->user_name(name), in, out, options, false)};
}
void Session::gather(std::string_view name, Tensor in, Tensor out, const GatherOptions& options) {
  parts_->finish(parts_->collective(OpKind::gather, parts_->user_name(name), in, out, options, true));
}

Handle Session::scatter_async(TensorId tensor, Tensor in, Tensor out, const ScatterOptions& options) {
  return {parts_->coordinator, parts_->collective(OpKind::scatter, parts_->names.name(tensor), in, out, options, false)};
}
Handle Session::scatter_async(std::string_view name, Tensor in, Tensor out, const ScatterOptions& options) {
  return {parts_->coordinator, parts_->collective(OpKind::scatter, parts_->user_name(name), in, out, options, false)};
}
void Session::scatter(std::string_view name, Tensor in, Tensor out, const ScatterOptions& options) {
  parts_->finish(parts_->collective(OpKind::scatter, parts_->user_name(name), in, out, options, true));
}

Handle Session::barrier_async(const Group& group) { return {parts_->coordinator, parts_->barrier(group, false)}; }
void Session::barrier(const Group& group) { parts_->finish(parts_->barrier(group, true)); }

Group Session::new_group(std::span<const int> ranks) { return Group(parts_->make_group(ranks)); }

Group Session::split(int color) {
  std::vector<std::int64_t> colors(static_cast<std::size_t>(size()), 0);
  colors[static_cast<std::size_t>(rank())] = color;
  parts_->finish(parts_->collective(OpKind::all_reduce, "kolo.split", view(colors), view(colors), AllReduceOptions{}, true));
  std::map<std::int64_t, std::vector<int>> members;
  for (int other = 0; other < size(); ++other) members[colors[static_cast<std::size_t>(other)]].push_back(other);
  Group mine;
  for (const auto& [shade, ranks] : members) {
    if (shade < 0) continue;
    const Group made = new_group(ranks);
    if (shade == color) mine = made;
  }
  return color < 0 ? Group(std::make_shared<GroupInfo>(GroupInfo{.name = "none", .rank = -1})) : mine;
}

void Session::remove_group(const Group& group) { parts_->remove_group(group); }

}  // namespace kolo
