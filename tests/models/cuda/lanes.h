#pragma once

#include <ucontext.h>

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "models/compute/cuda/fragments.h"

namespace kolo::testing {

/// The threads of one block, each with a stack of its own: one runs until it waits for others, then the next one. So
/// what is different in each lane of a warp is tested on the host: fragments.h, what is copied to shared memory ahead,
/// and waiting for it.
class Fibers {
 public:
  /// Runs body(thread) in each of `threads`, until all are done.
  Fibers(int threads, const std::function<void(int)>& body);
  Fibers(const Fibers&) = delete;
  Fibers& operator=(const Fibers&) = delete;

  /// Of the thread that runs.
  static int thread();
  /// Waits until so many threads, a whole block or a warp of it, are here.
  static void wait_for(int threads);
  /// Copies 16 bytes when the group is over that end_fetch() ends, and await_fetched() waits for.
  static void fetch(std::uint16_t* to, const std::uint16_t* from, bool there);
  static void end_fetch();
  static void await_fetched(int last);

 private:
  struct Copy {
    std::uint16_t* to;
    std::array<std::uint16_t, 8> bytes;
  };
  struct Fiber {
    ucontext_t context{};
    std::unique_ptr<char[]> stack;
    int arrived[2] = {};  // how often it has waited for its warp, and for its block
    bool done = false;
    std::vector<std::vector<Copy>> groups{{}};
  };
  static void enter();
  void yield();

  std::vector<Fiber> fibers_;
  const std::function<void(int)>* body_;
  ucontext_t outside_{};
  int running_ = 0;
};

/// A lane, as fragments.h wants it, whose instructions are those of PTX written out.
struct FiberLane {
  static int index() { return Fibers::thread() % 32; }
  static float exchanged(float x, int distance);
  template <bool transposed>
  static void load(std::uint32_t (&to)[4], const std::uint16_t* line) {
    load(to, line, transposed);
  }
  static void load(std::uint32_t (&to)[4], const std::uint16_t* line, bool transposed);
  static void multiply_add(float (&sums)[4], const std::uint32_t (&a)[4], std::uint32_t b0, std::uint32_t b1);
  static std::uint32_t rounded(float first, float second);
};

/// A block as each of its threads sees it.
class FiberTeam {
 public:
  FiberTeam(int threads, float* shared) : threads_(threads), shared_(shared) {}

  template <int m>
  using Warp = models::cuda::Fragments<FiberLane, m>;

  int threads() const { return threads_; }
  float* shared() const { return shared_; }
  template <class Body>
  void start(Body body) const {
    body(Fibers::thread());
  }
  template <class Body>
  void run(Body body) const {
    start(body);
    Fibers::wait_for(threads_);
  }
  template <class Body>
  void warps(Body body) const {
    body(Fibers::thread() / 32);
  }
  static std::uint32_t halves(float first, float second) { return FiberLane::rounded(first, second); }
  static float exp2(float x) { return ::exp2f(x); }
  static float reciprocal(float x) { return 1 / x; }
  static void fetch(std::uint16_t* to, const std::uint16_t* from, bool there) { Fibers::fetch(to, from, there); }
  static void end_fetch() { Fibers::end_fetch(); }
  template <int last>
  void await_fetched() const {
    Fibers::await_fetched(last);
    Fibers::wait_for(threads_);
  }

 private:
  int threads_;
  float* shared_;
};

/// Runs a kernel's whole grid so.
template <class Kernel>
void run_in_fibers(const Kernel& kernel) {
  for (std::int64_t block = 0; block < kernel.blocks(); ++block) {
    std::vector<double> shared(static_cast<std::size_t>(kernel.shared_floats() / 2 + 2),
                               std::numeric_limits<double>::quiet_NaN());
    const auto address = reinterpret_cast<std::uintptr_t>(shared.data());
    auto* const aligned = reinterpret_cast<float*>((address + 15) & ~std::uintptr_t{15});
    Fibers(Kernel::threads, [&](int) { kernel(FiberTeam(Kernel::threads, aligned), block); });
  }
}

}  // namespace kolo::testing
