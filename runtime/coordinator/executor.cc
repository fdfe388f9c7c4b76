#include "runtime/coordinator/executor.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "ops/adasum/adasum.h"
#include "ops/bucket.h"

namespace kolo {
namespace {

constexpr int looks = 64;  // at what ranks of this node do, before one says that nothing has moved: each costs less
                           // than what else a cycle looks at

constexpr int last_steps = 1024;  // take in all that peers have left in memory that they share

/// Whether `is` says so of the signature of each tensor's type.
template <class Is>
bool all_types(const Signature& signature, Is&& is) {
  if (signature.members.empty()) return is(signature);
  Signature one = signature;
  one.members.clear();
  return std::ranges::all_of(signature.members, [&](const GroupMember& member) {
    one.dtype = member.dtype;
    return bool(is(one));
  });
}

}  // namespace

Executor::Executor(BackendList backends, const GroupInfo& group, bool timed)
    : backends_(std::move(backends)),
      ranks_(group.size()),
      rank_(group.rank),
      timed_(timed),
      world_only_(group.is_world()) {
  find_devices();
}

void Executor::find_devices() {
  devices_.clear();
  for (const auto& backend : backends_) {
    if (auto* const device = dynamic_cast<DeviceBackend*>(backend.get())) devices_.push_back(device);
  }
}

void Executor::introduce(std::span<const Introduction> members) {
  kolo::introduce(backends_, members);
  find_devices();
}

bool Executor::supports(const Signature& signature) const {
  return !moves_data(signature.kind) || all_types(signature, [&](const Signature& one) { return runner_of(one); });
}

std::optional<Failure> Executor::prepare(Submission& submission) const {
  const Signature& signature = submission.request.signature;
  auto& reserved = submission.pending.reserved;
  if (!supports(signature)) {
    for (const auto& backend : backends_) {
      if (auto why = backend->refusal(signature); !why.empty()) return Failure{ErrorCode::backend, std::move(why)};
    }
    return Failure{ErrorCode::invalid_argument, "no backend of the session runs " + to_string(signature)};
  }
  if (signature.device == DeviceKind::cpu || !moves_data(signature.kind)) return std::nullopt;
  try {
    all_types(signature, [&](const Signature& one) {
      if (auto kept = runner_of(one)->reserve(one)) reserved.push_back(std::move(kept));
      return true;
    });
  } catch (const Error& error) {
    reserved.clear();
    return error.failure();
  }
  return std::nullopt;
}

BackendList Executor::backends_for(const GroupInfo& group) const {
  BackendList made;
  for (const auto& backend : backends_) {
    if (auto mine = backend->for_group(group)) made.push_back(std::move(mine));
  }
  return made;
}

void Executor::start(AgreedBucket&& bucket) {
  Running& running = running_.emplace_back();
  running.operations.swap(room_.operations);
  running.buckets.swap(room_.buckets);
  running.members = std::move(bucket.members);
  running.token = bucket.token;
  const Submission& first = *running.members.front();
  const Signature& signature = first.request.signature;
  running.urgency.priority = signature.priority;
  const bool meets =
      running.token != 0 && Rendezvous::needed(first, moves_data(signature.kind) ? runner_of(signature) : nullptr);
  if (!meets) return make_buckets(running, bucket.absent);
  running.meets = true;
}

/// Whether the ranks have met, if they need to, and the buckets are made.
bool Executor::meet(Running& running, bool held, bool& moved) {
  if (!running.meets) return true;
  if (held && !running.rendezvous) return false;
  if (!running.rendezvous) {
    Backend* const host = backend_of(Rendezvous::gathering());
    if (!host) throw Error(ErrorCode::backend, "no backend of the group serves host tensors, which its ranks meet by");
    running.rendezvous = std::make_unique<Rendezvous>(*host, running.members.front(), running.token);
    running.meeting_trails = host->must_be_called();
  }
  const bool met = running.rendezvous->step();
  trailing_ |= running.meeting_trails && (met || running.rendezvous->moved());
  if (!met) {
    moved |= running.rendezvous->moved();
    return false;
  }
  running.failure = running.rendezvous->failure();
  running.rendezvous.reset();
  running.meets = false;
  moved = true;
  if (!running.failure) make_buckets(running, {});
  return true;
}

/// One collective for each type among the tensors: more than one only if they were submitted together.
void Executor::make_buckets(Running& running, const std::vector<int>& absent) {
  std::vector<Bucket>& buckets = running.buckets;
  for (const SubmissionPtr& member : running.members) {
    const Request& request = member->request;
    const auto& agreed_tensors = member->pending.agreed_tensors;
    for (std::size_t i = 0; i < request.tensors.size(); ++i) {
      BucketTensor tensor = request.tensors[i];
      if (!agreed_tensors.empty()) {
        tensor.rows = agreed_tensors[i].rows;
        if (agreed_tensors[i].out) tensor.out = *agreed_tensors[i].out;
      }
      const DType dtype = request.signature.members.empty() ? request.signature.dtype : tensor.in.dtype;
      auto place = std::find_if(buckets.begin(), buckets.end(),
                                [&](const Bucket& bucket) { return bucket.signature.dtype == dtype; });
      if (place == buckets.end()) {
        place = buckets.emplace(buckets.end());
        place->signature = request.signature;
        place->tensors.swap(room_.tensors);
        place->absent = absent;
        place->divide_by = divisor_of(request.signature, ranks_, absent.size());
        place->signature.dtype = dtype;
        place->signature.shape = tensor.in.shape;
        place->signature.members.clear();
        place->world_only = world_only_;
        place->token = running.token == 0 ? 0 : running.token + 2 * (buckets.size() - 1);  // odd
      }
      if (request.ready && (place->ready.empty() || place->ready.back() != request.ready))
        place->ready.push_back(request.ready);
      place->tensors.push_back(std::move(tensor));
    }
  }
  for (const Bucket& bucket : buckets) running.urgency.bytes -= static_cast<std::int64_t>(bucket.bytes());
}

Backend* Executor::backend_of(const Signature& signature) const {
  const auto found = std::ranges::find_if(backends_, [&](const auto& backend) { return backend->supports(signature); });
  return found == backends_.end() ? nullptr : found->get();
}

/// The one that runs it, adasum maybe in stages; null if none does.
Backend* Executor::runner_of(const Signature& signature) const {
  if (Backend* const backend = backend_of(signature)) return backend;
  const auto found = std::ranges::find_if(backends_, [&](const auto& one) { return serves_adasum(*one, signature); });
  return found == backends_.end() ? nullptr : found->get();
}

Executor::InFlight Executor::start_on_backend(const Bucket& bucket) {
  Backend* const backend = runner_of(bucket.signature);
  if (!backend)
    throw Error(ErrorCode::backend, "no backend runs " + to_string(bucket.signature) + ", though the ranks agreed to");
  ++buckets_started_;
  if (!backend->supports(bucket.signature))
    return {start_adasum(*backend, bucket, ranks_, rank_), false, backend->must_be_called()};
  return {backend->start(bucket), std::ranges::find(devices_, backend) != devices_.end(), backend->must_be_called()};
}

Executor::Urgency Executor::urgency() const {
  if (running_.empty()) return {};
  Urgency urgency = running_.front().urgency;
  for (const Running& running : running_) urgency.priority = std::max(urgency.priority, running.urgency.priority);
  return urgency;
}

bool Executor::step(std::vector<Finished>& finished, bool among_others) {
  bool moved = step_once(finished);
  if (moved || among_others || needs_polling()) return moved;
  for (int look = 1; !moved && look < looks && busy(); ++look) moved = step_once(finished);
  return moved;
}

bool Executor::step_once(std::vector<Finished>& finished) {
  if (halted_) return false;
  bool any = finish_failed(finished);
  if (faulted_) return any;
  bool moved = false;
  bool held = false;  // a backend is kept for more of an operation: nothing else may start
  for (Running& running : running_) {
    const bool complete = advance(running, held, moved);
    if (faulted_) break;
    if (!complete) continue;
    any = running.complete = true;  // also if a later one throws
    for (SubmissionPtr& member : running.members) finished.push_back({std::move(member), running.failure});
  }
  if (any) drop_complete();
  return any || moved;
}

/// Their memory is for what comes next.
void Executor::drop_complete() {
  for (Running& running : running_) {
    if (!running.complete) continue;
    room_.operations.swap(running.operations);
    room_.operations.clear();  // before what they refer to
    if (!running.buckets.empty()) room_.tensors.swap(running.buckets.front().tensors);
    room_.tensors.clear();
    room_.buckets.swap(running.buckets);
    room_.buckets.clear();
  }
  std::erase_if(running_, [](const Running& running) { return running.complete; });
}

/// Whether the bucket is complete.
bool Executor::advance(Running& running, bool& held, bool& moved) {
  if (!meet(running, held, moved)) {
    held = true;
    return false;
  }
  for (std::size_t i = 0; i < running.operations.size();) {
    if (completes(running.operations[i])) {
      running.operations.erase(running.operations.begin() + static_cast<std::ptrdiff_t>(i));
      continue;
    }
    if (faulted_) return false;
    const Operation& operation = *running.operations[i++].operation;
    moved |= operation.moved();
    held |= operation.holds_backend();
  }
  while (running.started < running.buckets.size() && !held) {
    // Also if its first step fails it stays, until the ranks have agreed on the error: peers that saw it end would say
    // only that.
    running.operations.push_back(start_on_backend(running.buckets[running.started++]));
    InFlight& started = running.operations.back();
    if (timed_) started.started = std::chrono::steady_clock::now();
    if (completes(started)) {
      running.operations.pop_back();
      continue;
    }
    if (faulted_) return false;
    moved |= started.operation->moved();
    held |= started.operation->holds_backend();
  }
  const bool all_started = running.started == running.buckets.size();
  if (all_started && !running.launched) publish_launch(running);
  return all_started && running.operations.empty();
}

/// Steps an operation; the time it took counts when it is complete.
bool Executor::completes(const InFlight& running) {
  using std::chrono::duration, std::chrono::duration_cast, std::chrono::nanoseconds, std::chrono::steady_clock;
  try {
    const bool done = running.operation->step();
    trailing_ |= running.trails && (done || running.operation->moved());
    if (!done) return false;
  } catch (const Error& error) {
    if (!running.recovers) throw;
    faulted_ = true;
    fault_to_report_ = error.failure();
    return false;
  }
  method_ = running.operation->method();
  if (!timed_ || running.started == steady_clock::time_point{}) return true;
  const auto on_device = running.operation->seconds();
  time_of_buckets_ +=
      on_device ? duration_cast<nanoseconds>(duration<double>(*on_device)) : steady_clock::now() - running.started;
  return true;
}

/// Publishes the results of device work that is certain to complete: streams may wait for them from now on.
void Executor::publish_launch(Running& running) {
  if (running.buckets.empty() || running.buckets.front().signature.device == DeviceKind::cpu) return;
  std::vector<std::shared_ptr<const DevicePoint>> results;
  for (const InFlight& started : running.operations) {
    results.push_back(started.operation->result());
    if (!results.back()) return;
  }
  running.launched = true;
  for (const SubmissionPtr& member : running.members) {
    for (const SubmissionPtr& one : {member, member->request.stands_for}) {
      if (!one) continue;
      one->completion.results = results;
      one->completion.launched.set();
    }
  }
}

void Executor::fail_devices(const Failure& failure, std::vector<Finished>& finished) {
  faulted_ = false;
  fault_to_report_.reset();
  drop_complete();
  for (DeviceBackend* const backend : devices_) {
    for (Running& running : running_) {
      if (running.buckets.empty() || backend_of(running.buckets.front().signature) != backend) continue;
      running.operations.clear();
      while (running.started < running.buckets.size()) (void)backend->start(running.buckets[running.started++]);
      for (SubmissionPtr& member : running.members) failed_.push_back({std::move(member), failure});
      running.complete = true;
    }
    drop_complete();
    backend->recover();
  }
  finish_failed(finished);
}

/// What failed on a device is finished once its memory is the program's alone.
bool Executor::finish_failed(std::vector<Finished>& finished) {
  if (failed_.empty() || !std::ranges::all_of(devices_, &DeviceBackend::recovered)) return false;
  std::ranges::move(failed_, std::back_inserter(finished));
  failed_.clear();
  return true;
}

void Executor::end_devices() noexcept {
  halted_ = true;
  for (DeviceBackend* const backend : devices_) backend->abort_device_work();
}

void Executor::abandon(const Failure& failure, std::vector<Finished>& finished) {
  drop_complete();
  std::ranges::move(failed_, std::back_inserter(finished));
  failed_.clear();
  for (Running& running : running_) {
    const bool complete = !halted_ && completes_now(running);
    for (SubmissionPtr& member : running.members) {
      finished.push_back({std::move(member), complete ? running.failure : std::optional(failure)});
    }
  }
  for (const auto& backend : backends_) backend->abandon();
  running_.clear();
  fault_to_report_.reset();  // of a last look: there is nothing left that could recover
}

/// Whether only this rank has not noticed yet that the operation is complete: a peer that saw so may leave at once.
bool Executor::completes_now(Running& running) noexcept {
  try {
    bool held = true;  // starts nothing
    bool moved = true, complete = false;
    for (int step = 0; step < last_steps && moved && !complete; ++step) {
      moved = false;
      complete = advance(running, held, moved);
    }
    return complete;
  } catch (...) {
    return false;
  }
}

void Executor::progress(bool in_flight) {
  for (const auto& backend : backends_) backend->progress(in_flight);
}

bool Executor::settled() {
  return std::ranges::count_if(backends_, [](const auto& backend) { return !backend->settled(); }) == 0;
}

std::uint64_t Executor::staged_bytes() const {
  std::uint64_t sum = 0;
  for (const auto& backend : backends_) sum += backend->staged_bytes();
  return sum;
}

bool Executor::needs_polling() const {
  return !halted_ && (!failed_.empty() || std::any_of(running_.begin(), running_.end(), [](const Running& running) {
    return (running.rendezvous && running.rendezvous->needs_polling()) ||
           std::any_of(running.operations.begin(), running.operations.end(),
                       [](const InFlight& started) { return started.operation->needs_polling(); });
  }));
}

}  // namespace kolo
