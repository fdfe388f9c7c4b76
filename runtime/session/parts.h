#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include <kolo/backend.h>
#include <kolo/memory.h>
#include <kolo/session.h>

#include "runtime/coordinator/driver.h"
#include "runtime/operation/arguments.h"
#include "runtime/world/at_exit.h"

namespace kolo {

/// Of a world's backends, the preferred ones first.
using MemorySources = std::vector<std::shared_ptr<MemorySource>>;

MemorySources memory_sources(const BackendList& backends);

/// Zeros from the first source that has what is asked for, or ordinary memory of the device. Throws as
/// Session::allocate().
Memory allocate_memory(const MemorySources& sources, std::size_t bytes, Device device);

/// Session::adopt() of a tensor in host memory, if that can be, and it has not so few bytes that they are always
/// copied.
void try_to_adopt(Session& session, const Tensor& tensor);

inline constexpr std::string_view reserved_prefix = "kolo.";  // of names that the runtime uses itself

/// What a session consists of, and how a call becomes a request: hop 3 of the main path.
class Session::Parts {
 public:
  Parts(World world, const Config& config);
  ~Parts();

  /// The name of what is matched by its order.
  struct Unnamed {};

  /// A collective with these options; which parts of a signature they give shows in what members they have. `name` is a
  /// TensorId, or text that was checked, or Unnamed.
  template <class Name, class Options>
  SubmissionPtr collective(OpKind kind, const Name& name, const Tensor& in, const Tensor& out, const Options& options,
                           bool will_wait) {
    Request request = new_request(signature_of(kind, in, options), options.group, options.timeout_seconds);
    if constexpr (std::is_same_v<Name, TensorId>) {
      request.declared = name.index;
    } else if constexpr (!std::is_same_v<Name, Unnamed>) {
      request.text = name;
    }
    check_naming(request, !std::is_same_v<Name, Unnamed>);
    request.tensors.push_back({in, out});
    RowArguments rows;
    if constexpr (requires { options.allocate; }) {
      bool makes_output = true;
      if constexpr (requires { options.root; }) makes_output = options.root == request.group->rank;
      if (makes_output) request.allocate = options.allocate;
      if (makes_output) request.received_rows = options.rows;
      rows.allocates = static_cast<bool>(request.allocate);
    }
    if constexpr (requires { options.splits; }) rows.splits = options.splits;
    return submit(std::move(request), rows, will_wait, options.ready);
  }

  /// Several tensors under one name.
  template <class Options>
  SubmissionPtr grouped(OpKind kind, std::string_view name, std::span<const NamedTensor> tensors,
                        const Options& options) {
    const Tensor first = tensors.empty() ? Tensor{} : tensors.front().in;
    Request request = new_request(signature_of(kind, first, options), options.group, options.timeout_seconds);
    request.text = name;
    check_naming(request, !name.empty());
    for (const NamedTensor& tensor : tensors) add_member(request, tensor);
    return submit(std::move(request), {}, false, options.ready);
  }

  /// What this rank cannot do, announced as the name's failure.
  SubmissionPtr refusal(OpKind kind, std::string_view name, const Failure& why, const Group& group);

  /// Checks arguments and submits. A bad argument is announced as the name's failure.
  SubmissionPtr submit(Request&& request, const RowArguments& rows, bool will_wait, void* ready);
  const std::shared_ptr<const GroupInfo>& member(const Group& group) const;
  /// Checked, to be submitted: of an ordered group, or by name.
  Request pair_request(std::string_view name, const Tensor& tensor, bool sends, int peer, const PairOptions& options);
  Request tagged_request(const Tensor& tensor, PairMatch&& match, const PairOptions& options) const;
  SubmissionPtr send_recv(std::string_view name, const Tensor& tensor, bool sends, int peer, const PairOptions& options,
                          bool will_wait);
  SubmissionPtr send_recv(const Tensor& tensor, bool sends, int peer, const PairOptions& options, bool will_wait);
  SubmissionPtr receive_any(const Tensor& tensor, std::span<const int> tags, Received* received,
                            const PairOptions& options, bool will_wait);
  SubmissionPtr barrier(const BarrierOptions& options, bool will_wait);
  SubmissionPtr join(const Group& group);
  /// Null if it is removed already, or if this rank is no member.
  SubmissionPtr remove_group(const Group& group, std::optional<double> timeout_seconds, bool will_wait);
  /// Null if it is removed already.
  SubmissionPtr abandon_group(const Group& group);
  void finish(const SubmissionPtr& submission) {
    driver->wait(submission);
    driver->conclude(*submission);
  }

  /// The bytes of all ranks, by an all_gather whose output is to be allocated.
  using Gather = std::function<void(const Tensor& mine, const Allocate& allocate, BlockRows& rows)>;
  static std::vector<std::string> gathered(std::string_view bytes, const Gather& gather);

  /// A name of the program's, which must not look like the runtime's own. Throws Error{invalid_argument}.
  static std::string_view user_name(std::string_view name);

  MemorySources memory;
  Device device;
  std::shared_ptr<Driver> driver;

 private:
  template <class Options>
  static Signature signature_of(OpKind kind, const Tensor& in, const Options& options) {
    Signature signature{
        .kind = kind, .dtype = in.dtype, .device = in.device.kind, .priority = options.priority, .shape = in.shape};
    if constexpr (requires { options.root; }) signature.root = options.root;
    if constexpr (requires { options.op; }) {
      signature.op = options.op;
      signature.prescale = options.prescale;
      signature.postscale = options.postscale;
      signature.divide_by_group = options.divide_by_group;
    }
    return signature;
  }

  /// Throws Error{invalid_argument} if the group's operations have names and this one none, or the other way round.
  static void check_naming(const Request& request, bool named);
  void set_timeout(Request& request, std::optional<double> asked) const;
  Request new_request(Signature signature, const Group& group, std::optional<double> timeout_seconds = {}) const;
  static void add_member(Request& request, const NamedTensor& tensor);
  void mark_ready(Request& request, void* stream) const;
  std::optional<Failure> check_group(const std::shared_ptr<const GroupInfo>& group) const;

  int exceptions_at_start_;
  std::optional<LeaveAtExit> at_exit_;
};

}  // namespace kolo
