#include "models/model.h"

namespace kolo::models {

std::size_t parameter_elements(const Model& model) {
  std::size_t elements = 0;
  for (const Parameter& parameter : model.parameters())
    elements += static_cast<std::size_t>(parameter.shape.elements());
  return elements;
}

}  // namespace kolo::models
