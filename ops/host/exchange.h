#pragma once

#include <cstdint>
#include <list>
#include <memory>
#include <vector>

#include <kolo/backend.h>

namespace kolo {

/// Small agreements of a group's members over a backend of host tensors that serves nothing else: how a backend of
/// another device tells its peers what it cannot put into a negotiation. Every member starts the same exchanges in the
/// same order; nothing waits.
class HostExchange final {
 public:
  explicit HostExchange(std::unique_ptr<Backend> host) : host_(std::move(host)) {}

  struct Answer {
    bool complete = false;
    std::vector<std::uint64_t> values;
  };

  /// The largest of what the members say, number by number; what rank `root` of the group says.
  std::shared_ptr<const Answer> largest(std::vector<std::uint64_t> mine);
  std::shared_ptr<const Answer> told_by(int root, std::vector<std::uint64_t> mine);

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
  std::shared_ptr<const Answer> start(const Signature& signature, std::vector<std::uint64_t> mine);

  std::unique_ptr<Backend> host_;
  std::list<Exchange> running_;  // their buckets must stay where they are
};

}  // namespace kolo
