#include <fmt/format.h>

#include <algorithm>
#include <limits>

#include "bench/kolo_bench/measure/candidate.h"
#include "bench/kolo_bench/measure/collective.h"
#include "ops/mpi_base/handles.h"

namespace kolo::bench {
namespace {

/// Arguments of the MPI calls for one lane.
struct Arguments {
  const void* in;  ///< or MPI_IN_PLACE
  void* out;
  const void* own;  ///< `in` of ranks other than the root
  int all;          ///< elements of the tensor
  int block;        ///< elements of a block
};

class RawMpi final : public Asynchronous {
 public:
  RawMpi(MPI_Comm comm, const Work& work, std::string_view name)
      : comm_(comm), work_(work), name_(name), type_(mpi_type(work.signature.dtype)) {
    check_mpi(MPI_Comm_rank(comm_, &rank_), "MPI_Comm_rank");
    check_mpi(MPI_Comm_size(comm_, &ranks_), "MPI_Comm_size");
    on_root_ = work.signature.root == rank_;
    if (reduces(work.signature.kind)) op_ = mpi_op(work.signature.op, work.signature.dtype);
    int scale = 1;
    if (type_ == MPI_DATATYPE_NULL) {  // what only copies copies bytes
      type_ = MPI_BYTE;
      scale = static_cast<int>(size_of(work.signature.dtype));
    }
    for (const auto& [in, out, rows] : work_.lanes) {
      const std::int64_t all = std::max(in.elements(), out.elements());
      const bool blocks = has_blocks(work.signature.kind);
      lanes_.push_back({work.in_place ? MPI_IN_PLACE : in.data, out.data, in.data, static_cast<int>(all) * scale,
                        blocks ? static_cast<int>(all / ranks_) * scale : 0});
    }
  }

  std::string_view name() const override { return name_; }

  void run() override {
    for (const Arguments& lane : lanes_) check_mpi(blocking(lane), "the MPI call that kolo is compared with");
  }
  void start() override {
    requests_.assign(2 * lanes_.size(), MPI_REQUEST_NULL);
    for (std::size_t i = 0; i < lanes_.size(); ++i) {
      check_mpi(non_blocking(lanes_[i], &requests_[2 * i]), "the MPI call that kolo is compared with");
    }
  }
  void finish() override {
    check_mpi(MPI_Waitall(static_cast<int>(requests_.size()), requests_.data(), MPI_STATUSES_IGNORE), "MPI_Waitall");
  }

 private:
  int blocking(const Arguments& a) const {
    const int root = work_.signature.root;
    const int next = (rank_ + 1) % ranks_, last = (rank_ + ranks_ - 1) % ranks_;
    switch (work_.signature.kind) {
      case OpKind::all_reduce: return MPI_Allreduce(a.in, a.out, a.all, type_, op_, comm_);
      case OpKind::reduce: return MPI_Reduce(on_root_ ? a.in : a.own, a.out, a.all, type_, op_, root, comm_);
      case OpKind::broadcast: return MPI_Bcast(a.out, a.all, type_, root, comm_);
      case OpKind::all_gather: return MPI_Allgather(a.in, a.block, type_, a.out, a.block, type_, comm_);
      case OpKind::reduce_scatter: return MPI_Reduce_scatter_block(a.in, where_reduced(a), a.block, type_, op_, comm_);
      case OpKind::all_to_all: return MPI_Alltoall(a.in, a.block, type_, a.out, a.block, type_, comm_);
      case OpKind::gather:
        return MPI_Gather(on_root_ ? a.in : a.own, a.block, type_, a.out, a.block, type_, root, comm_);
      case OpKind::scatter: return MPI_Scatter(a.own, a.block, type_, where_scattered(a), a.block, type_, root, comm_);
      default: return MPI_Sendrecv(a.in, a.all, type_, next, 0, a.out, a.all, type_, last, 0, comm_, MPI_STATUS_IGNORE);
    }
  }

