#include "apps/data_parallel.h"

#include <algorithm>
#include <chrono>

#include <kolo/error.h>
#include <kolo/op.h>

#include "apps/memory.h"
#include "models/compute/precision.h"

namespace kolo {
namespace {

Tensor value_of(const models::Parameter& parameter) {
  return view(parameter.value.data(), parameter.shape);
}
Tensor gradient_of(const models::Parameter& parameter) {
  return view(parameter.gradient.data(), parameter.shape);
}

/// This rank's elements of a tensor of one dimension.
Tensor part_of(Tensor flat, const models::Shard& shard) {
  const auto count = static_cast<std::int64_t>(shard.count);
  return {.data = static_cast<std::byte*>(flat.data) + shard.first * size_of(flat.dtype),
          .shape = Shape{count},
          .dtype = flat.dtype,
          .device = flat.device};
}

Tensor flat(Tensor tensor) {
  tensor.shape = Shape{tensor.shape.elements()};
  return tensor;
}

constexpr std::size_t wire_alignment = 32;  // elements, 64 bytes

std::size_t padded(std::size_t elements) {
  return (elements + wire_alignment - 1) / wire_alignment * wire_alignment;
}

}  // namespace

/// Gradients that are split, and those that are not, each in the order of their submission: a bucket is full as soon as
/// it holds `fusion_bytes`.
std::vector<int> gradient_priorities(std::span<const std::size_t> order, std::span<const GradientSize> gradients,
                                     std::int64_t fusion_bytes) {
  std::vector<int> priorities(gradients.size());
  for (const bool split : {false, true}) {
    std::vector<std::size_t> bucket;
    std::int64_t bytes = 0;
    for (std::size_t place = 0; place < order.size(); ++place) {
      if (gradients[order[place]].split != split) continue;
      if (bytes >= fusion_bytes) {
        bucket.clear();
        bytes = 0;
      }
      bucket.push_back(order[place]);
      bytes += gradients[order[place]].bytes;
      for (const std::size_t index : bucket)
        priorities[index] = static_cast<int>(place + 1) - static_cast<int>(order.size());
    }
  }
  return priorities;
}

DataParallel::DataParallel(Session& session, models::Model& model, const DataParallelSettings& settings)
    : session_(&session),
      model_(&model),
      settings_(settings),
      totals_name_(session.declare("totals")),
      sum_name_(session.declare("sum")) {
  std::size_t elements = 0;
  for (const models::Parameter& parameter : model.parameters()) {
    names_.push_back({session.declare("value/" + parameter.name), session.declare("gradient/" + parameter.name),
                      session.declare("shard/" + parameter.name)});
    share_out(parameter.value.size());
    elements += padded(parameter.value.size());
  }
  priorities_ = priorities();
  if (!wire()) return;
  wire_memory_ = shared_memory(session, elements * sizeof(std::uint16_t));
  auto* from = reinterpret_cast<std::uint16_t*>(wire_memory_.data());
  for (const models::Parameter& parameter : model.parameters()) {
    wires_.emplace_back(from, parameter.value.size());
    from += padded(parameter.value.size());
  }
}

/// The next parameter's shard.
void DataParallel::share_out(std::size_t elements) {
  const bool split = session_->size() > 1 && elements >= settings_.shards_from;
  const RowRange mine = rows_of_rank(static_cast<std::int64_t>(elements), session_->size(), session_->rank());
  shards_.push_back(
      split ? models::Shard{static_cast<std::size_t>(mine.begin), static_cast<std::size_t>(mine.count()), true}
            : models::Shard{.count = elements});
}

std::vector<int> DataParallel::priorities() const {
  std::vector<GradientSize> gradients;
  for (std::size_t i = 0; i < shards_.size(); ++i) {
    const std::size_t bytes =
        model_->parameters()[i].gradient.size() * (wire() ? sizeof(std::uint16_t) : sizeof(float));
    gradients.push_back({static_cast<std::int64_t>(bytes), shards_[i].split});
  }
  return gradient_priorities(model_->backward_order(), gradients, session_->config().fusion_bytes);
}

void DataParallel::broadcast_parameters() {
  handles_.clear();
  for (std::size_t i = 0; i < names_.size(); ++i) {
    handles_.push_back(session_->broadcast_async(names_[i].value, value_of(model_->parameters()[i])));
  }
  wait_for_all();
}

StepResult DataParallel::step(const models::Batch& batch, bool give_up, const Summed& summed) {
  return step({.next = [&] { return batch; }}, give_up, summed);
}

StepResult DataParallel::step(const StepWork& work, bool give_up, const Summed& summed) {
  order_.clear();
  handles_.clear();
  wait_seconds_ = 0;
  StepResult result;
  totals_ = {0, give_up ? 1.0 : 0.0};
  try {
    totals_[0] = passes(work, result);
  } catch (const Error&) {
    throw;  // the ranks cannot talk any more
  } catch (const std::exception&) {
    if (settings_.reduces_in_passes) throw;  // others are in the middle of one, and wait for this rank there
    result.problem = std::current_exception();
    totals_[1] = 1;
    submit_what_is_missing(work);
  }
  const Tensor totals = view(std::span(totals_));
  Handle totals_handle = session_->all_reduce_async(totals_name_, totals, totals);
  for (std::size_t i = 0; i < order_.size(); ++i) {
    wait(handles_[i]);
    unpack(order_[i]);
    summed(order_[i]);  // the gradients behind this one arrive meanwhile
  }
  wait(totals_handle);
  result.loss_sum = totals_[0];
  result.give_up = totals_[1] > 0;
  return result;
}

/// Returns the sum of the losses of this rank's targets.
double DataParallel::passes(const StepWork& work, StepResult& result) {
  double loss_sum = 0;
  for (std::int64_t micro = 0; micro < work.micro_batches; ++micro) {
    const bool last = micro + 1 == work.micro_batches;
    const models::Batch batch = next_batch(work, result);
    const auto ready = [&](std::size_t index) {
      if (last) submit(index, work);
    };
    loss_sum += model_->forward_backward(batch, ready, {.add = micro > 0, .scale = work.loss_scale}).loss_sum;
  }
  return loss_sum;
}

/// A rank that failed to make its batch takes part with an empty one: others may wait for it in the middle of their
/// passes.
models::Batch DataParallel::next_batch(const StepWork& work, StepResult& result) {
  try {
    return work.next();
  } catch (const std::exception&) {
    result.problem = std::current_exception();
    totals_[1] = 1;
    return {};
  }
}

void DataParallel::submit(std::size_t index, const StepWork& work) {
  const models::Parameter& parameter = model_->parameters()[index];
  Tensor tensor = gradient_of(parameter);
  if (wire()) {
    models::to_half(settings_.wire, parameter.gradient, static_cast<float>(1 / work.targets), wires_[index]);
    tensor.data = wires_[index].data();
    tensor.dtype = settings_.wire == models::Precision::bf16 ? DType::bf16 : DType::f16;
  }
  const models::Shard& shard = shards_[index];
  const TensorId name = names_[index].gradient;
  const int priority = priorities_[index];
  handles_.push_back(
      shard.split ? session_->reduce_scatter_async(name, flat(tensor), part_of(tensor, shard), {.priority = priority})
                  : session_->all_reduce_async(name, tensor, tensor, {.priority = priority}));
  order_.push_back(index);
}

void DataParallel::submit_what_is_missing(const StepWork& work) {
  for (std::size_t i = 0; i < names_.size(); ++i) {
    if (std::ranges::find(order_, i) == order_.end()) submit(i, work);
  }
}

void DataParallel::unpack(std::size_t index) {
  const models::Shard& shard = shards_[index];
  if (wire()) {
    models::from_half(settings_.wire, wires_[index].subspan(shard.first, shard.count),
                      model_->parameters()[index].gradient.subspan(shard.first, shard.count));
  }
}

double DataParallel::sum(double value) {
  Handle handle = session_->all_reduce_async(sum_name_, view_scalar(value), view_scalar(value));
  wait(handle);
  return value;
}

void DataParallel::share_values() {
  handles_.clear();
  for (std::size_t i = 0; i < shards_.size(); ++i) {
    if (!shards_[i].split) continue;
    const Tensor value = flat(value_of(model_->parameters()[i]));
    handles_.push_back(session_->all_gather_async(names_[i].shard, part_of(value, shards_[i]), value));
  }
  wait_for_all();
}

void DataParallel::collect_state(models::Optimizer& optimizer) {
  handles_.clear();
  const auto state = optimizer.state();  // of each kind a tensor for every parameter
  for (std::size_t i = 0; i < state.size(); ++i) {
    const models::Shard& shard = shards_[i % shards_.size()];
    if (!shard.split) continue;
    const Tensor all = flat(view(state[i].values.data(), state[i].shape));
    handles_.push_back(
        session_->gather_async("state/" + state[i].name, part_of(all, shard), session_->rank() == 0 ? all : Tensor{}));
  }
  wait_for_all();
}

void DataParallel::wait_for_all() {
  for (Handle& handle : handles_) wait(handle);
}

void DataParallel::wait(Handle& handle) {
  using Clock = std::chrono::steady_clock;
  const auto start = Clock::now();
  handle.wait();
  wait_seconds_ += std::chrono::duration<double>(Clock::now() - start).count();
}

}  // namespace kolo
