#include "tests/gpu/checks.h"

#include <fmt/format.h>
#include <unistd.h>

#include <cstdio>
#include <exception>
#include <utility>

namespace kolo::smoke {

Checks::Checks(std::set<int> only, std::chrono::seconds limit)
    : only_(std::move(only)), limit_(limit), watchdog_([this] { watch(); }) {}

Checks::~Checks() {
  {
    const std::lock_guard lock(mutex_);
    over_ = true;
  }
  news_.notify_all();
}

void Checks::tell(const std::string& text) {
  fmt::print("    {}\n", text);
  std::fflush(stdout);
}

void Checks::print(const std::string& state, const std::string& text) const {
  fmt::print("{:02}  {:<7} {}\n", number_, state, text);
  std::fflush(stdout);
}

void Checks::begin(const std::string& what, int times) {
  {
    const std::lock_guard lock(mutex_);
    running_ = what;
    deadline_ = std::chrono::steady_clock::now() + times * limit_;
  }
  news_.notify_all();
}

void Checks::prepare(const std::string& what, const std::function<void()>& body, int times) {
  begin(what, times);
  body();
  const std::lock_guard lock(mutex_);
  running_.clear();
}

void Checks::run(const std::string& what, const std::function<void(Line&)>& check, int times) {
  ++number_;
  if (!only_.empty() && !only_.contains(number_)) return;
  begin(what, times);
  Line line;
  std::string state = "ok", text;
  try {
    check(line);
    text = fmt::format("{}  {:.1f} us{}", what, line.seconds() * 1e6, line.notes());
    ++ok_;
  } catch (const Skipped& skipped) {
    state = "skipped";
    text = fmt::format("{}: {}", what, skipped.what());
    ++skipped_;
  } catch (const std::exception& error) {
    state = "FAILED";
    text = fmt::format("{}: {}{}", what, error.what(), line.notes());
    ++failed_;
  }
  const std::lock_guard lock(mutex_);  // or the watchdog speaks
  running_.clear();
  print(state, text);
}

int Checks::finish() {
  if (failed_ > 1) tell("after an error of the device all that follows fails: give the numbers of what to run alone");
  fmt::print("{} ok, {} FAILED, {} skipped\n", ok_, failed_, skipped_);
  std::fflush(stdout);
  return failed_ > 0 ? 1 : 0;
}

/// Whoever hangs in a call of CUDA's cannot be ended but with the process.
void Checks::watch() {
  std::unique_lock lock(mutex_);
  while (!over_) {
    if (running_.empty()) {
      news_.wait(lock);
    } else if (news_.wait_until(lock, deadline_) == std::cv_status::timeout && !running_.empty() &&
               std::chrono::steady_clock::now() >= deadline_) {
      print("FAILED", running_ + ": hung");
      fmt::print("{} ok, {} FAILED, {} skipped, and what was to follow has not run\n", ok_, failed_ + 1, skipped_);
      std::fflush(stdout);
      ::_exit(3);
    }
  }
}

}  // namespace kolo::smoke
