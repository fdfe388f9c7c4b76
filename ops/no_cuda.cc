#include <kolo/error.h>

#include "ops/card.h"
#include "ops/device.h"

namespace kolo {

const DeviceMemory* cuda_memory() { return nullptr; }

int cuda_cards() { return 0; }

Card& cuda_card(int /*index*/) {
  throw Error(ErrorCode::invalid_argument, "this build of kolo serves no GPUs; build it with KOLO_CUDA=ON");
}

}  // namespace kolo
