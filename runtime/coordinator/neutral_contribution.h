#pragma once

#include <memory>

#include "runtime/operation/submission.h"

namespace kolo {

/// The operation that a rank which has joined runs for one its program never submitted: on scratch memory, so that it
/// takes part in moving data while its values do not count. With an objection if there is no memory.
///
/// gpu  where tensors of devices are, on this rank
SubmissionPtr neutral_contribution(const Unsubmitted& operation, const std::shared_ptr<const GroupInfo>& group,
                                   int gpu);

}  // namespace kolo
