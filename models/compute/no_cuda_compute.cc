// Linked where models compute on the host only.

#include "models/compute/compute.h"
#include "models/util/error.h"

namespace kolo::models {

std::unique_ptr<Compute> make_cuda_compute(Device) {
  throw ModelError("models cannot run on a GPU (this build computes on the host only); leave the device out");
}

}  // namespace kolo::models
