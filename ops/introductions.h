#pragma once

#include <span>

#include <kolo/backend.h>

namespace kolo {

/// What the backends of a group say together: each one's introduction behind its length.
Introduction introduction_of(const BackendList& backends);

/// Hands each backend what the members' introduction_of() have for it, by rank of the group; a backend that does not
/// serve the group is removed, on every member. Throws Error{backend} if this rank cannot take part, or on numbers that
/// no introduction_of() gave.
void introduce(BackendList& backends, std::span<const Introduction> members);

}  // namespace kolo
