#pragma once

#include <cstdint>
#include <list>
#include <memory>
#include <vector>

#include <kolo/backend.h>

namespace kolo {

/// Small agreements of a group's members over a backend of host tensors that serves nothing else, for what a backend
/// of another device cannot put into a negotiation. Every member starts the same exchanges in the same order; nothing
/// waits.
class HostExchange final {
 public:
  explicit HostExchange(std::unique_ptr<Backend> host) : host_(std::move(host)) {}

  struct Answer {
    bool complete = false;
    std::vector<std::uint64_t> values;
  };

  /// The largest of the members' values, number by number.
  std::shared_ptr<const Answer> largest(std::vector<std::uint64_t> mine);

  /// Advances what is under way, also what nobody asks for any more. Throws what the backend does.
  void step();
  bool busy() const { return !running_.empty(); }

  /// Touches nothing from now on.
  void abandon() noexcept;

  Backend& host() { return *host_; }

 private:
  struct Exchange {
    std::shared_ptr<Answer> answer;
    Bucket bucket;
    std::unique_ptr<Operation> operation;
  };

  std::unique_ptr<Backend> host_;
  std::list<Exchange> running_;  // their buckets must stay where they are
};

}  // namespace kolo
