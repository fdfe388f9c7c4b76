#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <mutex>
#include <set>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "runtime/submission.h"

namespace kolo {

/// What application threads hand to the coordinator, in one order per rank: crossing 1. Thread-safe.
///
/// Also knows what is in flight: a name belongs to one operation of a group from push to retire().
class PendingQueue {
 public:
  static constexpr std::uint64_t max_barriers = 64;

  enum class What { submit, flush, withdraw, depart, abandon };
  struct Item {
    What what;
    SubmissionPtr submission;
    std::uint64_t sequence;
  };

  /// Appends a submission. Throws Error{in_flight} or, after close(), Error{closed}; nothing is appended then.
  ///
  /// A barrier, or a change of groups, without a name gets one here: the k-th matches the k-th on every rank, whoever waits for
  /// what in between. At most `max_barriers` barriers of a group are in flight.
  void submit(const SubmissionPtr& submission);

  /// Appends something else that concerns an operation already submitted (null for depart and abandon).
  void push(What what, const SubmissionPtr& submission);

  /// Takes everything appended so far.
  std::vector<Item> drain();
  bool empty() const { return size_.load(std::memory_order_seq_cst) == 0; }

  /// The operation is complete: its name is free again.
  void retire(const Submission& submission);

  /// No submissions from now on. `departure`, if any, is appended as the last thing in flight: waiting for the others to leave.
  void close(const SubmissionPtr& departure);

  /// Whether a group has operations in flight on this rank.
  bool busy(GroupId group) const;

  /// Operations submitted and not retired, oldest first.
  std::vector<SubmissionPtr> in_flight() const;

 private:
  using Key = std::pair<GroupId, std::string>;
  using KeyView = std::pair<GroupId, std::string_view>;
  struct KeyHash {
    using is_transparent = void;
    std::size_t operator()(const KeyView& key) const { return std::hash<std::string_view>()(key.second) ^ key.first; }
  };
  struct KeyEqual {
    using is_transparent = void;
    bool operator()(const KeyView& a, const KeyView& b) const { return a == b; }
  };

  /// The numbers of a group's barriers. One that was withdrawn gives its number to the next, as if it had never been.
  struct Turns {
    std::uint64_t next = 0;
    std::set<std::uint64_t> given_back;
    std::uint64_t first() const { return given_back.empty() ? next : *given_back.begin(); }
    void take() {
      if (given_back.empty()) {
        ++next;
      } else {
        given_back.erase(given_back.begin());
      }
    }
  };

  /// One name of a group, once it has been used.
  struct Name {
    SubmissionPtr in_flight;     // the operation that has the name, if one does
    std::uint64_t finished = 0;  // how many have had it; withdrawn ones count as if they had never been
  };

  Name& name_of(const Submission& submission);
  Turns& turns_of(const Submission& submission);
  void append(Item item);

  mutable std::mutex mutex_;
  bool closed_ = false;
  std::uint64_t sequence_ = 0;
  std::vector<Item> items_;
  std::atomic<std::size_t> size_{0};
  std::unordered_map<Key, Name, KeyHash, KeyEqual> names_;
  std::map<std::pair<GroupId, bool>, Turns> turns_;  // of barriers, and of changes of groups
};

}  // namespace kolo
