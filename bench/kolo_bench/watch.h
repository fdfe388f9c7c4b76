#pragma once

#include <condition_variable>
#include <mutex>
#include <string>
#include <thread>

namespace kolo::bench {

/// Ends the job with exit code 3 if a measurement takes too long; every rank names its measurement on stderr.
class Watch {
 public:
  /// `seconds`: the limit; 0: none.
  Watch(double seconds, int rank);

  /// A new measurement begins, and the last one has ended.
  void begin(std::string what);

 private:
  void run(const std::stop_token& stop);

  double seconds_;
  int rank_;
  std::mutex mutex_;
  std::condition_variable_any begun_;
  std::string what_;
  std::size_t number_ = 0;
  std::jthread thread_;
};

}  // namespace kolo::bench
