#include "apps/data_parallel.h"

#include <chrono>

namespace kolo {
namespace {

Tensor value_of(const models::Parameter& parameter) {
  return view(parameter.value.data(), parameter.shape);
}
Tensor gradient_of(const models::Parameter& parameter) {
  return view(parameter.gradient.data(), parameter.shape);
}

}  // namespace

DataParallel::DataParallel(Session& session, models::Model& model)
    : session_(&session), model_(&model), totals_name_(session.declare("totals")) {
  for (const models::Parameter& parameter : model.parameters()) {
    names_.push_back({session.declare("value/" + parameter.name), session.declare("gradient/" + parameter.name)});
  }
}

void DataParallel::broadcast_parameters() {
  handles_.clear();
  for (std::size_t i = 0; i < names_.size(); ++i) {
    handles_.push_back(session_->broadcast_async(names_[i].value, value_of(model_->parameters()[i])));
  }
  for (Handle& handle : handles_) handle.wait();
}

StepResult DataParallel::step(const models::Batch& batch, bool give_up, const Summed& summed) {
  order_.clear();
  handles_.clear();
  const models::BatchResult mine = model_->forward_backward(batch, [this](std::size_t index) { submit(index); });
  totals_ = {mine.loss_sum, give_up ? 1.0 : 0.0};
  const Tensor totals = view(std::span(totals_));
  Handle totals_handle = session_->all_reduce_async(totals_name_, totals, totals);

  StepResult result;
  for (std::size_t i = 0; i < order_.size(); ++i) {
    result.wait_seconds += wait(handles_[i]);
    summed(order_[i]);  // the gradients behind this one arrive meanwhile
  }
  result.wait_seconds += wait(totals_handle);
  result.loss_sum = totals_[0];
  result.give_up = totals_[1] > 0;
  return result;
}

void DataParallel::submit(std::size_t index) {
  const Tensor gradient = gradient_of(model_->parameters()[index]);
  handles_.push_back(session_->all_reduce_async(names_[index].gradient, gradient, gradient));
  order_.push_back(index);
}

double DataParallel::wait(Handle& handle) {
  using Clock = std::chrono::steady_clock;
  const auto start = Clock::now();
  handle.wait();
  return std::chrono::duration<double>(Clock::now() - start).count();
}

}  // namespace kolo
