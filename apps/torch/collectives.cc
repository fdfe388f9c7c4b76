#include "apps/torch/collectives.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "apps/torch/elements.h"

// Operations on whole tensors, on pairs of ranks, and on groups; those on blocks are in blocks.cc.

namespace kolo_torch {
namespace {

/// The tensors, or contiguous copies.
Tensors staged(const Tensors& tensors, const char* operation) {
  Tensors all;
  for (const at::Tensor& tensor : tensors) {
    check_tensor(tensor, operation);
    all.push_back(contiguous(tensor));
  }
  return all;
}

std::vector<kolo::NamedTensor> in_place(const Tensors& tensors) {
  std::vector<kolo::NamedTensor> all;
  for (const at::Tensor& tensor : tensors) all.push_back({{}, elements(tensor), elements(tensor)});
  return all;
}

constexpr int barrier_tag = std::numeric_limits<int>::max();

}  // namespace

Reduction suited(Reduction reduction, at::ScalarType type, const char* operation) {
  using kolo::ReduceOp;
  TORCH_CHECK(can_add(type), operation, ": kolo copies values of type ", type, ", it does not combine them");
  const bool adds = reduction.op == ReduceOp::sum || reduction.op == ReduceOp::average;
  TORCH_CHECK(adds || !c10::isComplexType(type), operation, ": of complex numbers kolo has sums and averages only");
  if (type == at::kBool && reduction.op == ReduceOp::sum) reduction.op = ReduceOp::max;  // as others do
  return reduction;
}

Kinds kinds_of(const Tensors& tensors) {
  Kinds kinds;
  for (const at::Tensor& tensor : tensors)
    (tensor.scalar_type() == at::kBool ? kinds.bools : kinds.others).push_back(tensor);
  return kinds;
}

OperationPtr Collectives::start(kolo::Handle handle, Tensors tensors, std::function<void()> finish) {
  Operation::Parts parts{.job = job_, .tensors = std::move(tensors), .finish = std::move(finish)};
  parts.handles.push_back(std::move(handle));
  return std::make_shared<Operation>(std::move(parts));
}

OperationPtr Collectives::run(const std::function<void()>& call, std::function<void()> finish) {
  return std::make_shared<Operation>(call, Operation::Parts{.job = job_, .finish = std::move(finish)});
}

OperationPtr Collectives::together(std::vector<OperationPtr> operations) {
  return std::make_shared<Operation>(Operation::Parts{.job = job_, .operations = std::move(operations)});
}

OperationPtr Collectives::all_reduce(const Tensors& tensors, Reduction reduction, double seconds, bool waits) {
  if (tensors.empty()) return together({});
  if (const Kinds kinds = kinds_of(tensors); kinds.are_mixed()) {
    OperationPtr others = all_reduce(kinds.others, reduction, seconds);
    return together({std::move(others), all_reduce(kinds.bools, reduction, seconds)});
  }
  const Tensors used = staged(tensors, "all_reduce");
  for (const at::Tensor& tensor : used) reduction = suited(reduction, tensor.scalar_type(), "all_reduce");
  const kolo::AllReduceOptions options{.op = reduction.op,
                                       .group = group_,
                                       .prescale = reduction.prescale,
                                       .ready = job_->ready(used[0]),
                                       .timeout_seconds = seconds};
  if (waits && can_be_called(used))
    return run([&] { session()->all_reduce(elements(used[0]), options); }, copy_back(tensors, used));
  kolo::Handle handle = used.size() == 1 ? session()->all_reduce_async(elements(used[0]), options)
                                         : session()->grouped_all_reduce_async(in_place(used), options);
  return start(std::move(handle), used, copy_back(tensors, used));
}

/// Coordinates and values of all ranks, one after the other, are those of the sum.
OperationPtr Collectives::all_reduce_sparse(const at::Tensor& tensor, double seconds) {
  TORCH_CHECK_TYPE(tensor.layout() == at::kSparse && tensor.is_cpu(),
                   "all_reduce of sparse tensors: kolo has it for those in coordinates, in host memory");
  const at::Tensor mine = tensor.coalesce();
  const at::Tensor places = mine.indices().t().contiguous(), values = contiguous(mine.values());  // rows: entries
  suited({}, values.scalar_type(), "all_reduce of sparse tensors");
  struct Sum {
    at::Tensor places, values;
  };
  const auto sum = std::make_shared<Sum>();
  const auto gather = [&](const at::Tensor& rows, at::Tensor& of_all) {
    kolo::Tensor in = elements(rows);
    std::vector<std::int64_t> sizes(rows.sizes().begin(), rows.sizes().end());
    std::int64_t each = elements_each(rows.scalar_type());
    for (std::size_t i = 1; i < sizes.size(); ++i) each *= sizes[i];
    in.shape = kolo::Shape{rows.size(0), each};
    const auto allocate = [&of_all, sizes, options = rows.options()](const kolo::Shape& shape) mutable {
      sizes[0] = shape[0];
      of_all = at::empty(sizes, options);
      kolo::Tensor out = elements(of_all);
      out.shape = shape;
      return out;
    };
    return session()->all_gather_async(in, {}, {.group = group_, .allocate = allocate, .timeout_seconds = seconds});
  };
  Operation::Parts parts{.job = job_, .tensors = {places, values}};
  parts.handles.push_back(gather(places, sum->places));
  parts.handles.push_back(gather(values, sum->values));
  parts.finish = [sum, tensor] {
    tensor.copy_(at::sparse_coo_tensor(sum->places.t(), sum->values, tensor.sizes()).coalesce());
  };
  return std::make_shared<Operation>(std::move(parts));
}

OperationPtr Collectives::reduce(const at::Tensor& tensor, int root, Reduction reduction, double seconds) {
  const Tensors used = staged({tensor}, "reduce");
  reduction = suited(reduction, tensor.scalar_type(), "reduce");
  const kolo::Tensor in = elements(used[0]);
  const bool is_root = rank() == root;
  return start(session()->reduce_async(in, is_root ? in : kolo::Tensor{},
                                       {.op = reduction.op,
                                        .root = root,
                                        .group = group_,
                                        .prescale = reduction.prescale,
                                        .ready = job_->ready(used[0]),
                                        .timeout_seconds = seconds}),
               used, is_root ? copy_back({tensor}, used) : nullptr);
}

OperationPtr Collectives::broadcast(const Tensors& tensors, int root, double seconds, bool waits) {
  if (tensors.empty()) return together({});
  const Tensors used = staged(tensors, "broadcast");
  const kolo::BroadcastOptions options{
      .root = root, .group = group_, .ready = job_->ready(used[0]), .timeout_seconds = seconds};
  if (waits && can_be_called(used))
    return run([&] { session()->broadcast(elements(used[0]), options); }, copy_back(tensors, used));
  kolo::Handle handle = used.size() == 1 ? session()->broadcast_async(elements(used[0]), options)
                                         : session()->grouped_broadcast_async(in_place(used), options);
  return start(std::move(handle), used, copy_back(tensors, used));
}

OperationPtr Collectives::barrier(double seconds, bool waits) {
  const kolo::BarrierOptions options{.group = group_, .timeout_seconds = seconds};
  if (waits) return run([&] { session()->barrier(options); });
  return start(session()->barrier_async(options), {});
}

kolo::PairOptions Collectives::message(const at::Tensor& tensor, int tag, double seconds) const {
  return {.group = group_, .tag = tag, .ready = job_->ready(tensor), .timeout_seconds = seconds};
}

OperationPtr Collectives::send(const at::Tensor& tensor, int to, int tag, double seconds) {
  const Tensors used = staged({tensor}, "send");
  return start(session()->send_async(elements(used[0]), to, message(used[0], tag, seconds)), used);
}

OperationPtr Collectives::receive(const at::Tensor& tensor, int from, int tag, double seconds) {
  const Tensors used = staged({tensor}, "recv");
  return start(session()->recv_async(elements(used[0]), from, message(used[0], tag, seconds)), used,
               copy_back({tensor}, used));
}

OperationPtr Collectives::receive_any(const at::Tensor& tensor, int tag, std::shared_ptr<int> source, double seconds) {
  const Tensors used = staged({tensor}, "recv");
  const auto received = std::make_shared<kolo::Received>();
  kolo::Handle handle =
      session()->recv_any_async(elements(used[0]), std::span(&tag, 1), received.get(), message(used[0], 0, seconds));
  return start(std::move(handle), used, [received, source = std::move(source), used, back = copy_back({tensor}, used)] {
    TORCH_CHECK(received->bytes == used[0].nbytes(), "recv from any rank: rank ", received->source, " sent ",
                received->bytes, " bytes, the tensor has ", used[0].nbytes());
    *source = received->source;
    if (back) back();
  });
}

/// The group goes when all members have left it; how that fails is of no interest.
void Collectives::leave() {
  if (left_.exchange(true)) return;
  try {
    start(job_->session()->remove_group_async(group_), {})->then([] {});
  } catch (const kolo::Error&) {  // the session is closed
  }
  job_->leave();
}

void Collectives::abort() {
  if (left_) return;
  try {
    job_->session()->abandon_group(group_);
  } catch (const kolo::Error&) {  // the session is closed
  }
  leave();
}

/// Everyone tells rank 0 that it has come, and waits for rank 0 to say that all have.
void Collectives::monitored_barrier(double seconds, bool all_ranks) {
  const auto fail = [](const std::string& text) { throw kolo::Error(kolo::ErrorCode::stalled, text); };
  const auto after = c10::str(" monitoredBarrier in ", std::llround(seconds * 1e3), " ms");
  if (seconds <= 0 && rank() == 0) fail(c10::str("Rank 0 timed out in monitoredBarrier after 0 ms"));
  const kolo::PairOptions options{.group = group_, .tag = barrier_tag, .timeout_seconds = std::max(seconds, 1e-3)};
  std::vector<std::uint8_t> words(static_cast<std::size_t>(size()), 0);
  const auto word = [&](int rank) { return kolo::view_scalar(words[static_cast<std::size_t>(rank)]); };
  if (rank() != 0) {
    try {
      session()->send(word(rank()), 0, options);
      return session()->recv(word(0), 0, options);
    } catch (const kolo::Error& error) {
      fail(c10::str("Rank ", rank(),
                    " successfully reached monitoredBarrier, but received errors while waiting for send/recv from rank "
                    "0. Please check rank 0 logs for faulty rank. (",
                    error.what(), ")"));
    }
  }
  std::vector<kolo::Handle> come, told;
  for (int other = 1; other < size(); ++other) come.push_back(session()->recv_async(word(other), other, options));
  std::vector<int> missing;
  for (int other = 1; other < size(); ++other) {
    try {
      come[static_cast<std::size_t>(other - 1)].wait();
    } catch (const kolo::Error&) {
      missing.push_back(other);
    }
  }
  if (missing.size() == 1 || (!missing.empty() && !all_ranks))
    fail(c10::str("Rank ", missing[0], " failed to pass", after));
  if (!missing.empty()) fail(c10::str("Ranks ", c10::Join(", ", missing), " failed to pass", after));
  for (int other = 1; other < size(); ++other) told.push_back(session()->send_async(word(other), other, options));
  kolo::wait_all(told);
}

}  // namespace kolo_torch
