#pragma once

#include <stdexcept>

namespace kolo::models {

/// A file, data set or setting that cannot be used. `what()` is one line: *problem (why); what to try*.
class ModelError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

}  // namespace kolo::models
