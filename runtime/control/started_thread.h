#pragma once

#include <fmt/format.h>

#include <string_view>
#include <system_error>
#include <thread>
#include <utility>

#include <kolo/error.h>

namespace kolo {

/// A thread that runs `work`. Errors: Error{backend} if it cannot be started; `what` says there what it does.
template <class Work>
std::jthread started_thread(std::string_view what, Work work) {
  try {
    return std::jthread(std::move(work));
  } catch (const std::system_error& error) {
    throw Error(ErrorCode::backend, fmt::format("cannot start the thread that {} ({}: there is no memory for its "
                                                "stack, or no more threads are allowed); use less "
                                                "memory or fewer ranks on this machine, or raise ulimit -v and -u",
                                                what, error.code().message()));
  }
}

}  // namespace kolo
