// What goes from rank to rank: by name, which the two negotiate; or, in an ordered group, by tag.

#include <fmt/format.h>
#include <kolo/session.h>

#include <limits>
#include <utility>

#include "runtime/session/parts.h"

namespace kolo {
namespace {

[[noreturn]] void refuse(const std::string& text) {
  throw Error(ErrorCode::invalid_argument, text);
}

}  // namespace

/// A group of these two negotiates it, one for each direction.
Request Session::Parts::pair_request(std::string_view name, const Tensor& tensor, bool sends, int peer,
                                     const PairOptions& options) {
  const std::shared_ptr<const GroupInfo>& shared_parent = member(options.group);
  const GroupInfo& parent = *shared_parent;
  const int size = driver->control().topology().size();
  const std::string_view verb = sends ? "send" : "recv";
  if (parent.order == Order::program) {
    refuse(fmt::format("{} '{}': group {} is ordered (its operations have no name); pass a tag instead", verb, name,
                       parent.name));
  }
  if (options.tag != 0) {
    refuse(
        fmt::format("{} '{}' with tag {}: group {} is not ordered (its operations have a name, and no tag); leave "
                    "the tag at 0, or make an ordered group",
                    verb, name, options.tag, parent.name));
  }
  if (peer < 0 || peer >= parent.size() || peer == parent.rank) {
    refuse(fmt::format("{} '{}' in group {}: rank {} is not another rank of the group (it has {}, from 0; this is {})",
                       verb, name, parent.name, peer, parent.size(), parent.rank));
  }
  const int me = driver->control().rank(), other = parent.ranks[static_cast<std::size_t>(peer)];
  Request request;
  request.group = pair_info(sends ? me : other, sends ? other : me, size, me);
  request.parent = shared_parent;
  request.text =
      parent.is_world() ? std::string(name) : fmt::format("{}{} (group {})", reserved_prefix, name, parent.name);
  const int sender = sends ? request.group->rank : 1 - request.group->rank;
  request.signature = {.kind = OpKind::send_recv,
                       .dtype = tensor.dtype,
                       .device = tensor.device.kind,
                       .root = sender,
                       .priority = options.priority,
                       .shape = tensor.shape};
  request.tensors.push_back(sends ? BucketTensor{tensor, {}} : BucketTensor{tensor, tensor});
  set_timeout(request, options.timeout_seconds);
  return request;
}

/// Nobody else would learn of a bad argument, so it is thrown here.
Request Session::Parts::tagged_request(const Tensor& tensor, PairMatch&& match, const PairOptions& options) const {
  Request request;
  request.parent = member(options.group);
  const GroupInfo& parent = *request.parent;
  const int me = driver->control().rank();
  request.signature = {.kind = OpKind::send_recv,
                       .dtype = tensor.dtype,
                       .device = tensor.device.kind,
                       .priority = options.priority,
                       .shape = tensor.shape};
  request.tensors.push_back(match.sends ? BucketTensor{tensor, {}} : BucketTensor{tensor, tensor});
  request.match = std::move(match);
  request.group = request.parent;
  const std::string what = describe(request);
  if (parent.order != Order::program)
    refuse(what + ": the group is not ordered; " +
           (request.match->peer == -1 ? "make an ordered group" : "pass a name, or make an ordered group"));
  const int peer = request.match->peer;
  if (peer == parent.rank || peer >= parent.size() || peer < -1 || parent.size() == 1)
    refuse(fmt::format("{}: that is not another rank of the group (it has {}, from 0; this is {})", what, parent.size(),
                       parent.rank));
  for (const int tag : request.match->tags) {
    if (tag < 0) refuse(fmt::format("{}: tag {} is negative; tags begin at 0", what, tag));
  }
  if (peer >= 0) {
    const int other = parent.ranks[static_cast<std::size_t>(peer)], size = driver->control().topology().size();
    request.group = pair_info(request.match->sends ? me : other, request.match->sends ? other : me, size, me);
    request.signature.root = request.match->sends ? request.group->rank : 1 - request.group->rank;
  } else {
    request.signature.root = parent.rank == 0 ? 1 : 0;
  }
  set_timeout(request, options.timeout_seconds);
  if (!request.invalid) request.invalid = check_arguments(request.signature, request.tensors[0], *request.group);
  if (tensor.device.kind != DeviceKind::cpu && !request.invalid) mark_ready(request, options.ready);
  if (request.invalid) refuse(fmt::format("{}: {}", what, request.invalid->message));
  if (parent.negotiated) {
    if (peer < 0)
      refuse(what +
             ": the group's nodes have only control connections in common; receive from one rank, or start the "
             "program with mpirun");
    request.text =
        fmt::format("{}#{} (group {}, {:x})", reserved_prefix, request.match->tags.front(), parent.name, parent.id);
    request.match.reset();
    request.signature.priority = 0;  // as of messages
    request.signature.shape = Shape{tensor.elements()};
    request.tensors[0].in.shape = request.signature.shape;
    if (request.tensors[0].out.data) request.tensors[0].out.shape = request.signature.shape;
  }
  return request;
}

SubmissionPtr Session::Parts::send_recv(std::string_view name, const Tensor& tensor, bool sends, int peer,
                                        const PairOptions& options, bool will_wait) {
  return submit(pair_request(name, tensor, sends, peer, options), {}, will_wait, options.ready);
}

SubmissionPtr Session::Parts::send_recv(const Tensor& tensor, bool sends, int peer, const PairOptions& options,
                                        bool will_wait) {
  if (peer < 0) peer = std::numeric_limits<int>::max();  // no rank of any group
  return driver->submit(tagged_request(tensor, {.sends = sends, .peer = peer, .tags = {options.tag}}, options),
                        will_wait);
}

SubmissionPtr Session::Parts::receive_any(const Tensor& tensor, std::span<const int> tags, Received* received,
                                          const PairOptions& options, bool will_wait) {
  return driver->submit(tagged_request(tensor, {.tags = {tags.begin(), tags.end()}, .received = received}, options),
                        will_wait);
}

Handle Session::send_async(Tensor tensor, int to, const PairOptions& options) {
  return {parts_->driver, parts_->send_recv(tensor, true, to, options, false)};
}
Handle Session::recv_async(Tensor tensor, int from, const PairOptions& options) {
  return {parts_->driver, parts_->send_recv(tensor, false, from, options, false)};
}
void Session::send(Tensor tensor, int to, const PairOptions& options) {
  parts_->finish(parts_->send_recv(tensor, true, to, options, true));
}
void Session::recv(Tensor tensor, int from, const PairOptions& options) {
  parts_->finish(parts_->send_recv(tensor, false, from, options, true));
}

Handle Session::recv_any_async(Tensor tensor, std::span<const int> tags, Received* received,
                               const PairOptions& options) {
  return {parts_->driver, parts_->receive_any(tensor, tags, received, options, false)};
}
Received Session::recv_any(Tensor tensor, std::span<const int> tags, const PairOptions& options) {
  Received received;
  parts_->finish(parts_->receive_any(tensor, tags, &received, options, true));
  return received;
}

std::vector<Handle> Session::batch_async(std::span<const PairOperation> operations, const PairOptions& options) {
  const bool ordered = parts_->member(options.group)->order == Order::program;
  std::vector<Request> requests;
  for (const PairOperation& one : operations) {
    PairOptions own = options;
    own.tag = one.tag;
    if (ordered && !one.name.empty()) refuse("batch: an ordered group's sends and receives have no name; pass a tag");
    if (ordered) {
      const int peer = one.peer < 0 ? std::numeric_limits<int>::max() : one.peer;
      requests.push_back(
          parts_->tagged_request(one.tensor, {.sends = one.sends, .peer = peer, .tags = {one.tag}}, own));
    } else {
      if (one.name.empty()) refuse("batch: sends and receives of a group that is not ordered need a name");
      requests.push_back(parts_->pair_request(Parts::user_name(one.name), one.tensor, one.sends, one.peer, own));
    }
  }
  std::vector<Handle> handles;
  handles.reserve(requests.size());
  for (std::size_t i = 0; i < requests.size(); ++i) {
    const bool last = i + 1 == requests.size();
    handles.emplace_back(parts_->driver, ordered ? parts_->driver->submit(std::move(requests[i]), !last)
                                                 : parts_->submit(std::move(requests[i]), {}, !last, options.ready));
  }
  return handles;
}

void Session::batch(std::span<const PairOperation> operations, const PairOptions& options) {
  auto handles = batch_async(operations, options);
  for (Handle& handle : handles) handle.wait();
}

}  // namespace kolo
