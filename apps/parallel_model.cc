#include "apps/parallel_model.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include <kolo/error.h>

#include "apps/memory.h"
#include "models/model/store.h"

namespace kolo {
namespace {

std::vector<TrainedTensor> tensors_of(const models::Model& model) {
  std::vector<TrainedTensor> tensors;
  for (const models::Parameter& parameter : model.parameters()) {
    tensors.push_back({.name = parameter.name, .value = parameter.value, .gradient = parameter.gradient});
  }
  return tensors;
}

/// On which models compute where they are on a GPU: it waits there, and the program does not.
constexpr void* default_stream = nullptr;

std::optional<DType> wire_dtype(models::Precision wire) {
  if (wire == models::Precision::f32) return std::nullopt;
  return wire == models::Precision::bf16 ? DType::bf16 : DType::f16;
}

}  // namespace

/// The model's store, where values may still be on their way.
class ParallelModel::GatheredValues final : public models::ParameterStore {
 public:
  GatheredValues(ParameterStore& store, DataParallel& parallel, bool on_gpu)
      : store_(store), parallel_(parallel), on_gpu_(on_gpu) {}

  void begin_forward() override { store_.begin_forward(); }
  Tensor acquire(std::size_t first, std::size_t count, DType dtype) override {
    for (std::size_t index = first; index < first + count; ++index) {
      on_gpu_ ? parallel_.use(index, default_stream) : parallel_.use(index);
    }
    return store_.acquire(first, count, dtype);
  }
  void release(std::size_t first, std::size_t count) override { store_.release(first, count); }
  Tensor gradients(std::size_t first, std::size_t count) override { return store_.gradients(first, count); }
  void finish(std::size_t index) override { store_.finish(index); }

 private:
  ParameterStore& store_;
  DataParallel& parallel_;
  bool on_gpu_;
};

ParallelModel::ParallelModel(Session& session, models::Model& model, const ParallelSettings& settings)
    : session_(&session),
      model_(&model),
      reduces_in_passes_(settings.reduces_in_passes),
      totals_name_(session.declare("totals")),
      sum_name_(session.declare("sum of numbers")),
      parallel_(
          session, tensors_of(model),
          {.wire = wire_dtype(settings.wire),
           .counts = true,
           .order = model.backward_order(),
           .shards_from = settings.shards_from,
           .allocate = [&session](std::size_t bytes, Device device) { return shared_memory(session, bytes, device); }}),
      store_(&model.store()),
      on_gpu_(model.compute().device().kind != DeviceKind::cpu),
      gathered_values_(std::make_unique<GatheredValues>(*store_, parallel_, on_gpu_)) {
  for (const TensorShard& shard : parallel_.shards()) {
    const bool trained = model.parameters()[shards_.size()].trained;
    shards_.push_back({shard.first, trained ? shard.count : 0, shard.split});
  }
  model.use(*gathered_values_);
}

ParallelModel::~ParallelModel() {
  model_->use(*store_);
}

void ParallelModel::begin_step(const StepWork& work, bool give_up) {
  result_ = {};
  const auto says = [](bool this_rank) { return this_rank ? 1.0 : 0.0; };
  totals_ = {0, says(give_up), says(work.stops), says(work.stores), work.written.on_disk, work.written.lost};
  targets_ = 0;
  counted_ = false;
  const Losses last_losses = std::exchange(losses_, {});
  try {
    totals_[0] = passes(work);
  } catch (const Error&) {
    throw;  // the ranks cannot talk any more
  } catch (const std::exception&) {
    if (reduces_in_passes_) throw;  // others are in the middle of one, and wait for this rank there
    fail();
    parallel_.skip_sync(false);
    if (!counted_) parallel_.count(targets_, work.targets);
    parallel_.ready_rest();
  }
  parallel_.use_all();  // also what this rank's examples, or the lack of them, had no use for
  totals_[0] += sum_of(last_losses);
  const Tensor totals = view(std::span(totals_));
  totals_handle_ = session_->all_reduce_async(totals_name_, totals, totals);
}

/// Returns the sum of the losses of this rank's targets, unless that is late.
double ParallelModel::passes(const StepWork& work) {
  double loss_sum = 0;
  for (std::int64_t micro = 0; micro < work.micro_batches; ++micro) {
    const bool last = micro + 1 == work.micro_batches;
    const models::Batch batch = next_batch(work);
    targets_ += static_cast<double>(std::ranges::count_if(batch.targets, [](auto target) { return target >= 0; }));
    if (last) parallel_.count(targets_, work.targets);
    counted_ = last;
    parallel_.skip_sync(!last);
    const auto ready = [&](std::size_t index) { parallel_.ready(index); };
    models::Slot& slot = model_->own_slot();
    model_->forward(batch, slot, models::Purpose::training);
    model_->backward(slot, ready, {.add = micro > 0, .scale = work.loss_scale});
    if (on_gpu_)
      losses_.push_back(model_->compute().read_later(model_->sums(slot)));
    else
      loss_sum += model_->result(slot).loss_sum;
  }
  return loss_sum;
}

double ParallelModel::sum_of(const Losses& losses) {
  double sum = 0;
  for (const auto& reading : losses) sum += *static_cast<const double*>(reading->wait());
  return sum;
}

double ParallelModel::late_loss() {
  double sum = sum_of(std::exchange(losses_, {}));
  session_->all_reduce("late loss", view_scalar(sum));
  return sum;
}

/// A rank that failed to make its batch takes part with an empty one: others may wait for it in the middle of their
/// passes.
models::Batch ParallelModel::next_batch(const StepWork& work) {
  try {
    return work.next();
  } catch (const std::exception&) {
    fail();
    return {};
  }
}

/// This rank gives up, because of the exception that is being handled.
void ParallelModel::fail() {
  result_.problem = std::current_exception();
  totals_[1] = 1;
}

StepResult ParallelModel::finish_step(const Summed& summed) {
  for (const std::size_t index : parallel_.submitted()) {
    on_gpu_ ? parallel_.wait(index, default_stream) : parallel_.wait(index);
    summed(index);  // the gradients behind this one arrive meanwhile
  }
  on_gpu_ ? parallel_.finish(default_stream) : parallel_.finish();
  using Clock = std::chrono::steady_clock;
  const auto start = Clock::now();
  totals_handle_.wait();
  wait_seconds_ += std::chrono::duration<double>(Clock::now() - start).count();
  result_.loss_sum = totals_[0];
  result_.targets = parallel_.counted();
  result_.give_up = totals_[1] > 0;
  result_.stops = totals_[2] > 0;
  result_.stores = totals_[3] > 0;
  result_.written = {totals_[4], totals_[5]};
  result_.late = on_gpu_;
  return std::exchange(result_, {});
}

void ParallelModel::sum(const Tensor& numbers, const Tensor& sum) {
  session_->all_reduce_async(sum_name_, numbers, sum, {.ready = default_stream}).wait(default_stream);
}

}  // namespace kolo
