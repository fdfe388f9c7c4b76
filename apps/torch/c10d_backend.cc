#include "apps/torch/c10d_backend.h"

#include <ATen/record_function.h>

#include <algorithm>
#include <stdexcept>
#include <utility>

namespace kolo_torch {
namespace {

using c10d::OpType;
using std::chrono::milliseconds;

/// The one tensor, or list, of what c10d hands over as a list for each device.
template <class T>
T& only(std::vector<T>& all, const char* operation) {
  TORCH_CHECK(all.size() == 1, operation, ": ", all.size(), " tensors, or lists of them, for one device of this rank");
  return all.front();
}

Reduction reduction_of(const c10d::ReduceOp& op) {
  using kolo::ReduceOp;
  switch (op.op_) {
    case c10d::ReduceOp::SUM: return {ReduceOp::sum};
    case c10d::ReduceOp::AVG: return {ReduceOp::average};
    case c10d::ReduceOp::PRODUCT: return {ReduceOp::product};
    case c10d::ReduceOp::MIN: return {ReduceOp::min};
    case c10d::ReduceOp::MAX: return {ReduceOp::max};
    case c10d::ReduceOp::BAND: return {ReduceOp::bit_and};
    case c10d::ReduceOp::BOR: return {ReduceOp::bit_or};
    case c10d::ReduceOp::BXOR: return {ReduceOp::bit_xor};
    case c10d::ReduceOp::PREMUL_SUM: {
      const auto* const factor = dynamic_cast<const c10d::PreMulSumSupplement*>(op.supplement_.get());
      TORCH_CHECK(factor, "PREMUL_SUM without a factor");
      return {ReduceOp::sum,
              factor->tensor_factor.defined() ? factor->tensor_factor.item<double>() : factor->double_factor};
    }
    default: TORCH_CHECK(false, "kolo has no such ReduceOp: ", static_cast<int>(op.op_));
  }
}

constexpr std::size_t many_coalesced = 64;

double seconds(milliseconds time) {
  return std::chrono::duration<double>(time).count();
}

/// torch 2.13 has no name for a gather of several joined outputs.
template <class Type>
constexpr Type joined_gather() {
  if constexpr (requires { Type::ALLGATHER_INTO_TENSOR_COALESCED; }) {
    return Type::ALLGATHER_INTO_TENSOR_COALESCED;
  } else {
    return Type::ALLGATHER_COALESCED;
  }
}

}  // namespace

/// One call of a program's.
struct C10dBackend::Call {
  OpType type;
  const char* name;  // of the profiler's event, behind that of the backend
  Blocks inputs;     // for the event
  Blocks outputs;    // what the work has as its result
  milliseconds timeout = c10d::kUnsetTimeout;
  std::shared_ptr<const int> source{};
};

milliseconds C10dBackend::timeout_of(milliseconds asked) const {
  return asked > kNoTimeout ? asked : options_->timeout;
}

/// Whether the program waits for what it calls before it does anything else. Not every torch says so.
template <class Asked>
bool C10dBackend::waits(const Asked& options) const {
  if constexpr (requires { options.asyncOp; }) return !options.asyncOp && !is_coalescing_;
  return false;
}

template <class Start>
C10dBackend::WorkPtr C10dBackend::start(Call call, Start&& start_operation) {
  const bool is_profiled = at::hasCallbacks();
  const std::string title = is_profiled ? name_ + ":" + call.name : "";
  const milliseconds timeout = timeout_of(call.timeout);
  OperationPtr operation;
  try {
    operation = start_operation(seconds(timeout));
  } catch (const kolo::Error& error) {
    const kolo::Failure failure = error.failure();
    news_->look(&failure);
    collectives_->job()->failed(failure);
    std::rethrow_exception(exception_of(failure));
  }
  if (is_coalescing_) {
    const std::lock_guard lock(coalescing_mutex_);
    if (coalesced_.size() >= many_coalesced)  // after an error in a batch, c10d does not end it
      std::erase_if(coalesced_, [](const OperationPtr& one) { return one->done() && !one->failure(); });
    coalesced_.push_back(operation);
  }
  const bool counts = !c10d::isP2POp(call.type) && call.type != OpType::COALESCED;  // its parts have counted themselves
  const std::uint64_t sequence = counts ? ++sequence_ : sequence_.load();
  return c10::make_intrusive<C10dWork>(C10dWork::About{.operation = std::move(operation),
                                                       .news = news_,
                                                       .type = call.type,
                                                       .outputs = std::move(call.outputs),
                                                       .sequence = sequence,
                                                       .timeout = timeout,
                                                       .source = std::move(call.source),
                                                       .rank = rank_},
                                       is_profiled ? title.c_str() : nullptr, call.inputs);
}

C10dBackend::WorkPtr C10dBackend::broadcast(Blocks& tensors, const c10d::BroadcastOptions& options) {
  const auto root = static_cast<int>(options.rootRank);
  return start({OpType::BROADCAST, "broadcast", tensors, tensors, options.timeout}, [&](double time) {
    return collectives_->broadcast({only(tensors, "broadcast")}, root, time, waits(options));
  });
}

C10dBackend::WorkPtr C10dBackend::allreduce(Blocks& tensors, const c10d::AllreduceOptions& options) {
  if (only(tensors, "all_reduce").is_sparse()) return allreduce_sparse(tensors, options);
  return start({OpType::ALLREDUCE, "all_reduce", tensors, tensors, options.timeout}, [&](double time) {
    return collectives_->all_reduce(tensors, reduction_of(options.reduceOp), time, waits(options));
  });
}

C10dBackend::WorkPtr C10dBackend::allreduce_sparse(Blocks& tensors, const c10d::AllreduceOptions& options) {
  TORCH_CHECK(options.reduceOp.op_ == c10d::ReduceOp::SUM, "all_reduce of sparse tensors: kolo has sums only");
  const at::Tensor& tensor = only(tensors, "all_reduce of sparse tensors");
  return start({OpType::_ALLREDUCE_SPARSE, "sparse_all_reduce", tensors, tensors, options.timeout},
               [&](double time) { return collectives_->all_reduce_sparse(tensor, time); });
}

C10dBackend::WorkPtr C10dBackend::allreduce_coalesced(Blocks& tensors, const c10d::AllreduceCoalescedOptions& options) {
  return start({OpType::ALLREDUCE_COALESCED, "all_reduce", tensors, tensors, options.timeout},
               [&](double time) { return collectives_->all_reduce(tensors, reduction_of(options.reduceOp), time); });
}

C10dBackend::WorkPtr C10dBackend::reduce(Blocks& tensors, const c10d::ReduceOptions& options) {
  const auto root = static_cast<int>(options.rootRank);
  return start({OpType::REDUCE, "reduce", tensors, tensors, options.timeout}, [&](double time) {
    return collectives_->reduce(only(tensors, "reduce"), root, reduction_of(options.reduceOp), time);
  });
}

C10dBackend::WorkPtr C10dBackend::allgather(std::vector<Blocks>& outputs, Blocks& inputs,
                                            const c10d::AllgatherOptions& options) {
  Blocks& all = only(outputs, "all_gather");
  return start({OpType::ALLGATHER, "all_gather", inputs, all, options.timeout},
               [&](double time) { return collectives_->all_gather(all, only(inputs, "all_gather"), time); });
}

C10dBackend::WorkPtr C10dBackend::_allgather_base(at::Tensor& output, at::Tensor& input,
                                                  const c10d::AllgatherOptions& options) {
  return start({OpType::_ALLGATHER_BASE, "all_gather", {input}, {output}, options.timeout},
               [&](double time) { return collectives_->all_gather_joined({output}, {input}, time, waits(options)); });
}

/// outputs[r][i]: what rank r has as inputs[i].
C10dBackend::WorkPtr C10dBackend::allgather_coalesced(std::vector<Blocks>& outputs, Blocks& inputs,
                                                      const c10d::AllgatherOptions& options) {
  Blocks all;
  for (const Blocks& list : outputs) {
    TORCH_CHECK(list.size() == inputs.size(), "all_gather_coalesced: a list of ", list.size(), " outputs of ",
                inputs.size(), " inputs");
    all.insert(all.end(), list.begin(), list.end());
  }
  return start({OpType::ALLGATHER_COALESCED, "all_gather", inputs, all, options.timeout}, [&](double time) {
    std::vector<OperationPtr> each;
    for (std::size_t i = 0; i < inputs.size(); ++i) {
      Blocks blocks;
      for (const Blocks& list : outputs) blocks.push_back(list[i]);
      each.push_back(collectives_->all_gather(blocks, inputs[i], time));
    }
    return collectives_->together(std::move(each));
  });
}

C10dBackend::WorkPtr C10dBackend::allgather_into_tensor_coalesced(Blocks& outputs, Blocks& inputs,
                                                                  const c10d::AllgatherOptions& options) {
  return start({joined_gather<OpType>(), "all_gather", inputs, outputs, options.timeout},
               [&](double time) { return collectives_->all_gather_joined(outputs, inputs, time); });
}

C10dBackend::WorkPtr C10dBackend::gather(std::vector<Blocks>& outputs, Blocks& inputs,
                                         const c10d::GatherOptions& options) {
  const auto root = static_cast<int>(options.rootRank);
  TORCH_CHECK(outputs.empty() == (rank_ != root), "gather: outputs are for the root, rank ", root,
              ", and for no other");
  const Blocks all = outputs.empty() ? Blocks{} : only(outputs, "gather");
  return start({OpType::GATHER, "gather", inputs, all, options.timeout},
               [&](double time) { return collectives_->gather(all, only(inputs, "gather"), root, time); });
}

C10dBackend::WorkPtr C10dBackend::gather_into_tensor(at::Tensor& output, at::Tensor& input,
                                                     const c10d::GatherOptions& options) {
  const auto root = static_cast<int>(options.rootRank);
  return start({OpType::GATHER, "gather", {input}, {output}, options.timeout},
               [&](double time) { return collectives_->gather_joined(output, input, root, time); });
}

C10dBackend::WorkPtr C10dBackend::scatter(Blocks& outputs, std::vector<Blocks>& inputs,
                                          const c10d::ScatterOptions& options) {
  const auto root = static_cast<int>(options.rootRank);
  TORCH_CHECK(inputs.empty() == (rank_ != root), "scatter: inputs are for the root, rank ", root, ", and for no other");
  const Blocks all = inputs.empty() ? Blocks{} : only(inputs, "scatter");
  return start({OpType::SCATTER, "scatter", all, outputs, options.timeout},
               [&](double time) { return collectives_->scatter(only(outputs, "scatter"), all, root, time); });
}

C10dBackend::WorkPtr C10dBackend::reduce_scatter(Blocks& outputs, std::vector<Blocks>& inputs,
                                                 const c10d::ReduceScatterOptions& options) {
  const Blocks& all = only(inputs, "reduce_scatter");
  return start({OpType::REDUCE_SCATTER, "reduce_scatter", all, outputs, options.timeout}, [&](double time) {
    return collectives_->reduce_scatter(only(outputs, "reduce_scatter"), all, reduction_of(options.reduceOp), time);
  });
}

C10dBackend::WorkPtr C10dBackend::_reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                                                       const c10d::ReduceScatterOptions& options) {
  return start({OpType::_REDUCE_SCATTER_BASE, "reduce_scatter", {input}, {output}, options.timeout}, [&](double time) {
    return collectives_->reduce_scatter_joined({output}, {input}, reduction_of(options.reduceOp), time, waits(options));
  });
}

