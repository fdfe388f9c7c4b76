#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <thread>

namespace kolo::models {

/// Throws ModelError: there is not enough memory for `what`, such as "the gradients (12.8 MiB)".
[[noreturn]] void refuse_memory(std::string_view what);

/// Checks that 16 MiB of memory are left, for libraries that crash without. Takes microseconds.
///
/// what  for the error: "the code of a matrix product"
/// Errors: ModelError if there is less.
void check_headroom(std::string_view what);

/// Starts a thread that runs `work`.
///
/// what  for the error: "makes batches"
/// Errors: ModelError if the thread cannot be started.
std::jthread start_thread(std::string_view what, std::function<void()> work);

}  // namespace kolo::models
