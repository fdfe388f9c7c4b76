#pragma once

#include <kolo/op.h>

#include "ops/shm/choice.h"

namespace kolo {

struct ShmMethod;

/// The method for a kind of operation of ranks that reach each other's tensors; null if there is none.
///
/// way  read; or mapped: then peers have mapped the inputs that they read and the outputs that they write
const ShmMethod* shm_direct_method(OpKind kind, ShmWay way);

/// Whether what is only copied is, where tensors are mapped, written by the rank that has it. Else it is fetched by the
/// one that wants it: so no rank has all the work.
constexpr bool shm_pushes(OpKind kind) {
  return kind == OpKind::all_gather || kind == OpKind::all_to_all || kind == OpKind::gather;
}

}  // namespace kolo
