// In place of cudnn.cc where CUDA is there without cuDNN's headers.

#include "models/compute/cuda/attentions.h"

namespace kolo::models::cuda {

bool cudnn_installed() {
  return false;
}

std::unique_ptr<AttentionLibrary> open_cudnn(void*) {
  return nullptr;
}

}  // namespace kolo::models::cuda
