#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include <kolo/backend.h>
#include <kolo/error.h>
#include <kolo/group.h>
#include <kolo/op.h>
#include <kolo/tensor.h>

#include "runtime/operation/submission.h"

namespace kolo {

/// Arguments of what has_rows().
struct RowArguments {
  std::span<const std::int64_t> splits{};  ///< of all_to_all; empty: equal blocks
  bool allocates = false;                  ///< the output is made later
};

/// What is wrong with the arguments of one rank's call, if anything: announced as that name's failure, so that every
/// rank gets the same error and nobody waits. Pure. `signature` may have any shape.
std::optional<Failure> check_arguments(const Signature& signature, const BucketTensor& tensor, const GroupInfo& group,
                                       const RowArguments& rows = {});

/// What is wrong with a time-out, if anything.
std::optional<Failure> check_timeout(double seconds);

/// What is wrong with the members of a new group in a session of `size` ranks, if anything. Pure.
std::optional<Failure> check_members(std::span<const int> ranks, int size);

/// The first `most` bytes of what is longer, without half a character, and "...": for error texts.
std::string clipped(std::string_view text, std::size_t most = 200);

/// "all_reduce 'grad' in group world".
std::string describe(OpKind kind, std::string_view name, std::string_view group);
std::string describe(const Request& request);

}  // namespace kolo
