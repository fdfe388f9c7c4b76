#include "models/memory_plan.h"

#include <memory>
#include <utility>

#include "models/registry.h"

namespace kolo::models {

MemoryPlan plan_memory(std::string_view model, ModelSettings settings, const OptimizerSettings& optimizer,
                       std::vector<Shard> shards, const Batch& batch) {
  settings.device.index = planned_gpu;
  settings.reduce = {};
  const std::unique_ptr<Compute> storage = make_compute(settings.device);
  Buffer values, gradients;
  const std::unique_ptr<Model> planned = make_model(model, settings);
  planned->bind(values.make(*storage, DType::f32, {value_elements(*planned)}, "values"),
                gradients.make(*storage, DType::f32, {gradient_elements(*planned)}, "gradients"));
  const std::unique_ptr<Optimizer> updates = make_optimizer(optimizer, planned->parameters(), std::move(shards));
  Slot& slot = planned->own_slot();
  planned->forward(batch, slot, Purpose::training);
  planned->backward(slot, [](std::size_t) {}, {});
  updates->step(0, 1);
  return {storage->planned_bytes(), planned->compute().planned_bytes(), updates->compute().planned_bytes()};
}

}  // namespace kolo::models
