#include "apps/cli/memory.h"

#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/resource.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <fstream>
#include <new>
#include <optional>
#include <string_view>
#include <utility>

#include <kolo/error.h>
#include <kolo/memory.h>

#include "models/util/headroom.h"

namespace kolo::train {
namespace {

/// What operator new turns to before it gives up. Used on whichever thread that is, so it allocates nothing.
class Reserve {
 public:
  void fill() {
    data_ = ::mmap(nullptr, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (data_ != MAP_FAILED) std::set_new_handler([] { all().use(); });
  }

  /// What it was used for; nothing: it was not.
  std::optional<std::string> used_for() const {
    if (!told_) return std::nullopt;
    return std::string(what_.data());
  }

  static Reserve& all() {
    static Reserve reserve;
    return reserve;
  }

  /// What the calling thread allocates memory for at the moment.
  static std::string_view& wanted() {
    thread_local std::string_view what = "all that is running";
    return what;
  }

 private:
  static constexpr std::size_t bytes = std::size_t{16} << 20;

  void use() {
    if (used_.exchange(true)) throw std::bad_alloc();
    ::munmap(data_, bytes);
    const std::string_view what = wanted().substr(0, what_.size() - 1);
    std::copy(what.begin(), what.end(), what_.begin());
    told_ = true;
  }

  void* data_ = MAP_FAILED;
  std::atomic<bool> used_ = false, told_ = false;
  std::array<char, 200> what_{};
};

/// The memory of this process that RLIMIT_DATA counts: what it alone can write to.
std::optional<std::size_t> data_bytes() {
  std::ifstream file("/proc/self/status");
  std::string word;
  while (file >> word && word != "VmData:") {
  }
  std::size_t kilobytes = 0;
  if (!(file >> kilobytes)) return std::nullopt;
  return kilobytes * 1024;
}

/// What that may be; nothing: as much as there is.
std::optional<std::size_t> data_limit() {
  rlimit limit{};
  if (::getrlimit(RLIMIT_DATA, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return std::nullopt;
  return limit.rlim_cur;
}

void limit_data(std::size_t bytes) {
  rlimit limit{};
  if (::getrlimit(RLIMIT_DATA, &limit) != 0) return;
  limit.rlim_cur = bytes;
  (void)::setrlimit(RLIMIT_DATA, &limit);
}

std::size_t left_below_limit() {
  const auto used = data_bytes(), limit = data_limit();
  if (!used || !limit) return available_memory();
  return *limit - std::min(*limit, *used);
}

/// While it lives the calling thread allocates for `what`.
class Wanted {
 public:
  explicit Wanted(std::string_view what) : before_(std::exchange(Reserve::wanted(), what)) {}
  ~Wanted() { Reserve::wanted() = before_; }
  Wanted(const Wanted&) = delete;
  Wanted& operator=(const Wanted&) = delete;

 private:
  std::string_view before_;
};

}  // namespace

void keep_memory_in_reserve() {
  Reserve::all().fill();
}

void check_reserve() {
  if (const auto what = Reserve::all().used_for()) models::refuse_memory(*what);
}

std::string format_bytes(std::size_t bytes) {
  constexpr std::array units{"bytes", "KiB", "MiB", "GiB", "TiB"};
  auto size = static_cast<double>(bytes);
  std::size_t unit = 0;
  for (; size >= 1024 && unit + 1 < units.size(); ++unit) size /= 1024;
  return fmt::format("{:.{}f} {}", size, unit > 0 && size < 100 ? 1 : 0, units[unit]);
}

void allocating(const std::string& what, const std::function<void()>& work) {
  const Wanted wanted(what);
  try {
    work();
  } catch (const std::bad_alloc&) {
    models::refuse_memory(what);
  }
}

void limit_memory(int ranks) {
  const auto used = data_bytes();
  if (!used) return;
  const std::size_t share = available_memory() / static_cast<std::size_t>(ranks);
  const std::size_t most = *used + share - share / 16;  // the rest is for what the limit does not count
  if (most >= share && most < data_limit().value_or(RLIM_INFINITY)) limit_data(most);
}

void check_available(std::size_t bytes, const std::string& what) {
  if (const std::size_t left = left_below_limit(); bytes > left) {
    models::refuse_memory(
        fmt::format("{} ({}, and {} are left for this rank)", what, format_bytes(bytes), format_bytes(left)));
  }
}

Memory shared_memory(Session& session, std::size_t bytes, const std::string& what) {
  if (bytes > left_below_limit()) models::refuse_memory(what);
  try {
    Memory memory = session.allocate(bytes);
    const auto limit = data_limit();  // does not count what ranks share
    if (limit && session.local_size() > 1) limit_data(*limit - std::min(*limit, bytes));
    return memory;
  } catch (const Error&) {
    models::refuse_memory(what);
  }
}

SharedFloats::SharedFloats(Session& session, std::size_t count, const std::string& what) {
  const std::string wanted = fmt::format("{} ({})", what, format_bytes(count * sizeof(float)));
  if (session.size() == 1) {
    allocating(wanted, [&] { own_.resize(count); });
    all_ = own_;
    return;
  }
  memory_ = shared_memory(session, count * sizeof(float), wanted);
  all_ = {reinterpret_cast<float*>(memory_.data()), count};
}

std::size_t peak_memory() {
  rusage usage{};
  (void)::getrusage(RUSAGE_SELF, &usage);
  return static_cast<std::size_t>(usage.ru_maxrss) * 1024;
}

}  // namespace kolo::train
