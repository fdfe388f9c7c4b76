#pragma once

#include <functional>
#include <memory>
#include <span>
#include <string_view>

#include <kolo/backend.h>

namespace kolo {

/// A backend that a world can have, and how to make it.
struct BackendOffer {
  std::string_view name;                           ///< as its Backend::name() says
  std::function<std::unique_ptr<Backend>()> make;  ///< null, on all ranks, if it turns out that it cannot be had
  bool only_by_name = false;                       ///< "auto" does without it
};

/// Makes the backends that a setting asks for: all offers, in the order given, for "auto"; else the one of that name.
///
/// Throws Error{invalid_argument} if `setting` is no known name, or if the name is known but not on offer: a world of
/// processes has no "local", a world of threads no "mpi", a world on several nodes no "shm".
BackendList make_backends(std::string_view setting, std::span<const BackendOffer> offers);

}  // namespace kolo
