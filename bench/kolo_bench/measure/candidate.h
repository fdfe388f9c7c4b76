#pragma once

#include <mpi.h>

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <kolo/session.h>

#include "bench/kolo_bench/measure/collective.h"

namespace kolo::bench {

/// One implementation of a collective to be timed: kolo, raw MPI, raw NCCL. Ranks call run() in the same order.
class Candidate {
 public:
  virtual ~Candidate() = default;
  virtual std::string_view name() const = 0;
  /// Runs the collective once, and returns when this rank has its results and may change its inputs.
  virtual void run() = 0;
  /// How kolo moved this rank's bytes when it ran last, see Operation::method(); empty: not known.
  virtual std::string_view method() const { return {}; }
};

/// A candidate that can communicate in the background: run() is start() and finish().
class Asynchronous : public Candidate {
 public:
  virtual void start() = 0;
  virtual void finish() = 0;
  /// Whether finish() is known to return without waiting.
  virtual bool done() { return false; }
  void run() override {
    start();
    finish();
  }
};

/// The first of kolo's `backends` that supports the work, called from this thread without a session. `yields`: waiting
/// ranks yield their core, because there are more ranks than cores. Making and destroying one may be collective.
/// Errors: UsageError if no backend supports the work.
std::unique_ptr<Candidate> direct(const BackendList& backends, int rank, int ranks, bool yields, const Work& work);

/// kolo through a session, in a group of all ranks. `ready`: the stream that writes inputs on a GPU.
std::unique_ptr<Asynchronous> through_session(Session& session, const Work& work, void* ready = nullptr,
                                              const Group& group = {});

/// MPI's own calls: blocking ones in run(), non-blocking ones in start().
std::unique_ptr<Asynchronous> raw_mpi(MPI_Comm comm, const Work& work, std::string_view name);

/// The reason why MPI has no call for the work; nothing if it has one.
std::optional<std::string> no_mpi_call(const Work& work);

/// The MPI type and operation of kolo's; MPI_DATATYPE_NULL and MPI_OP_NULL if MPI has none.
MPI_Datatype mpi_type(DType dtype);
MPI_Op mpi_op(ReduceOp op, DType dtype);

}  // namespace kolo::bench
