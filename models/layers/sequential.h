#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "models/layers/layer.h"

namespace kolo::models {

/// Layers one after the other. A residual stream is added up where the next does not do that itself.
class Sequential final : public Layer {
 public:
  void add(std::unique_ptr<Layer> layer) { layers_.push_back(std::move(layer)); }

  std::unique_ptr<Kept> make_kept() const override;
  Flow forward(const Flow& in, Kept& kept, const Context& context) override;
  Flow backward(const Flow& d, Kept& kept, const Context& context) override;
  void backward_order(std::vector<std::size_t>& order) const override;
  void forward_absent(Kept& kept, const Context& context) override;
  void backward_absent(Kept& kept, const Context& context) override;
  bool takes_more() const override { return true; }
  bool takes_kept() const override {
    return !layers_.empty() && layers_.front()->takes_kept() && layers_.back()->takes_kept();
  }
  bool keeps_gradient() const override { return !layers_.empty() && layers_.back()->keeps_gradient(); }

 private:
  std::vector<std::unique_ptr<Layer>> layers_;
};

/// Activation checkpointing (Chen et al. 2016, arXiv:1604.06174): keeps only the input of a layer, and repeats its pass
/// forward before the pass back. The same bits, in less memory.
class Recompute final : public Layer {
 public:
  /// What a layer keeps, shared by all that are of its kind.
  class Shared {
   public:
    explicit Shared(std::unique_ptr<Kept> kept) : kept_(std::move(kept)) {}

   private:
    friend class Recompute;
    std::unique_ptr<Kept> kept_;
    const Kept* of_ = nullptr;  // whose pass forward filled it
  };

  Recompute(std::unique_ptr<Layer> layer, std::shared_ptr<Shared> shared)
      : layer_(std::move(layer)), shared_(std::move(shared)) {}

  std::unique_ptr<Kept> make_kept() const override;
  Flow forward(const Flow& in, Kept& kept, const Context& context) override;
  Flow backward(const Flow& d, Kept& kept, const Context& context) override;
  void backward_order(std::vector<std::size_t>& order) const override { layer_->backward_order(order); }
  bool takes_more() const override { return true; }

 private:
  std::unique_ptr<Layer> layer_;
  std::shared_ptr<Shared> shared_;
};

/// x + more in memory of its own: what may leave a stage.
Tensor settled(const Flow& flow, Buffer& memory, const Context& context);

}  // namespace kolo::models
