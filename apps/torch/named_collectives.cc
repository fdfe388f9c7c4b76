#include "apps/torch/named_collectives.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <limits>
#include <numeric>
#include <stdexcept>
#include <utility>

#include <kolo/error.h>

#include "apps/torch/elements.h"

namespace kolo_torch {
namespace {

using Results = NamedOperation::Results;

/// The tensor as kolo moves it. What has several of kolo's elements in one has them in a last dimension.
kolo::Tensor rows_of(const at::Tensor& tensor) {
  kolo::Tensor view = elements(tensor);
  std::vector<std::int64_t> extents(tensor.sizes().begin(), tensor.sizes().end());
  if (const std::int64_t each = elements_each(tensor.scalar_type()); each != 1) extents.push_back(each);
  view.shape = kolo::Shape(extents);
  return view;
}

std::vector<kolo::NamedTensor> named(const std::vector<std::string>& names, const Tensors& inputs,
                                     const Tensors& outputs) {
  std::vector<kolo::NamedTensor> all;
  for (std::size_t i = 0; i < inputs.size(); ++i) all.push_back({names.at(i), rows_of(inputs[i]), rows_of(outputs[i])});
  return all;
}

Tensors contiguous(const Tensors& tensors) {
  Tensors all;
  for (const at::Tensor& tensor : tensors) all.push_back(kolo_torch::contiguous(tensor));
  return all;
}

/// Of the reduction that counts who takes part.
std::string count_name(const std::string& name) {
  return "ranks at " + name;
}

at::Tensor with_rows(const at::Tensor& like, std::int64_t rows) {
  std::vector<std::int64_t> sizes(like.sizes().begin(), like.sizes().end());
  if (!sizes.empty()) sizes[0] = rows;
  return at::empty(sizes, like.options());
}

std::vector<kolo::Handle> one(kolo::Handle handle) {
  std::vector<kolo::Handle> handles;
  handles.push_back(std::move(handle));
  return handles;
}

/// Makes the output of an operation whose rows are agreed on.
kolo::Allocate allocate_for(const std::shared_ptr<Results>& results, const at::Tensor& like) {
  return [results, like](const kolo::Shape& shape) {
    const at::Tensor output = with_rows(like, shape[0]);
    results->outputs = {output};
    return rows_of(output);
  };
}

}  // namespace

NamedOperation::NamedOperation(OperationPtr operation, std::shared_ptr<Results> results,
                               std::shared_future<OperationPtr> follower)
    : operation_(std::move(operation)), results_(std::move(results)), follower_(std::move(follower)) {}

bool NamedOperation::done() {
  if (!operation_->done()) return false;
  if (!follower_.valid() || operation_->failure()) return true;
  if (follower_.wait_for(std::chrono::seconds(0)) != std::future_status::ready) return false;
  try {
    const OperationPtr second = follower_.get();
    return !second || second->done();
  } catch (const std::exception&) {  // wait() throws it
    return true;
  }
}

void NamedOperation::wait() {
  operation_->wait();
  if (const kolo::Failure* const failure = operation_->failure()) throw kolo::Error(*failure);
  if (!follower_.valid()) return;
  const OperationPtr second = follower_.get();
  second->wait();
  if (const kolo::Failure* const failure = second->failure()) throw kolo::Error(*failure);
}

/// Counts the ranks that have submitted an operation that needs all: who has joined submits none. Returns the check of
/// the count, for when the handle that is added is done.
std::function<void()> NamedCollectives::all_attend(const kolo::Group& group, const std::string& operation,
                                                   std::vector<kolo::Handle>& handles) {
  const int expected = size(group);
  if (expected == 1) return {};
  const at::Tensor count = at::ones({1}, at::kInt);
  handles.push_back(session()->all_reduce_async(count_name(operation), rows_of(count), {.group = group}));
  return [count, expected, operation] {
    const int present = *count.const_data_ptr<int>();
    if (present == expected) return;
    throw std::runtime_error(c10::str(operation, ": ", expected - present, " of ", expected,
                                      " ranks have joined, and only allreduce and barrier work without them; call "
                                      "join() after it (DistributedOptimizer: pass sparse_as_dense=True)"));
  };
}

int NamedCollectives::size(const kolo::Group& group) const {
  return group.info() ? group.info()->size() : job_->session()->size();
}

int NamedCollectives::rank(const kolo::Group& group) const {
  return group.info() ? group.info()->rank : job_->session()->rank();
}

NamedOperationPtr NamedCollectives::start(std::vector<kolo::Handle> handles, Tensors used,
                                          std::shared_ptr<Results> results, std::function<void()> finish) {
  Operation::Parts parts{
      .job = job_, .tensors = std::move(used), .finish = std::move(finish), .handles = std::move(handles)};
  return std::make_shared<NamedOperation>(std::make_shared<Operation>(std::move(parts)), std::move(results));
}

NamedOperationPtr NamedCollectives::all_reduce(const kolo::Group& group, const std::string& name,
                                               const std::vector<std::string>& names, const Tensors& inputs,
                                               const Tensors& outputs, kolo::ReduceOp op, Scales scales) {
  const Tensors from = contiguous(inputs);
  const Tensors to = contiguous(outputs);
  const kolo::AllReduceOptions options{
      .op = op, .group = group, .prescale = scales.before, .postscale = scales.after, .divide_by_group = true};
  kolo::Handle handle = names.empty() ? session()->all_reduce_async(session()->declare(name), rows_of(from.at(0)),
                                                                    rows_of(to.at(0)), options)
                                      : session()->grouped_all_reduce_async(name, named(names, from, to), options);
  Tensors used = from;
  used.insert(used.end(), to.begin(), to.end());
  return start(one(std::move(handle)), std::move(used), std::make_shared<Results>(Results{outputs, {}}),
               copy_back(outputs, to));
}

NamedOperationPtr NamedCollectives::all_gather(const kolo::Group& group, const std::string& name,
                                               const at::Tensor& input) {
  const auto results = std::make_shared<Results>();
  const at::Tensor used = kolo_torch::contiguous(input);
  auto handles = one(
      session()->all_gather_async(name, rows_of(used), {}, {.group = group, .allocate = allocate_for(results, used)}));
  auto check = all_attend(group, name, handles);
  return start(std::move(handles), {used}, results, std::move(check));
}

/// First the numbers of rows are gathered, which also shows whether the ranks mean the same group; then the rows.
NamedOperationPtr NamedCollectives::grouped_all_gather(const kolo::Group& group, const std::string& name,
                                                       const std::vector<std::string>& names, const Tensors& inputs) {
  const auto results = std::make_shared<Results>();
  const Tensors used = contiguous(inputs);
  const int ranks = size(group);
  Tensors own, all;
  std::vector<kolo::NamedTensor> counts;
  for (std::size_t i = 0; i < used.size(); ++i) {
    const bool has_rows = used[i].dim() > 0;  // a scalar is refused on every rank
    own.push_back(at::full({1}, has_rows ? used[i].size(0) : 0, at::kLong));
    all.push_back(at::empty({ranks}, at::kLong));
    counts.push_back({names.at(i), has_rows ? rows_of(own[i]) : rows_of(used[i]), rows_of(all[i])});
  }
  Tensors kept = own;
  kept.insert(kept.end(), all.begin(), all.end());
  const auto first = std::make_shared<Operation>(Operation::Parts{
      .job = job_,
      .tensors = std::move(kept),
      .handles = one(session()->grouped_all_gather_async("rows of " + name, counts, {.group = group}))});
  const auto promise = std::make_shared<std::promise<OperationPtr>>();
  const auto gather = [job = job_, group, name, names, used, all, results] {
    for (std::size_t i = 0; i < used.size(); ++i)
      results->outputs.push_back(with_rows(used[i], all[i].sum().item<std::int64_t>()));
    Operation::Parts rest{.job = job, .tensors = used};
    rest.handles =
        one(job->session()->grouped_all_gather_async(name, named(names, used, results->outputs), {.group = group}));
    rest.finish = NamedCollectives(job).all_attend(group, name, rest.handles);
    return std::make_shared<Operation>(std::move(rest));
  };
  const auto refuse_rest = [job = job_, group, name](const std::exception& error) {
    return NamedCollectives(job).refused(group, kolo::OpKind::all_gather, {name, count_name(name)},
                                         {kolo::ErrorCode::backend, error.what()});
  };
  Operation* const watched = first.get();  // alive while its task runs
  first->then([promise, gather, refuse_rest, watched] {
    try {
      try {
        promise->set_value(watched->failure() ? nullptr : gather());
      } catch (const std::exception& error) {  // memory is short: the others wait for this rank
        promise->set_value(refuse_rest(error));
      }
    } catch (...) {
      promise->set_exception(std::current_exception());
    }
  });
  return std::make_shared<NamedOperation>(first, results, promise->get_future().share());
}

NamedOperationPtr NamedCollectives::broadcast(const kolo::Group& group, const std::string& name,
                                              const at::Tensor& tensor, int root) {
  const at::Tensor used = kolo_torch::contiguous(tensor);
  auto handles = one(session()->broadcast_async(name, rows_of(used), {.root = root, .group = group}));
  const auto check = all_attend(group, name, handles);
  return start(std::move(handles), {used}, std::make_shared<Results>(Results{{tensor}, {}}),
               [check, back = copy_back({tensor}, {used})] {
                 if (check) check();
                 if (back) back();
               });
}

NamedOperationPtr NamedCollectives::reduce_scatter(const kolo::Group& group, const std::string& name,
                                                   const std::vector<std::string>& names, const Tensors& inputs,
                                                   kolo::ReduceOp op, Scales scales) {
  const Tensors from = contiguous(inputs);
  const auto results = std::make_shared<Results>();
  for (const at::Tensor& tensor : from) {
    const std::int64_t rows = tensor.dim() > 0 ? tensor.size(0) : 0;
    results->outputs.push_back(with_rows(tensor, rows / size(group) + (rank(group) < rows % size(group) ? 1 : 0)));
  }
  const kolo::ReduceScatterOptions options{
      .op = op, .group = group, .prescale = scales.before, .postscale = scales.after, .divide_by_group = true};
  auto handles = one(
      names.empty() ? session()->reduce_scatter_async(name, rows_of(from.at(0)), rows_of(results->outputs[0]), options)
                    : session()->grouped_reduce_scatter_async(name, named(names, from, results->outputs), options));
  auto check = all_attend(group, name, handles);
  return start(std::move(handles), from, results, std::move(check));
}

NamedOperationPtr NamedCollectives::all_to_all(const kolo::Group& group, const std::string& name,
                                               const at::Tensor& input, const std::vector<std::int64_t>& splits) {
  const auto results = std::make_shared<Results>();
  const at::Tensor used = kolo_torch::contiguous(input);
  auto handles = one(session()->all_to_all_async(
      name, rows_of(used), {},
      {.group = group, .splits = splits, .allocate = allocate_for(results, used), .rows = &results->rows}));
  auto check = all_attend(group, name, handles);
  return start(std::move(handles), {used}, results, std::move(check));
}

OperationPtr NamedCollectives::refused(const kolo::Group& group, kolo::OpKind kind,
                                       const std::vector<std::string>& names, const kolo::Failure& why) {
  Operation::Parts parts{.job = job_};
  for (const std::string& name : names) parts.handles.push_back(session()->refuse_async(kind, name, why, group));
  return std::make_shared<Operation>(std::move(parts));
}

NamedOperationPtr NamedCollectives::refuse(const kolo::Group& group, kolo::OpKind kind, bool grouped,
                                           const std::string& name, const kolo::Failure& why) {
  std::vector<std::string> names{name};
  if (kind == kolo::OpKind::all_gather && grouped) {
    names = {"rows of " + name};  // which is the first step
  } else if (kind != kolo::OpKind::all_reduce) {
    names.push_back(count_name(name));
  }
  return std::make_shared<NamedOperation>(refused(group, kind, names, why), std::make_shared<Results>());
}

NamedOperationPtr NamedCollectives::barrier(const kolo::Group& group) {
  return start(one(session()->barrier_async(group)), {}, std::make_shared<Results>());
}

}  // namespace kolo_torch
