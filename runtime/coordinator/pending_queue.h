#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <mutex>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include <kolo/detail/hash.h>

#include "runtime/coordinator/block_pool.h"
#include "runtime/operation/submission.h"

namespace kolo {

/// What application threads hand to the coordinator, in one order per rank. Thread-safe.
///
/// Also knows what is in flight: a name belongs to one operation of a group from push to retire(). Only what goes from
/// rank to rank may be in flight several times under one name, first in, first out.
class PendingQueue {
 public:
  static constexpr std::uint64_t max_barriers = 64;

  enum class What { submit, flush, withdraw, depart, abandon };
  struct Item {
    What what;
    SubmissionPtr submission;
    std::uint64_t sequence;
  };

  /// The index of a name, always the same one: operations that give it need not look their name up.
  std::uint32_t declare(std::string_view name);

  /// Appends a request and returns what becomes of it. Throws Error{in_flight}, after close() Error{closed}, or
  /// Error{invalid_argument} if declare() did not return its index; nothing is appended then.
  ///
  /// What has no name gets its number here, by the order of the calls: the k-th barrier, say, matches
  /// the k-th on every rank, whoever waits for what in between. At most `max_barriers` barriers of a group are in
  /// flight.
  SubmissionPtr submit(Request&& request);

  /// Appends something else that concerns an operation already submitted (null for depart and abandon).
  void push(What what, const SubmissionPtr& submission);

  /// Whether the last item queued is a flush; a second flush would change nothing.
  bool flushed_last() const { return flushed_last_.load(std::memory_order_relaxed); }

  /// Takes everything appended so far; it replaces what is in `items`.
  void drain(std::vector<Item>& items);
  bool empty() const { return size_.load(std::memory_order_seq_cst) == 0; }

  /// Operations are complete: their names are free again.
  void retire(std::span<Submission* const> submissions);

  /// Nobody waits for it any more but the streams of its device: its name is free, though it stays in flight.
  /// False if it is retired.
  bool detach(const SubmissionPtr& submission);

  /// Its handle goes: its name stays in flight until it is done, and how it fails is kept.
  void let_go(const SubmissionPtr& submission);

  /// Whether the listener will be called; false: the operation is done.
  bool listen(const SubmissionPtr& submission, const Listener& listener);
  void stop_listening(const SubmissionPtr& submission, const Listener& listener);
  /// The operation is done. They must not call this queue.
  void call_listeners(Submission& submission);

  /// How something failed that was detached: the first is kept until it is asked for.
  std::optional<Failure> claim_failure();

  /// Advances the occurrence counter of `name` for an operation that ran while this rank was joined.
  void pass_over(const GroupKey& group, const std::string& name);

  /// The ranks of the group remember nothing of this name: occurrences count anew.
  void forget(const GroupKey& group, const std::string& name);

  /// No submissions from now on.
  void close();
  /// The same; what is returned is the last thing in flight: waiting for all ranks to leave.
  SubmissionPtr close_with(const std::shared_ptr<const GroupInfo>& world);

  /// No submissions to a group that is about to be removed, until its removal is complete or has failed. False, and
  /// nothing happens, if it has operations in flight on this rank.
  bool close(const GroupKey& group);
  /// Whether that is so.
  bool closed(const GroupKey& group) const;

  bool any_in_flight() const;
  /// Whether nothing is in flight, nor was submitted since the last call with this `sequence`, which is 0 at first.
  bool has_rested_since(std::uint64_t& sequence) const;
  /// Operations submitted and not retired, oldest first.
  std::vector<SubmissionPtr> in_flight() const;

 private:
  struct KeyHash {
    std::size_t operator()(const GroupKey& key) const { return 2 * key.id + static_cast<std::size_t>(key.kind); }
  };

  /// The numbers of a group's barriers, say, or of its negotiated calls without a name. One that was withdrawn gives
  /// its number to the next, as if it had never been.
  struct Turns {
    std::uint64_t next = 0;
    std::set<std::uint64_t> given_back;
    std::set<std::uint64_t> passed_over;  // of those from `next` on
    std::uint64_t first() const { return given_back.empty() ? next : *given_back.begin(); }
    void take() {
      if (!given_back.empty()) {
        given_back.erase(given_back.begin());
        return;
      }
      ++next;
      while (passed_over.erase(next) > 0) ++next;
    }
    void pass_over(std::uint64_t number) {
      if (number == next)
        take();
      else if (number > next)
        passed_over.insert(number);
    }
  };

  struct Names {
    std::unordered_map<std::string, NameUse, detail::StringHash, std::equal_to<>> uses;  // by name
    std::vector<NameUse*> declared;           // the same of declared names, by index; null: look it up
    std::map<std::string_view, Turns> turns;  // by the prefix of the names
    std::uint64_t calls = 0;                  // in_order(), so far

    NameUse& use_of(std::string_view name);
    NameUse& use_of(const Request& request);
    void erase(decltype(uses)::iterator use);
  };

  SubmissionPtr submit_in_order(Request&& request);
  void add(const SubmissionPtr& submission);
  void remove(Submission& submission);
  std::vector<SubmissionPtr> oldest_first() const;
  NameUse& reserve_names(Names& names, const SubmissionPtr& submission);
  void retire(Submission& submission);
  void forget(const GroupKey& group, Names& names);
  void keep_failure(const Submission& submission);
  void append(Item item);

  const std::shared_ptr<BlockPool> blocks_ = std::make_shared<BlockPool>();  // of submissions
  mutable std::mutex mutex_;
  bool closed_ = false;
  std::set<GroupKey> closed_groups_;
  std::uint64_t sequence_ = 0;
  std::vector<Item> items_;
  std::atomic<std::size_t> size_{0};
  std::atomic<bool> flushed_last_{false};
  std::unordered_map<std::string, std::uint32_t, detail::StringHash, std::equal_to<>> indices_;  // of declared names
  std::vector<const std::string*> declared_;                                                     // by index
  std::unordered_map<GroupKey, Names, KeyHash> names_;                                           // by group
  std::vector<SubmissionPtr> in_flight_;  // in no order; also what is detached, without a name
  std::optional<Failure> unclaimed_;
  std::atomic<bool> has_unclaimed_{false};
};

}  // namespace kolo
