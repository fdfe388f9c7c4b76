#pragma once

#include <utility>

#include "models/compute/buffer.h"
#include "models/model/model.h"

namespace kolo::testing {

/// A model with storage and first weights.
template <class M>
struct Bound {
  template <class... Arguments>
  explicit Bound(Arguments&&... arguments) : model(std::forward<Arguments>(arguments)...) {
    values.resize(models::parameter_elements(model));
    gradients.resize(values.size());
    model.bind(values, gradients);
    model.initialise(1);
  }

  M model;
  models::AlignedFloats values, gradients;
};

}  // namespace kolo::testing
