#include <kolo/error.h>

#include "ops/gpu/gpu.h"

namespace kolo {

bool has_cuda() {
  return false;
}

int cuda_gpus() {
  return 0;
}

Gpu& cuda_gpu(int /*index*/) {
  throw Error(ErrorCode::invalid_argument, "this build of kolo serves no GPUs; build it with KOLO_CUDA=ON");
}

}  // namespace kolo
