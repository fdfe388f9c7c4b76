#pragma once

#include <optional>
#include <span>

#include <kolo/error.h>
#include <kolo/group.h>
#include <kolo/op.h>
#include <kolo/tensor.h>

namespace kolo {

/// What is wrong with the arguments of one rank's call, if anything: announced as that name's failure, so that every rank gets
/// the same error and nobody waits. Pure.
std::optional<Failure> check_arguments(const Signature& signature, const Tensor& in, const Tensor& out, const GroupInfo& group);

/// What is wrong with the members of a new group (ascending) in a session of `size` ranks, if anything. Pure.
std::optional<Failure> check_members(std::span<const int> ranks, int size);

}  // namespace kolo
