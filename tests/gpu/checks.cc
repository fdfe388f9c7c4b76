#include "tests/gpu/checks.h"

#include <fmt/format.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <exception>
#include <utility>
#include <vector>

namespace kolo::smoke {

Selection Selection::of(int count, char** arguments) {
  Selection all;
  int first = 1;
  if (count > 5 && std::string(arguments[1]) == "--after") {
    all.after = std::atoi(arguments[2]);
    all.ok = std::atoi(arguments[3]);
    all.failed = std::atoi(arguments[4]);
    all.skipped = std::atoi(arguments[5]);
    first = 6;
  }
  for (int i = first; i < count; ++i) all.only.insert(std::atoi(arguments[i]));
  return all;
}

Checks::Checks(Selection selection, std::chrono::seconds limit, std::function<bool()> works)
    : selection_(std::move(selection)), limit_(limit), works_(std::move(works)), watchdog_([this] { watch(); }) {}

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
  if (!selection_.contains(number_)) return;
  begin(what, times);
  Line line;
  std::string state = "ok", text;
  bool works = true;
  try {
    check(line);
    text = fmt::format("{}  {:.1f} us{}", what, line.seconds() * 1e6, line.notes());
    ++selection_.ok;
  } catch (const Skipped& skipped) {
    state = "skipped";
    text = fmt::format("{}: {}", what, skipped.what());
    ++selection_.skipped;
  } catch (const std::exception& error) {
    state = "FAILED";
    text = fmt::format("{}: {}{}", what, error.what(), line.notes());
    ++selection_.failed;
    works = works_();
  }
  const std::lock_guard lock(mutex_);  // or the watchdog speaks
  running_.clear();
  print(state, text);
  if (!works) begin_anew();
}

void Checks::begin_anew() const {
  fmt::print("    the device is of no use to this process any more: what follows runs in a fresh one\n");
  std::fflush(stdout);
  std::vector<std::string> words{"gpu_smoke", "--after"};
  for (const int number : {number_, selection_.ok, selection_.failed, selection_.skipped}) {
    words.push_back(std::to_string(number));
  }
  for (const int number : selection_.only) words.push_back(std::to_string(number));
  std::vector<char*> arguments;
  for (std::string& word : words) arguments.push_back(word.data());
  arguments.push_back(nullptr);
  ::execv("/proc/self/exe", arguments.data());
}

int Checks::finish() {
  fmt::print("{} ok, {} FAILED, {} skipped\n", selection_.ok, selection_.failed, selection_.skipped);
  std::fflush(stdout);
  return selection_.failed > 0 ? 1 : 0;
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
      fmt::print("{} ok, {} FAILED, {} skipped, and what was to follow has not run\n", selection_.ok,
                 selection_.failed + 1, selection_.skipped);
      std::fflush(stdout);
      ::_exit(3);
    }
  }
}

}  // namespace kolo::smoke