C10dBackend::WorkPtr C10dBackend::reduce_scatter_tensor_coalesced(Blocks& outputs, Blocks& inputs,
                                                                  const c10d::ReduceScatterOptions& options) {
  return start({OpType::REDUCE_SCATTER_TENSOR_COALESCED, "reduce_scatter", inputs, outputs, options.timeout},
               [&](double time) {
                 return collectives_->reduce_scatter_joined(outputs, inputs, reduction_of(options.reduceOp), time);
               });
}

C10dBackend::WorkPtr C10dBackend::alltoall_base(at::Tensor& output, at::Tensor& input,
                                                std::vector<std::int64_t>& output_splits,
                                                std::vector<std::int64_t>& input_splits,
                                                const c10d::AllToAllOptions& options) {
  return start({OpType::ALLTOALL_BASE, "all_to_all", {input}, {output}, options.timeout}, [&](double time) {
    return collectives_->all_to_all_joined(output, input, output_splits, input_splits, time);
  });
}

C10dBackend::WorkPtr C10dBackend::alltoall(Blocks& outputs, Blocks& inputs, const c10d::AllToAllOptions& options) {
  return start({OpType::ALLTOALL, "all_to_all", inputs, outputs, options.timeout},
               [&](double time) { return collectives_->all_to_all(outputs, inputs, time); });
}

