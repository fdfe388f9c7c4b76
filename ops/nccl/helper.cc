#include "ops/nccl/helper.h"

#include <pthread.h>

#include <mutex>
#include <system_error>
#include <thread>
#include <utility>

namespace kolo {

struct NcclHelper::State {
  std::mutex mutex;
  bool returned = false;
  NcclOutcome outcome;
  std::function<void()> then;
};

void NcclHelper::start(Gpu& gpu, Work work) {
  auto state = state_ = std::make_shared<State>();
  const auto run = [state, &gpu, work = std::move(work)] {
    NcclOutcome outcome;
    {
      const GpuGuard selected(gpu, std::nothrow);  // whoever learns that this has returned may end with the GPU
      outcome = work();
    }
    std::function<void()> then;
    {
      const std::lock_guard lock(state->mutex);
      state->outcome = outcome;
      state->returned = true;
      then = std::move(state->then);
    }
    if (then) then();
  };
  try {
    std::thread thread([run] {
      (void)pthread_setname_np(pthread_self(), "kolo-nccl");
      run();
    });
    thread.detach();
  } catch (const std::system_error&) {
    run();
  }
}

bool NcclHelper::busy() const {
  if (!state_) return false;
  const std::lock_guard lock(state_->mutex);
  return !state_->returned;
}

NcclOutcome NcclHelper::take_outcome() {
  const auto state = std::exchange(state_, nullptr);
  return state ? state->outcome : NcclOutcome();
}

void NcclHelper::forget(std::function<void()> then) {
  const auto state = std::exchange(state_, nullptr);
  if (state) {
    const std::lock_guard lock(state->mutex);
    if (!state->returned) {
      state->then = std::move(then);
      return;
    }
  }
  if (then) then();
}

}  // namespace kolo
