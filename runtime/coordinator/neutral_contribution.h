#pragma once

#include <memory>
#include <vector>

#include "runtime/operation/submission.h"

namespace kolo {

/// The operation that a rank which has joined runs for one its program never submitted: on scratch memory, so that it
/// takes part in moving data while its values do not count. Throws Error{backend} if there is no memory.
///
/// absent  the ranks of the group that have joined
/// gpu     where tensors of devices are, on this rank
SubmissionPtr neutral_contribution(const Unsubmitted& operation, const std::shared_ptr<const GroupInfo>& group,
                                   const std::vector<int>& absent, int gpu);

}  // namespace kolo
