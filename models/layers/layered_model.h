#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "models/compute/compute.h"
#include "models/compute/precision.h"
#include "models/layers/layer.h"
#include "models/layers/loss.h"
#include "models/layers/sequential.h"
#include "models/model/model.h"

namespace kolo::models {

/// What a model takes: images of these extents, or sequences of tokens.
struct ModelInput {
  Shape image{};               ///< [inputs], or [channels, rows, columns]
  std::int64_t positions = 0;  ///< above 0: sequences of at most this many tokens
};

/// A model made of layers and a loss. Derive from it, and add() the layers and end() in the constructor; parameters are
/// in the order in which their layers were made.
class LayeredModel : public Model {
 public:
  LayeredModel(LayeredModel&&) noexcept;
  LayeredModel& operator=(LayeredModel&&) = delete;
  ~LayeredModel() override;

  std::span<const Parameter> parameters() const override { return list_.all; }
  std::vector<std::size_t> backward_order() const override;
  Compute& compute() override { return *compute_; }
  void bind(const Tensor& values, const Tensor& gradients) override;
  ParameterStore& store() override { return *store_; }
  void use(ParameterStore& store) override { store_ = &store; }

  /// Parameter i takes its numbers, in order, from Random(seed, i).
  void initialise(std::uint64_t seed) override;

  std::unique_ptr<Slot> make_slot() const override;
  void forward(const Batch& batch, Slot& slot, Purpose purpose) override;
  void backward(Slot& slot, const GradReady& grad_ready, const Pass& pass) override;
  Tensor sums(const Slot& slot) const override;
  Slot& own_slot() override;
  std::size_t activation_bytes() const override;

  /// Runs the pass forward only, as evaluate() does, and returns [examples, classes], or [sequences, positions,
  /// classes]; valid until the next pass.
  std::span<const float> logits(const Batch& batch);

 protected:
  LayeredModel(const ModelInput& input, Precision precision, Device device = {});

  /// Makes a layer, and adds it behind the others.
  template <class L, class... Arguments>
  void add(Arguments&&... arguments) {
    add(std::make_unique<L>(list_, std::forward<Arguments>(arguments)...));
  }
  void add(std::unique_ptr<Layer> layer) { layers_.add(std::move(layer)); }
  template <class L, class... Arguments>
  void end(Arguments&&... arguments) {
    end(std::make_unique<L>(list_, std::forward<Arguments>(arguments)...));
  }
  void end(std::unique_ptr<Loss> loss) { loss_ = std::move(loss); }

  ParameterList& list() { return list_; }

  /// Logits of some rows of a batch, read back; valid until the next pass.
  std::span<const float> logits_of_rows(const Batch& batch, std::int64_t first, std::int64_t count);

 private:
  struct LayeredSlot;

  Context context();
  void check(const Batch& batch, bool with_targets) const;
  void run(const Batch& batch, LayeredSlot& slot, Purpose purpose);

  std::unique_ptr<Compute> compute_;
  ModelInput input_;
  DType items_;
  ParameterList list_;
  Sequential layers_;
  std::unique_ptr<Loss> loss_;
  std::unique_ptr<ParameterStore> keep_all_;
  ParameterStore* store_ = nullptr;
  Workspace workspace_;
  std::unique_ptr<Slot> slot_;
  std::vector<float> logits_;  // of a device
};

}  // namespace kolo::models
