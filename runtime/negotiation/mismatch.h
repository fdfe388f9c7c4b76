#pragma once

#include <string_view>

#include <kolo/error.h>

#include "runtime/negotiation/messages.h"
#include "runtime/operation/arguments.h"

namespace kolo {

/// The error that every rank gets for a name that cannot run: ranks disagree, or some failed to submit it properly.
/// Requires several variants, or one with a failure. Names the tensor, the operation, the group and the ranks on each
/// side: "all_reduce 'grad' in group world: ranks submitted different shapes (ranks 0-2: f32[5,4]; rank 3: f32[4,4]);
/// …".
Failure explain_rejection(const Announcement& announcement, std::string_view group);

}  // namespace kolo
