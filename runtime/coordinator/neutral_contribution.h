#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "runtime/operation/block_sizes.h"
#include "runtime/operation/submission.h"

namespace kolo {

/// What a rank that has joined submits, so to speak, in its program's place: an operation on scratch memory that takes
/// part in moving data while its values do not count. Throws Error{backend} if there is no memory.
///
/// sizes  of what has_rows(), as agreed; else null
/// gpu   where tensors of devices are, on this rank
SubmissionPtr neutral_contribution(const std::string& name, const Signature& signature,
                                   const std::shared_ptr<const GroupInfo>& group, const AgreedSizes* sizes,
                                   int gpu = 0);

/// Why an operation cannot run although all have announced it: it needs a rank that has joined. Without the operation's
/// name. `joined` holds session ranks.
std::optional<Failure> check_joined(const Signature& signature, const GroupInfo& group, const std::vector<int>& joined);

}  // namespace kolo
