#pragma once

#include <kolo/op.h>

#include "ops/shm/choice.h"

namespace kolo {

struct ShmMethod;

/// The method for a kind of operation of ranks that reach each other's tensors; null if there is none.
///
/// way  read, or mapped: then all outputs that peers write are mapped, too
const ShmMethod* shm_direct_method(OpKind kind, ShmWay way);

}  // namespace kolo