C10dBackend::WorkPtr C10dBackend::send(Blocks& tensors, int to, int tag) {
  return start({OpType::SEND, "send", tensors, tensors},
               [&](double time) { return collectives_->send(only(tensors, "send"), to, tag, time); });
}

C10dBackend::WorkPtr C10dBackend::recv(Blocks& tensors, int from, int tag) {
  return start({OpType::RECV, "recv", tensors, tensors},
               [&](double time) { return collectives_->receive(only(tensors, "recv"), from, tag, time); });
}

C10dBackend::WorkPtr C10dBackend::recvAnysource(Blocks& tensors, int tag) {
  const auto source = std::make_shared<int>(-1);
  Call call{OpType::RECVANYSOURCE, "recvAnySource", tensors, tensors};
  call.source = source;
  return start(std::move(call),
               [&](double time) { return collectives_->receive_any(only(tensors, "recv"), tag, source, time); });
}

/// Of a program whose tensors on a GPU were moved: behind what is on its stream, as NCCL's is.
C10dBackend::WorkPtr C10dBackend::barrier(const c10d::BarrierOptions& options) {
  if (const auto gpu = collectives_->job()->gpu()) kolo_torch::synchronize(*gpu);
  return start({OpType::BARRIER, "barrier", {}, {}, options.timeout},
               [&](double time) { return collectives_->barrier(time, waits(options)); });
}

void C10dBackend::monitoredBarrier(const c10d::BarrierOptions& options, bool all_ranks) {
  try {
    const milliseconds timeout = options.timeout == c10d::kUnsetTimeout ? options_->timeout : options.timeout;
    collectives_->monitored_barrier(seconds(timeout), all_ranks);
  } catch (const kolo::Error& error) {
    throw std::runtime_error(error.what());
  }
}

void C10dBackend::startCoalescing() {
  const std::lock_guard lock(coalescing_mutex_);
  coalesced_.clear();
  is_coalescing_ = true;
}

C10dBackend::WorkPtr C10dBackend::endCoalescing() {
  std::vector<OperationPtr> operations;
  {
    const std::lock_guard lock(coalescing_mutex_);
    is_coalescing_ = false;
    operations.swap(coalesced_);
  }
  return start({OpType::COALESCED, "coalesced", {}, {}},
               [&](double) { return collectives_->together(std::move(operations)); });
}

}  // namespace kolo_torch
