// Compiled without fused multiply-adds, which would round differently: initial values are the same bits everywhere.
#include "models/layers/layered_model.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <string_view>

#include "models/compute/arrivals.h"
#include "models/compute/random.h"
#include "models/util/error.h"

namespace kolo::models {

/// A micro-batch.
struct LayeredModel::LayeredSlot final : Slot {
  std::unique_ptr<Kept> layers, loss;
  Arrivals arrivals;
  Buffer sum_memory, output_memory;
  std::int64_t examples = 0;
  Flow output;
  Tensor targets, sums;
  Context context_of(const Context& context, Purpose purpose) const {
    Context of = context;
    of.training = purpose == Purpose::training;
    of.input_gradient = false;
    return of;
  }

  std::size_t bytes() const {
    return layers->bytes() + loss->bytes() + arrivals.bytes() + bytes_of({&sum_memory, &output_memory});
  }
};

LayeredModel::LayeredModel(const ModelInput& input, Precision precision, Device device)
    : compute_(make_compute(device)), input_(input), items_(dtype_of(precision)) {}

LayeredModel::LayeredModel(LayeredModel&&) noexcept = default;
LayeredModel::~LayeredModel() = default;

std::vector<std::size_t> LayeredModel::backward_order() const {
  std::vector<std::size_t> order;
  loss_->backward_order(order);
  layers_.backward_order(order);
  return order;
}

void LayeredModel::bind(const Tensor& values, const Tensor& gradients) {
  bind_parameters(list_.all, compute_->device(), values, gradients);
  keep_all_ = std::make_unique<KeepAll>(list_.all, *compute_);
  store_ = keep_all_.get();
}

void LayeredModel::initialise(std::uint64_t seed) {
  for (std::size_t i = 0; i < list_.all.size(); ++i) {
    OnHost value(*compute_, list_.all[i].value);
    const std::span<float> values = value.floats();
    const auto number = static_cast<float>(list_.initial[i].number);
    Random random(seed, i);
    switch (list_.initial[i].kind) {
      case Initial::Kind::constant: std::ranges::fill(values, number); break;
      case Initial::Kind::uniform: std::ranges::generate(values, [&] { return random.symmetric(number); }); break;
      case Initial::Kind::normal: std::ranges::generate(values, [&] { return number * random.normal(); }); break;
    }
    value.put_back();
  }
}

namespace {

void check_range(std::span<const std::int32_t> numbers, std::int32_t least, std::int64_t end, std::string_view what,
                 std::string_view whose, std::string_view advice) {
  const auto wrong =
      std::ranges::find_if(numbers, [&](std::int32_t number) { return number < least || number >= end; });
  if (wrong == numbers.end()) return;
  throw ModelError(fmt::format("{} {} is out of range (the model{}); check {}", what, *wrong, whose, advice));
}

void check_images(const Batch& batch, const Shape& image) {
  if (std::ssize(batch.inputs) == batch.examples * image.elements() && std::ssize(batch.targets) == batch.examples) {
    return;
  }
  throw ModelError(fmt::format("a batch of {} examples has {} inputs and {} targets (the model takes {} inputs each)",
                               batch.examples, batch.inputs.size(), batch.targets.size(), image.elements()));
}

/// Positions of each sequence.
std::int64_t positions_of(const Batch& batch) {
  return batch.examples == 0 ? 0 : std::ssize(batch.tokens) / batch.examples;
}

void check_sequences(const Batch& batch, std::int64_t most, bool with_targets) {
  const std::int64_t tokens = std::ssize(batch.tokens), positions = positions_of(batch);
  const bool fits = positions * batch.examples == tokens && (!with_targets || std::ssize(batch.targets) == tokens);
  if (!fits || (batch.examples > 0 && tokens == 0)) {
    throw ModelError(fmt::format("a batch of {} sequences has {} tokens and {} targets (all must be of one length)",
                                 batch.examples, tokens, batch.targets.size()));
  }
  if (positions <= most) return;
  throw ModelError(
      fmt::format("a sequence of {} tokens is too long (the model has {} positions); cut it, or give the model more",
                  positions, most));
}

}  // namespace

void LayeredModel::check(const Batch& batch, bool with_targets) const {
  if (store_ == nullptr) throw ModelError("the model has no storage; call bind() before the first pass");
  const std::int64_t classes = loss_->classes();
  if (input_.positions == 0) {
    check_images(batch, input_.image);
    if (with_targets) {
      check_range(batch.targets, -1, classes, "target", fmt::format(" has {} classes", classes),
                  "the labels and the sizes");
    }
    return;
  }
  check_sequences(batch, input_.positions, with_targets);
  const std::string of_vocabulary = fmt::format("'s vocabulary has {}", classes);
  check_range(batch.tokens, 0, classes, "token", of_vocabulary, "the data and the vocabulary");
  if (with_targets) check_range(batch.targets, -1, classes, "target", of_vocabulary, "the data and the vocabulary");
}

Context LayeredModel::context() {
  return {.compute = *compute_, .store = *store_, .workspace = workspace_, .items = items_};
}

std::unique_ptr<Slot> LayeredModel::make_slot() const {
  auto slot = std::make_unique<LayeredSlot>();
  slot->layers = layers_.make_kept();
  slot->loss = loss_->make_kept();
  return slot;
}

Slot& LayeredModel::own_slot() {
  if (!slot_) slot_ = make_slot();
  return *slot_;
}

namespace {

/// Batches are only read.
template <class T>
Tensor read_only_view(std::span<const T> numbers, const Shape& shape) {
  return view(const_cast<T*>(numbers.data()), shape);
}

Shape with_examples(std::int64_t examples, const Shape& each) {
  std::vector<std::int64_t> extents{examples};
  extents.insert(extents.end(), each.extents().begin(), each.extents().end());
  return Shape(extents);
}

}  // namespace

void LayeredModel::run(const Batch& batch, LayeredSlot& slot, Purpose purpose) {
  slot.examples = batch.examples;
  slot.sums = slot.sum_memory.make(*compute_, DType::f64, {3}, "sums of losses");
  compute_->fill(slot.sums, 0);
  store_->begin_forward();
  const Context of_pass = slot.context_of(context(), purpose);
  if (batch.examples == 0) return layers_.forward_absent(*slot.layers, of_pass);
  std::array tensors{input_.positions > 0 ? read_only_view(batch.tokens, {batch.examples, positions_of(batch)})
                                          : read_only_view(batch.inputs, with_examples(batch.examples, input_.image)),
                     read_only_view(batch.targets, {std::ssize(batch.targets)})};
  if (compute_->device() != Device{}) tensors = slot.arrivals.receive(*compute_, tensors);
  slot.targets = tensors[1];
  const Flow output = layers_.forward({.x = tensors[0]}, *slot.layers, of_pass);
  slot.output = {.x = settled(output, slot.output_memory, of_pass)};
}

void LayeredModel::forward(const Batch& batch, Slot& slot, Purpose purpose) {
  auto& own = static_cast<LayeredSlot&>(slot);
  check(batch, true);
  run(batch, own, purpose);
  if (purpose == Purpose::evaluation && batch.examples > 0) {
    loss_->forward(own.output, own.targets, own.sums, *own.loss, own.context_of(context(), purpose));
  }
}

void LayeredModel::backward(Slot& slot, const GradReady& grad_ready, const Pass& pass) {
  auto& own = static_cast<LayeredSlot&>(slot);
  Context of_pass = own.context_of(context(), Purpose::training);
  of_pass.pass = pass;
  of_pass.grad_ready = &grad_ready;
  if (own.examples > 0) {
    const Flow d = loss_->backward(own.output, own.targets, own.sums, *own.loss, of_pass);
    layers_.backward(d, *own.layers, of_pass);
    return;
  }
  layers_.backward_absent(*own.layers, of_pass);
  for (const std::size_t index : backward_order()) {
    if (!pass.add) compute_->fill(store_->gradients(index, 1), 0);
    of_pass.finish(index);
  }
}

Tensor LayeredModel::sums(const Slot& slot) const {
  return static_cast<const LayeredSlot&>(slot).sums;
}

std::span<const float> LayeredModel::logits_of_rows(const Batch& batch, std::int64_t first, std::int64_t count) {
  auto& slot = static_cast<LayeredSlot&>(own_slot());
  check(batch, false);
  if (batch.examples == 0) return {};
  run(batch, slot, Purpose::evaluation);
  const Tensor logits =
      loss_->logits(slot.output, first, count, *slot.loss, slot.context_of(context(), Purpose::evaluation));
  if (logits.device.kind == DeviceKind::cpu) {
    return {static_cast<const float*>(logits.data), static_cast<std::size_t>(logits.elements())};
  }
  logits_.resize(static_cast<std::size_t>(logits.elements()));
  compute_->read(logits, logits_.data());
  return logits_;
}

std::span<const float> LayeredModel::logits(const Batch& batch) {
  return logits_of_rows(batch, 0, input_.positions > 0 ? std::ssize(batch.tokens) : batch.examples);
}

std::size_t LayeredModel::activation_bytes() const {
  return workspace_.bytes() + compute_->scratch_bytes() + (slot_ ? static_cast<const LayeredSlot&>(*slot_).bytes() : 0);
}

}  // namespace kolo::models
