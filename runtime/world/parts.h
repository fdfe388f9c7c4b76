#pragma once

#include <memory>
#include <string>

#include <kolo/world.h>

#include "runtime/control/channel.h"

namespace kolo {

/// The contents of a World. Backends die before the channel: they may use its doorbells.
struct WorldParts {
  std::unique_ptr<ControlChannel> control;
  BackendList backends;  ///< for the group of all ranks
  Device device{};       ///< this rank's GPU; the host if device tensors cannot be used
  /// Of a world whose backends one thread may call, but no session, which has several. Empty: it may.
  std::string why_no_session{};
};

}  // namespace kolo
