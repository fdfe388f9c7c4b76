#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <mutex>
#include <string>
#include <vector>

#include <kolo/session.h>

#include "ops/gpu/gpu.h"
#include "tests/runtime/property/property_model.h"
#include "tests/runtime/property/property_program.h"
#include "tests/runtime/property/property_shared.h"

namespace kolo::testing {

/// What memory holds that nobody has written to.
inline constexpr std::byte untouched{0xab};

/// Whether the ranks of an operation have its tensors on their GPUs, if the session has such: of half of them.
bool on_gpus(const PropertyOp& op);

/// The time-out that a rank passes, if any: short where another comes late.
std::optional<double> timeout_of(const PropertyOp& op, int rank);

/// A submission of one rank, with its memory.
class PropertySubmission {
 public:
  /// `step`: has the operation. `ordered`: a group of all ranks, in which some of them send and receive by tag.
  /// `again`: what was odd about it is over. `comes_too_late`: this rank has abandoned its group.
  PropertySubmission(Session& session, const PropertyStep& step, const PropertyOp& op, const Group& group,
                     const Group& ordered, int rank, SharedState& shared, bool again = false,
                     bool comes_too_late = false)
      : session_(session),
        step_(step),
        op_(op),
        group_(group),
        ordered_(ordered),
        rank_(rank),
        shared_(shared),
        odd_(op.is_odd(rank) && !again),
        comes_too_late_(comes_too_late),
        called_(odd_ ? odd_version(op) : op) {
    make_buffers();
  }

  const PropertyOp& op() const { return op_; }
  /// Whether this rank had abandoned its group before.
  bool comes_too_late() const { return comes_too_late_; }
  void submit() { handle_ = start(); }
  /// What a batch is made of, instead of submit(); then what has begun so.
  PairOperation operation() const;
  PairOptions pair_options() const;
  void begun(Handle&& handle) { handle_ = std::move(handle); }
  void drop() { handle_ = {}; }
  Handle& handle() { return handle_; }

  /// What the operation left behind, checked against the model; by the one who waits and by a function, maybe at once.
  void check() {
    const std::lock_guard lock(checking_);
    if (op_.call > Call::send_recv) return;
    fetch();
    for (std::size_t i = 0; i < buffers_.size(); ++i) check(i);
    if (wants_rows_ && rows_ != rows_received(op_, op_.tensors[0], rank_)) wrong("the rows it reports");
  }

  /// Whether an operation out of place has written nothing.
  bool left_alone() {
    fetch();
    return std::all_of(buffers_[0].out.begin(), buffers_[0].out.end(),
                       [](std::byte value) { return value == untouched; });
  }

 private:
  struct Buffers {
    Bytes in, out, before;      // one of the first two holds both if in place
    GpuBuffer gpu_in, gpu_out;  // what the operation uses instead of them, if the tensors are on a GPU
    std::shared_ptr<std::byte> adopted_in, adopted_out;  // likewise, if they are in adopted memory
    Memory session;  // what is sent or received, if not empty; then `in` or `out` is a copy of it
    NamedTensor tensor;
    const std::byte* result = nullptr;  // what is checked of the output
    bool in_place = false;
  };

  bool chance(int percent, std::uint64_t what) const {
    return mix(op_.seed, static_cast<std::uint64_t>(rank_), what) % 100 < static_cast<std::uint64_t>(percent);
  }

  bool can_be_in_place() const;
  void make_buffers();
  void use_session_memory(Buffers& buffers);
  void use_adopted_memory(Buffers& buffers);
  void use_gpu(Buffers& buffers, bool has_output);
  void copy_to_gpu(const Bytes& bytes, GpuBuffer& copy);
  void fetch();
  void spoil(Buffers& buffers);
  Handle start();
  Handle start_send_recv();
  int ranked(int rank) const;
  int tag() const;
  std::size_t most_received() const;
  void check_any();
  template <class... Name>
  Handle start_collective(const Name&... name);
  template <class... Name>
  Handle start_grouped(const Name&... name);
  std::vector<std::int64_t> splits() const;
  Allocate allocate();
  template <class Options>
  Options reducing() const {
    Options options;
    options.op = called_.op;
    options.group = group_;
    options.prescale = called_.prescale;
    options.postscale = called_.postscale;
    options.divide_by_group = called_.divide_by_group;
    options.timeout_seconds = timeout_of(op_, rank_);
    options.priority = called_.priority;
    if constexpr (requires { options.root; }) options.root = called_.root;
    return options;
  }
  template <class Options>
  Options gathering() {
    Options options;
    options.group = group_;
    options.timeout_seconds = timeout_of(op_, rank_);
    options.priority = called_.priority;
    if (allocates_) options.allocate = allocate();
    if (wants_rows_) options.rows = &rows_;
    if constexpr (requires { options.splits; }) options.splits = splits();
    if constexpr (requires { options.root; }) options.root = called_.root;
    return options;
  }

  void check(std::size_t i);
  void wrong(const std::string& what) {
    shared_.problem(fmt::format("{}: on rank {} of the group {} is wrong", to_string(op_), rank_, what));
  }

  Session& session_;
  const PropertyStep& step_;
  const PropertyOp& op_;
  const Group& group_;
  const Group ordered_;
  int rank_;
  SharedState& shared_;
  bool odd_;
  bool comes_too_late_;
  PropertyOp called_;
  std::vector<Buffers> buffers_;
  Gpu* gpu_ = nullptr;  // where the tensors are, if not in host memory
  bool allocates_ = false;
  bool wants_rows_ = false;
  BlockRows rows_;
  Received received_;
  std::mutex checking_;
  Handle handle_;  // last: its memory is above
};

}  // namespace kolo::testing
