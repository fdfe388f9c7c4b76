#pragma once

#include <memory>

#include <kolo/world.h>

#include "runtime/control/channel.h"

namespace kolo {

/// The contents of a World. Backends die before the channel: they may use its doorbells.
struct WorldParts {
  std::unique_ptr<ControlChannel> control;
  BackendList backends;  ///< for the group of all ranks
  Device device{};       ///< this rank's GPU; the host if device tensors cannot be used
};

}  // namespace kolo
