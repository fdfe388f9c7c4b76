#include "apps/train/memory.h"

#include <fmt/format.h>
#include <sys/resource.h>

#include <array>
#include <new>

#include <kolo/error.h>

#include "models/error.h"

namespace kolo::train {
namespace {

[[noreturn]] void refuse_memory(const std::string& what) {
  throw models::ModelError(fmt::format(
      "there is not enough memory for {}; use a smaller model, batch or sequence, or fewer ranks on this machine",
      what));
}

}  // namespace

std::string in_words(std::size_t bytes) {
  constexpr std::array units{"bytes", "KiB", "MiB", "GiB", "TiB"};
  auto size = static_cast<double>(bytes);
  std::size_t unit = 0;
  for (; size >= 1024 && unit + 1 < units.size(); ++unit) size /= 1024;
  return fmt::format("{:.{}f} {}", size, unit > 0 && size < 100 ? 1 : 0, units[unit]);
}

void allocating(const std::string& what, const std::function<void()>& work) {
  try {
    work();
  } catch (const std::bad_alloc&) {
    refuse_memory(what);
  }
}

SharedFloats::SharedFloats(Session& session, std::size_t count, const std::string& what) {
  const std::string wanted = fmt::format("{} ({})", what, in_words(count * sizeof(float)));
  if (session.size() == 1) {
    allocating(wanted, [&] { own_.resize(count); });
    all_ = own_;
    return;
  }
  try {
    memory_ = session.allocate(count * sizeof(float));
  } catch (const Error&) {
    refuse_memory(wanted);
  }
  all_ = {reinterpret_cast<float*>(memory_.data()), count};
}

std::size_t peak_memory() {
  rusage usage{};
  (void)::getrusage(RUSAGE_SELF, &usage);
  return static_cast<std::size_t>(usage.ru_maxrss) * 1024;
}

}  // namespace kolo::train
