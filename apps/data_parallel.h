#pragma once

#include <array>
#include <cstddef>
#include <functional>
#include <vector>

#include <kolo/session.h>

#include "models/model.h"

namespace kolo {

/// What one training step came to.
struct StepResult {
  double loss_sum = 0;      ///< over all examples of all ranks
  bool give_up = false;     ///< whether any rank asked to end the training
  double wait_seconds = 0;  ///< how long this rank sat in wait(): communication that no computation hid
};

/// Trains one model on all ranks of a session: every rank holds all parameters and a share of each step's examples, and
/// gradients are summed over the ranks while backprop is still producing others.
///
/// All member functions but the constructor are collective. One thread at a time.
class DataParallel {
 public:
  /// Called with a parameter's index once its gradient is the sum over all ranks.
  using Summed = std::function<void(std::size_t index)>;

  /// model  bound to its storage; it and the session must outlive this
  DataParallel(Session& session, models::Model& model);

  /// Gives every rank the parameters' values of rank 0. Errors: Error.
  void broadcast_parameters();

  /// Passes forward and back over this rank's share of a step (which may be empty), sums the gradients over the ranks
  /// and announces each through `summed`. They are sums over examples: divide by the step's examples of all ranks.
  ///
  /// give_up  asks every rank to end the training after this step
  /// Errors: Error if the sums cannot be had, what the model throws, and what `summed` throws.
  StepResult step(const models::Batch& batch, bool give_up, const Summed& summed);

 private:
  void submit(std::size_t index);
  double wait(Handle& handle);

  struct Names {
    TensorId value;
    TensorId gradient;
  };

  Session* session_;
  models::Model* model_;
  std::vector<Names> names_;  // as the parameters
  TensorId totals_name_;
  std::array<double, 2> totals_{};  // loss_sum and give_up, on their way with the gradients
  std::vector<std::size_t> order_;  // in which this step's gradients were submitted
  std::vector<Handle> handles_;     // as order_; the last member, so that operations end before their memory does
};

}  // namespace kolo
