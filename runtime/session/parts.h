#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include <kolo/session.h>

#include "runtime/coordinator/coordinator.h"
#include "runtime/operation/arguments.h"
#include "runtime/session/block_pool.h"
#include "runtime/session/memory_sources.h"
#include "runtime/session/name_table.h"
#include "runtime/world/at_exit.h"

namespace kolo {

/// What a session consists of, and how a call becomes a submission: hop 3 of the main path.
class Session::Parts {
 public:
  Parts(World world, const Config& config);
  ~Parts();

  /// A collective with these options; which parts of a signature they give shows in what members they have.
  template <class Options>
  SubmissionPtr collective(OpKind kind, std::string name, const Tensor& in, const Tensor& out, const Options& options,
                           bool will_wait) {
    auto submission = new_submission(std::move(name), signature_of(kind, in, options), options.group);
    submission->tensors.push_back({in, out});
    RowArguments rows;
    if constexpr (requires { options.allocate; }) {
      bool makes_output = true;
      if constexpr (requires { options.root; }) makes_output = options.root == submission->group->rank;
      if (makes_output) submission->allocate = options.allocate;
      if (makes_output) submission->received_rows = options.rows;
      rows.allocates = static_cast<bool>(submission->allocate);
    }
    if constexpr (requires { options.splits; }) rows.splits = options.splits;
    enqueue(submission, rows, will_wait, options.ready);
    return submission;
  }

  /// Several tensors under one name.
  template <class Options>
  SubmissionPtr grouped(OpKind kind, std::string name, std::span<const NamedTensor> tensors, const Options& options) {
    const Tensor first = tensors.empty() ? Tensor{} : tensors.front().in;
    auto submission = new_submission(std::move(name), signature_of(kind, first, options), options.group);
    for (const NamedTensor& tensor : tensors) add_member(*submission, tensor);
    enqueue(submission, {}, false, options.ready);
    return submission;
  }

  SubmissionPtr send_recv(std::string_view name, const Tensor& tensor, bool sends, int peer, const PairOptions& options,
                          bool will_wait);
  SubmissionPtr without_data(OpKind kind, const Group& group, bool will_wait);
  std::shared_ptr<const GroupInfo> make_group(std::vector<int> members);
  void remove_group(const Group& group);
  void finish(const SubmissionPtr& submission) { Handle(coordinator, submission).wait(); }

  /// A name of the program's, which must not look like the runtime's own. Throws Error{invalid_argument}.
  std::string user_name(std::string_view name) const;

  MemorySources memory;
  Device device;
  std::shared_ptr<Coordinator> coordinator;
  NameTable names;

 private:
  template <class Options>
  static Signature signature_of(OpKind kind, const Tensor& in, const Options& options) {
    Signature signature{.kind = kind, .dtype = in.dtype, .device = in.device.kind, .shape = in.shape};
    if constexpr (requires { options.root; }) signature.root = options.root;
    if constexpr (requires { options.op; }) {
      signature.op = options.op;
      signature.prescale = options.prescale;
      signature.postscale = options.postscale;
      signature.divide_by_group = options.divide_by_group;
    }
    return signature;
  }

  SubmissionPtr new_submission(std::string name, Signature signature, const Group& group) const;
  static void add_member(Submission& submission, const NamedTensor& tensor);
  /// Checks arguments and submits. A bad argument is announced as the name's failure.
  void enqueue(const SubmissionPtr& submission, const RowArguments& rows, bool will_wait, void* ready);
  void mark_ready(Submission& submission, void* stream) const;
  const std::shared_ptr<const GroupInfo>& member(const Group& group) const;

  std::shared_ptr<BlockPool> submissions = std::make_shared<BlockPool>();
  int exceptions_at_start;
  std::optional<LeaveAtExit> at_exit;
};

}  // namespace kolo