  int non_blocking(const Arguments& a, MPI_Request* r) const {
    const int root = work_.signature.root;
    const int next = (rank_ + 1) % ranks_, last = (rank_ + ranks_ - 1) % ranks_;
    switch (work_.signature.kind) {
      case OpKind::all_reduce: return MPI_Iallreduce(a.in, a.out, a.all, type_, op_, comm_, r);
      case OpKind::reduce: return MPI_Ireduce(on_root_ ? a.in : a.own, a.out, a.all, type_, op_, root, comm_, r);
      case OpKind::broadcast: return MPI_Ibcast(a.out, a.all, type_, root, comm_, r);
      case OpKind::all_gather: return MPI_Iallgather(a.in, a.block, type_, a.out, a.block, type_, comm_, r);
      case OpKind::reduce_scatter:
        return MPI_Ireduce_scatter_block(a.in, where_reduced(a), a.block, type_, op_, comm_, r);
      case OpKind::all_to_all: return MPI_Ialltoall(a.in, a.block, type_, a.out, a.block, type_, comm_, r);
      case OpKind::gather:
        return MPI_Igather(on_root_ ? a.in : a.own, a.block, type_, a.out, a.block, type_, root, comm_, r);
      case OpKind::scatter:
        return MPI_Iscatter(a.own, a.block, type_, where_scattered(a), a.block, type_, root, comm_, r);
      default: break;
    }
    const int rc = MPI_Irecv(a.out, a.all, type_, last, 0, comm_, r);
    return rc == MPI_SUCCESS ? MPI_Isend(a.in, a.all, type_, next, 0, comm_, r + 1) : rc;
  }

  /// In-place MPI writes a rank's block to the start of the input, kolo to the block's own position.
  void* where_reduced(const Arguments& a) const { return work_.in_place ? const_cast<void*>(a.own) : a.out; }
  /// In MPI only the root is in-place; other ranks have no input, so any of their memory can be passed.
  void* where_scattered(const Arguments& a) const { return work_.in_place && on_root_ ? MPI_IN_PLACE : a.out; }

  MPI_Comm comm_;
  Work work_;
  std::string name_;
  MPI_Datatype type_;
  MPI_Op op_ = MPI_OP_NULL;
  int rank_ = 0, ranks_ = 1;
  bool on_root_ = false;
  std::vector<Arguments> lanes_;
  std::vector<MPI_Request> requests_;
};

}  // namespace

MPI_Datatype mpi_type(DType dtype) {
  switch (dtype) {
    case DType::f64: return MPI_DOUBLE;
    case DType::f32: return MPI_FLOAT;
    case DType::i64: return MPI_INT64_T;
    case DType::i32: return MPI_INT32_T;
    case DType::i16: return MPI_INT16_T;
    case DType::i8: return MPI_INT8_T;
    case DType::u64: return MPI_UINT64_T;
    case DType::u32: return MPI_UINT32_T;
    case DType::u16: return MPI_UINT16_T;
    case DType::u8: return MPI_UINT8_T;
    case DType::boolean: return MPI_C_BOOL;
    case DType::f16:
    case DType::bf16: break;
  }
  return MPI_DATATYPE_NULL;
}

MPI_Op mpi_op(ReduceOp op, DType dtype) {
  const bool truth = dtype == DType::boolean;  // of which MPI knows the logical operations
  switch (op) {
    case ReduceOp::sum: return MPI_SUM;
    case ReduceOp::product: return truth ? MPI_LAND : MPI_PROD;
    case ReduceOp::min: return truth ? MPI_LAND : MPI_MIN;
    case ReduceOp::max: return truth ? MPI_LOR : MPI_MAX;
    case ReduceOp::bit_and: return truth ? MPI_LAND : MPI_BAND;
    case ReduceOp::bit_or: return truth ? MPI_LOR : MPI_BOR;
    case ReduceOp::bit_xor: return truth ? MPI_LXOR : MPI_BXOR;
    case ReduceOp::logical_and: return MPI_LAND;
    case ReduceOp::logical_or: return MPI_LOR;
    case ReduceOp::average:
    case ReduceOp::adasum: break;
  }
  return MPI_OP_NULL;
}

std::optional<std::string> no_mpi_call(const Work& work) {
  const Signature& how = work.signature;
  if (reduces(how.kind) && mpi_type(how.dtype) == MPI_DATATYPE_NULL) {
    return fmt::format("MPI has no type that it could add up for {}", to_string(how.dtype));
  }
  if (reduces(how.kind) && mpi_op(how.op, how.dtype) == MPI_OP_NULL)
    return fmt::format("MPI has no operation '{}'", nccl_name(how.op));
  const auto all = std::max(work.lanes.front().in.bytes(), work.lanes.front().out.bytes());
  const bool counts_bytes = mpi_type(how.dtype) == MPI_DATATYPE_NULL;
  const auto counted = counts_bytes ? all : all / size_of(how.dtype);
  if (counted > static_cast<std::size_t>(std::numeric_limits<int>::max())) {
    return fmt::format("MPI counts in ints, and a tensor has {} {}", counted, counts_bytes ? "bytes" : "elements");
  }
  return std::nullopt;
}

std::unique_ptr<Asynchronous> raw_mpi(MPI_Comm comm, const Work& work, std::string_view name) {
  return std::make_unique<RawMpi>(comm, work, name);
}

}  // namespace kolo::bench
