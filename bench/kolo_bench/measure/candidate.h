#pragma once

#include <mpi.h>

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <kolo/session.h>

#include "bench/kolo_bench/measure/work.h"

namespace kolo::bench {

/// Somebody who can do some work: what is timed. Ranks call run() in the same order.
class Candidate {
 public:
  virtual ~Candidate() = default;
  virtual std::string_view name() const = 0;
  /// Does it once, and returns when this rank has its results and may change its inputs.
  virtual void run() = 0;
};

/// One that can compute while it communicates: run() is start() and finish().
class Asynchronous : public Candidate {
 public:
  virtual void start() = 0;
  virtual void finish() = 0;
  void run() override {
    start();
    finish();
  }
};

/// A backend called from this thread, with no session: of `backends` the first that supports the work. `yields`: a rank
/// that waits lets others have its core, because there are more ranks than cores. Making and destroying one may be
/// collective. Errors: UsageError if none does.
std::unique_ptr<Candidate> direct(const BackendList& backends, int rank, int ranks, bool yields, const Work& work);

/// The whole runtime. `ready`: the stream that writes inputs on a GPU.
std::unique_ptr<Asynchronous> through_session(Session& session, const Work& work, void* ready = nullptr);

/// MPI's own calls: blocking ones in run(), non-blocking ones in start().
std::unique_ptr<Asynchronous> raw_mpi(MPI_Comm comm, const Work& work, std::string_view name);

/// Why MPI cannot do such work; nothing if it can.
std::optional<std::string> no_mpi_call(const Work& work);

/// The MPI type and operation of kolo's; MPI_DATATYPE_NULL and MPI_OP_NULL if MPI has none.
MPI_Datatype mpi_type(DType dtype);
MPI_Op mpi_op(ReduceOp op, DType dtype);

/// Copies as many bytes as the work's size from one buffer to another, past the caches. Owns the buffers, which have
/// huge pages if `huge`.
std::unique_ptr<Candidate> copies(std::size_t bytes, bool huge);

}  // namespace kolo::bench
