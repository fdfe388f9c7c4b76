#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <thread>

namespace kolo::models {

/// Errors: always a ModelError, that there is not enough memory for `what`: "the gradients (12.8 MiB)".
[[noreturn]] void refuse_memory(std::string_view what);

/// Makes sure that a library which cannot cope with a lack of memory will find a little: 16 MiB. Takes microseconds.
///
/// what  "the code of a convolution"
/// Errors: ModelError if there is less.
void check_headroom(std::string_view what);

/// A thread that runs `work`.
///
/// what  it does: "makes batches"
/// Errors: ModelError if it cannot be started.
std::jthread start_thread(std::string_view what, std::function<void()> work);

}  // namespace kolo::models
