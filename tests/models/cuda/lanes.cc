#include "tests/models/cuda/lanes.h"

#include <stdexcept>
#include <utility>

namespace kolo::testing {
namespace {

constexpr std::size_t stack_bytes = std::size_t{256} << 10;
Fibers* block = nullptr;  // that runs

/// What the lanes of each warp show each other.
template <class T>
std::array<T, 32>& shown() {
  static std::array<std::array<T, 32>, 32> all;
  return all.at(static_cast<std::size_t>(Fibers::thread() / 32));
}
/// Gives use(what all lanes have shown).
template <class T, class Use>
auto shared_by_warp(const T& mine, Use use) {
  shown<T>().at(static_cast<std::size_t>(FiberLane::index())) = mine;
  Fibers::wait_for(32);
  auto result = use(shown<T>());
  Fibers::wait_for(32);
  return result;
}

float half_of(std::uint32_t both, int which) {
  return to_float(BFloat16{static_cast<std::uint16_t>(both >> (16 * which))});
}

}  // namespace

Fibers::Fibers(int threads, const std::function<void(int)>& body)
    : fibers_(static_cast<std::size_t>(threads)), body_(&body) {
  block = this;
  for (Fiber& fiber : fibers_) {
    fiber.stack = std::make_unique<char[]>(stack_bytes);
    getcontext(&fiber.context);
    fiber.context.uc_stack.ss_sp = fiber.stack.get();
    fiber.context.uc_stack.ss_size = stack_bytes;
    fiber.context.uc_link = &outside_;
    makecontext(&fiber.context, enter, 0);
  }
  for (bool any = true; any;) {
    any = false;
    for (running_ = 0; running_ < threads; ++running_) {
      Fiber& fiber = fibers_[static_cast<std::size_t>(running_)];
      if (fiber.done) continue;
      any = true;
      swapcontext(&outside_, &fiber.context);
    }
  }
  block = nullptr;
}

void Fibers::enter() {
  (*block->body_)(block->running_);
  block->fibers_[static_cast<std::size_t>(block->running_)].done = true;
}

void Fibers::yield() {
  swapcontext(&fibers_[static_cast<std::size_t>(running_)].context, &outside_);
}

int Fibers::thread() {
  return block->running_;
}

/// Threads of a group wait equally often.
void Fibers::wait_for(int threads) {
  const int mine = thread(), first = mine / threads * threads;
  const int which = threads > 32 ? 1 : 0;
  const int until = ++block->fibers_[static_cast<std::size_t>(mine)].arrived[which];
  const auto behind = [&] {
    for (int other = first; other < first + threads; ++other) {
      const Fiber& fiber = block->fibers_[static_cast<std::size_t>(other)];
      if (fiber.arrived[which] >= until) continue;
      if (fiber.done) throw std::logic_error("a thread waits for one that has ended");
      return true;
    }
    return false;
  };
  while (behind()) block->yield();
}

void Fibers::fetch(std::uint16_t* to, const std::uint16_t* from, bool there) {
  Copy copy{to, {}};
  if (there) std::copy_n(from, copy.bytes.size(), copy.bytes.begin());
  block->fibers_[static_cast<std::size_t>(thread())].groups.back().push_back(copy);
}

void Fibers::end_fetch() {
  block->fibers_[static_cast<std::size_t>(thread())].groups.emplace_back();
}

void Fibers::await_fetched(int last) {
  auto& groups = block->fibers_[static_cast<std::size_t>(thread())].groups;  // the last one is not ended
  while (std::ssize(groups) - 1 > last) {
    for (const Copy& copy : groups.front()) std::copy(copy.bytes.begin(), copy.bytes.end(), copy.to);
    groups.erase(groups.begin());
  }
}

float FiberLane::exchanged(float x, int distance) {
  return shared_by_warp(x, [&](const auto& all) { return all[static_cast<std::size_t>(index() ^ distance)]; });
}

void FiberLane::load(std::uint32_t (&to)[4], const std::uint16_t* line, bool transposed) {
  if (reinterpret_cast<std::uintptr_t>(line) % 16 != 0) throw std::logic_error("a line is not aligned to 16 bytes");
  const int row = index() / 4, column = index() % 4 * 2;
  const auto loaded = shared_by_warp(line, [&](const auto& lines) {
    std::array<std::uint32_t, 4> all{};
    for (int matrix = 0; matrix < 4; ++matrix) {
      const auto element = [&](int r, int c) -> std::uint32_t {
        return lines[static_cast<std::size_t>(matrix * 8 + r)][c];
      };
      all[static_cast<std::size_t>(matrix)] = transposed ? element(column, row) | element(column + 1, row) << 16
                                                         : element(row, column) | element(row, column + 1) << 16;
    }
    return all;
  });
  std::copy(loaded.begin(), loaded.end(), to);
}

void FiberLane::multiply_add(float (&sums)[4], const std::uint32_t (&a)[4], std::uint32_t b0, std::uint32_t b1) {
  const std::array mine{a[0], a[1], a[2], a[3], b0, b1};
  const auto added = shared_by_warp(mine, [&](const auto& all) {
    // Element (r, c) of a is in lane 4·(r mod 8) + c mod 8 / 2, element (r, c) of b in lane 4·c + r mod 8 / 2.
    const auto of_a = [&](int r, int c) {
      const auto lane = static_cast<std::size_t>(r % 8 * 4 + c % 8 / 2);
      return half_of(all[lane][static_cast<std::size_t>(r / 8 + c / 8 * 2)], c % 2);
    };
    const auto of_b = [&](int r, int c) {
      const auto lane = static_cast<std::size_t>(c * 4 + r % 8 / 2);
      return half_of(all[lane][static_cast<std::size_t>(4 + r / 8)], r % 2);
    };
    std::array<float, 4> more{};
    for (int i = 0; i < 4; ++i) {
      for (int k = 0; k < 16; ++k) {
        more[static_cast<std::size_t>(i)] += of_a(index() / 4 + i / 2 * 8, k) * of_b(k, index() % 4 * 2 + i % 2);
      }
    }
    return more;
  });
  for (int i = 0; i < 4; ++i) sums[i] += added[static_cast<std::size_t>(i)];
}

std::uint32_t FiberLane::rounded(float first, float second) {
  return to_bfloat16(first).bits | std::uint32_t{to_bfloat16(second).bits} << 16;
}

}  // namespace kolo::testing
