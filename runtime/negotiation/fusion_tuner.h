#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace kolo {

/// Finds the fusion threshold under which the steps of a program are shortest, from how long they took. Pure state: it
/// is told the times.
///
/// Three rounds. In each the candidates take turns, for a few steps in a row each; the first step of a turn does not
/// count. Those that are clearly slower than the best leave, and in the end one is left. A candidate's score is the
/// mean of the faster half of its steps in the round, which an evaluation now and then, or a hiccup, does not change.
/// The first candidate, which the program began with, stays where no other is faster by more than one in a hundred, and
/// is not judged by the first steps alone, which are often slow.
class FusionTuner {
 public:
  using Duration = std::chrono::nanoseconds;

  /// Steps until it has settled, at most.
  static constexpr int most_steps = 48;

  /// `settings`: one or more, bytes; the first is what steps use before the first call of next().
  explicit FusionTuner(std::span<const std::int64_t> settings);

  /// A step with this setting took so long. Steps come in the order in which they ran.
  void took(std::int64_t setting, Duration duration);

  /// A step begins, which was the next(): what the one after it is to use.
  std::int64_t next();

  /// Whether next() says the same from now on.
  bool settled() const { return candidates_.size() == 1; }

 private:
  struct Candidate {
    std::int64_t setting = 0;
    bool first = false;               // of the settings
    int to_skip = 0;                  // steps that do not count
    std::vector<Duration> durations;  // in this round

    double score() const;
  };

  void begin_turn(bool goes_on);
  void judge(std::int64_t in_use);

  std::vector<Candidate> candidates_;  // in the order of their turns
  std::size_t round_ = 0;
  std::size_t turn_ = 0;  // whose
  int left_ = 0;          // steps of the turn
};

/// What is worth trying: `fusion_bytes`, and four times a quarter of the one before. None is larger, so that no bucket
/// needs more memory than it was given.
std::vector<std::int64_t> fusion_candidates(std::int64_t fusion_bytes);

}  // namespace kolo
