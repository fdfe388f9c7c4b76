#pragma once

#include <cstddef>
#include <cstring>
#include <functional>

#include "ops/shm/transfer.h"

namespace kolo {

/// What the ranks of a group ask each other before the first chunk of a job: in a chunk of its own every rank shows
/// something, and when all have read it the answer is the same on all. No further chunk is packed until then.
class ShmQuestion {
 public:
  /// Where a rank has shown its part.
  using Shown = std::function<const std::byte*(int rank)>;

  ShmQuestion() = default;
  ShmQuestion(const ShmQuestion&) = delete;
  ShmQuestion& operator=(const ShmQuestion&) = delete;
  virtual ~ShmQuestion() = default;

  /// Of what each rank shows.
  virtual std::size_t bytes(const ShmJob& job) const = 0;
  virtual void show(const ShmJob& job, std::byte* to) = 0;
  /// Ends with ShmJob::answer(), or with what else follows for the job.
  virtual void read(ShmJob& job, const Shown& shown) = 0;
};

/// A value that a rank has shown.
template <class T>
T read_as(const std::byte* from) {
  T value;
  std::memcpy(&value, from, sizeof(value));
  return value;
}

/// How such a chunk travels.
extern const ShmMethod shm_ask;

}  // namespace kolo
