#include <kolo/session.h>

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <exception>
#include <utility>

#include "runtime/arguments.h"
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
    const int size = static_cast<int>(coordinator->world_group()->ranks.size());
    if (config.banner && coordinator->control().rank() == 0) print_banner(config, size);
  }

  ~Parts() { coordinator->close(std::uncaught_exceptions() > exceptions_at_start); }

  /// Hop 3: checks arguments, builds the submission and hands it over. A bad argument is announced as the name's failure.
  SubmissionPtr submit(std::string name, const Signature& signature, const Tensor& in, const Tensor& out, const Group& group,
                       bool will_wait) {
    auto submission = std::make_shared<Submission>();
    submission->group = group.info() ? *members_of(group) : coordinator->world_group();
    submission->name = std::move(name);
    submission->signature = signature;
    submission->in = in;
    submission->out = out;
    submission->failure = check_arguments(signature, in, out, *submission->group);
    if (!submission->failure && !coordinator->supports(signature)) {
      submission->failure = Failure{ErrorCode::invalid_argument,
                                    fmt::format("no backend of this session runs {}", to_string(signature))};
    }
    coordinator->submit(submission, will_wait);
    return submission;
  }

  std::string user_name(std::string_view name) const {
    if (name.starts_with(reserved_prefix)) {
      throw Error(ErrorCode::invalid_argument,
                  fmt::format("'{}': names that begin with '{}' are the runtime's own; use another", name, reserved_prefix));
    }
    return std::string(name);
  }

  SubmissionPtr all_reduce(std::string name, const Tensor& in, const Tensor& out, const AllReduceOptions& options, bool will_wait) {
    const Signature signature{.kind = OpKind::all_reduce, .op = options.op, .dtype = in.dtype, .device = in.device.kind,
                              .prescale = options.prescale, .postscale = options.postscale, .shape = in.shape};
    return submit(std::move(name), signature, in, out, options.group, will_wait);
  }

  SubmissionPtr broadcast(std::string name, const Tensor& tensor, const BroadcastOptions& options, bool will_wait) {
    const Signature signature{.kind = OpKind::broadcast, .dtype = tensor.dtype, .device = tensor.device.kind, .root = options.root,
                              .shape = tensor.shape};
    return submit(std::move(name), signature, tensor, tensor, options.group, will_wait);
  }

  /// Barriers match in order: PendingQueue numbers them.
  SubmissionPtr barrier(const Group& group, bool will_wait) {
    return submit("", {.kind = OpKind::barrier}, {}, {}, group, will_wait);
  }

  void finish(const SubmissionPtr& submission) { Handle(coordinator, submission).wait(); }

  std::shared_ptr<Coordinator> coordinator;
  Names names;

 private:
  const std::shared_ptr<const GroupInfo>* members_of(const Group& group) const {
    if (group.info() == coordinator->world_group().get()) return &coordinator->world_group();
    throw Error(ErrorCode::invalid_argument, fmt::format("group '{}' belongs to another session", group.info()->name));
  }

  int exceptions_at_start;
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
  return {parts_->coordinator, parts_->all_reduce(parts_->names.name(tensor), in, out, options, false)};
}
Handle Session::all_reduce_async(std::string_view name, Tensor in_out, const AllReduceOptions& options) {
  return {parts_->coordinator, parts_->all_reduce(parts_->user_name(name), in_out, in_out, options, false)};
}
void Session::all_reduce(std::string_view name, Tensor in_out, const AllReduceOptions& options) {
  parts_->finish(parts_->all_reduce(parts_->user_name(name), in_out, in_out, options, true));
}

Handle Session::broadcast_async(TensorId tensor, Tensor in_out, const BroadcastOptions& options) {
  return {parts_->coordinator, parts_->broadcast(parts_->names.name(tensor), in_out, options, false)};
}
Handle Session::broadcast_async(std::string_view name, Tensor in_out, const BroadcastOptions& options) {
  return {parts_->coordinator, parts_->broadcast(parts_->user_name(name), in_out, options, false)};
}
void Session::broadcast(std::string_view name, Tensor in_out, const BroadcastOptions& options) {
  parts_->finish(parts_->broadcast(parts_->user_name(name), in_out, options, true));
}

Handle Session::barrier_async(const Group& group) { return {parts_->coordinator, parts_->barrier(group, false)}; }
void Session::barrier(const Group& group) { parts_->finish(parts_->barrier(group, true)); }

}  // namespace kolo
