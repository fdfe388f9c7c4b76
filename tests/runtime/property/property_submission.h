#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include <kolo/session.h>

#include "tests/runtime/property/property_model.h"
#include "tests/runtime/property/property_program.h"
#include "tests/runtime/property/property_shared.h"

namespace kolo::testing {

/// What memory holds that nobody has written to.
inline constexpr std::byte untouched{0xab};

/// The time-out that a rank passes, if any: short where another comes late.
std::optional<double> timeout_of(const PropertyOp& op, int rank);

/// A submission of one rank, with its memory.
class PropertySubmission {
 public:
  PropertySubmission(Session& session, const PropertyOp& op, const Group& group, int rank, SharedState& shared)
      : session_(session),
        op_(op),
        group_(group),
        rank_(rank),
        shared_(shared),
        odd_(op.is_odd(rank)),
        called_(odd_ ? odd_version(op) : op) {
    make_buffers();
  }

  const PropertyOp& op() const { return op_; }
  void submit() { handle_ = start(); }
  void drop() { handle_ = {}; }
  bool poll() { return handle_.poll(); }
  void wait() { handle_.wait(); }

  /// What the operation left behind, checked against the model.
  void check() {
    if (op_.call > Call::send_recv) return;
    for (std::size_t i = 0; i < buffers_.size(); ++i) check(i);
    if (wants_rows_ && rows_ != rows_received(op_, op_.tensors[0], rank_)) wrong("the rows it reports");
  }

  /// Whether an operation out of place has written nothing.
  bool left_alone() const {
    return std::all_of(buffers_[0].out.begin(), buffers_[0].out.end(),
                       [](std::byte value) { return value == untouched; });
  }

 private:
  struct Buffers {
    Bytes in, out, before;  // one of the first two holds both if in place
    NamedTensor tensor;
    bool in_place = false;
  };

  bool chance(int percent, std::uint64_t what) const {
    return mix(op_.seed, static_cast<std::uint64_t>(rank_), what) % 100 < static_cast<std::uint64_t>(percent);
  }

  bool can_be_in_place() const;
  void make_buffers();
  void spoil(Buffers& buffers);
  Handle start();
  Handle start_grouped();
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
    if constexpr (requires { options.root; }) options.root = called_.root;
    return options;
  }
  template <class Options>
  Options gathering() {
    Options options;
    options.group = group_;
    options.timeout_seconds = timeout_of(op_, rank_);
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
  const PropertyOp& op_;
  const Group& group_;
  int rank_;
  SharedState& shared_;
  bool odd_;
  PropertyOp called_;
  std::vector<Buffers> buffers_;
  bool allocates_ = false;
  bool wants_rows_ = false;
  BlockRows rows_;
  Handle handle_;  // last: its memory is above
};

}  // namespace kolo::testing
