#include "models/util/headroom.h"

#include <fmt/format.h>
#include <sys/mman.h>

#include <cstddef>
#include <system_error>
#include <utility>

#include "models/util/error.h"

namespace kolo::models {

void refuse_memory(std::string_view what) {
  throw ModelError(fmt::format(
      "there is not enough memory for {}; use a smaller model, batch or sequence, or fewer ranks on this machine",
      what));
}

void check_headroom(std::string_view what) {
  constexpr std::size_t bytes = std::size_t{16} << 20;
  void* const probe = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (probe != MAP_FAILED) {
    ::munmap(probe, bytes);
    return;
  }
  refuse_memory(what);
}

std::jthread start_thread(std::string_view what, std::function<void()> work) {
  try {
    return std::jthread(std::move(work));
  } catch (const std::system_error& error) {
    throw ModelError(
        fmt::format("cannot start the thread that {} ({}: there is no memory for its stack, or no more threads are "
                    "allowed); use less memory or fewer ranks on this machine, or raise ulimit -v and -u",
                    what, error.code().message()));
  }
}

}  // namespace kolo::models
