#include "apps/torch/completions.h"

#include <condition_variable>
#include <deque>
#include <mutex>
#include <system_error>
#include <thread>
#include <utility>

namespace kolo_torch {
namespace {

constexpr auto idle_time = std::chrono::seconds(2);

}  // namespace

struct Completions::State {
  std::mutex mutex;
  std::condition_variable changed;
  std::deque<std::function<void()>> waiting;
  std::size_t idle = 0, threads = 0;
  bool stop = false;
};

Completions::Completions() : state_(std::make_shared<State>()) {}

Completions::~Completions() {
  const std::lock_guard lock(state_->mutex);
  state_->stop = true;
  state_->changed.notify_all();
}

void Completions::post(std::function<void()> task) {
  std::unique_lock lock(state_->mutex);
  state_->waiting.push_back(std::move(task));
  if (state_->waiting.size() <= state_->idle) {
    state_->changed.notify_one();
    return;
  }
  try {
    std::thread([state = state_] { run(state); }).detach();
    ++state_->threads;
  } catch (const std::system_error&) {  // the system has no more threads
    task = std::move(state_->waiting.back());
    state_->waiting.pop_back();
    lock.unlock();
    task();
  }
}

void Completions::run(const std::shared_ptr<State>& state) {
  std::unique_lock lock(state->mutex);
  const auto has_news = [&] { return !state->waiting.empty() || state->stop; };
  for (;;) {
    if (state->waiting.empty()) {
      ++state->idle;
      state->changed.notify_all();
      state->changed.wait_for(lock, idle_time, has_news);
      --state->idle;
    }
    if (state->waiting.empty()) break;
    std::function<void()> task = std::move(state->waiting.front());
    state->waiting.pop_front();
    lock.unlock();
    task();
    task = nullptr;  // what it holds dies without the lock
    lock.lock();
  }
  --state->threads;
  state->changed.notify_all();
}

bool Completions::finish(std::chrono::steady_clock::time_point deadline) {
  std::unique_lock lock(state_->mutex);
  return state_->changed.wait_until(lock, deadline,
                                    [&] { return state_->waiting.empty() && state_->idle == state_->threads; });
}

}  // namespace kolo_torch
