#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "ops/host/doorbell.h"
#include "ops/host/file_descriptor.h"
#include "runtime/control/network.h"

namespace kolo {

/// Where ranks of different nodes meet: two that call each other get one TCP connection. A thread sees to it, asleep
/// in poll() mostly, so that no other thread ever waits for a connection; it also rings this rank's doorbell when
/// something has come over the connections there are.
///
/// Only the leader of a node listens, for all ranks of the node: what is for another of them it hands over through a
/// Unix socket. A caller says who it is and whom it calls, and proves the job's secret, before anything else is read;
/// whoever does not within 10 s has to go. If two ranks call each other at once, the call of the higher one counts.
class Meeting {
 public:
  /// What the ranks of a session know, and nobody else.
  struct Secret {
    std::array<std::byte, 16> of_callers{};
    std::array<std::byte, 16> of_called{};
    std::array<std::byte, 16> name{};  ///< of the Unix sockets, which every process of the host can read
  };
  /// Throws Error{backend} if the system has no random bytes.
  static Secret new_secret();

  struct Place {
    NetworkAddress address;  ///< where the leader of the rank's node listens
    std::string name;        ///< for messages: "rank 2 (host1)"
  };
  struct Met {
    int rank = 0;
    FileDescriptor socket;
  };

  /// `listening`: on a node's leader, a socket. `place_of` is asked by any thread, and lasts as long as this. `links`
  /// can be polled: is readable when something has come. Throws Error{backend}.
  Meeting(int rank, const Secret& secret, FileDescriptor listening, std::function<Place(int rank)> place_of, int links,
          Doorbell& doorbell);
  ~Meeting();
  Meeting(const Meeting&) = delete;
  Meeting& operator=(const Meeting&) = delete;

  // Any thread.

  /// Meets a rank of another node, at some time, unless it has been met. Rings the doorbell then.
  void call(int rank);
  bool any_met() const { return any_met_.load(std::memory_order_acquire); }
  std::vector<Met> take_met();
  /// Rings the doorbell once as soon as there is something on the links, also if that is so already.
  void listen();
  /// Something on the links is about to be taken away: the ring for it may be lost otherwise.
  void has_come();
  /// Notes what stands between this rank and another one, or that nothing does any more.
  void note(int rank, std::string trouble);
  /// All of that: "no connection to rank 2 (host1): 10.0.0.2:4242: Connection refused"; mostly empty.
  std::string troubles() const;

 private:
  using Clock = std::chrono::steady_clock;
  enum class State { waiting, connecting, greeting };
  struct Call {
    State state = State::waiting;
    Clock::time_point due;  // when it begins; or when connecting has taken too long
    FileDescriptor socket;
  };
  struct Guest {
    FileDescriptor socket;
    Clock::time_point leaves;
  };

  void run();
  void act(std::uint64_t tag);
  int milliseconds_to_wait() const;
  void look_at_the_clock();
  void watch(int socket, std::uint32_t events, std::uint64_t tag);
  void read_wake();
  void admit_callers();
  void admit_handed_over();
  void admit(FileDescriptor socket);
  void hear(std::uint64_t guest);
  void hand_over(int rank, FileDescriptor socket);
  void begin(int rank, Call& call);
  void go_on(int rank);
  void fail(int rank, Call& call, int error);
  void meet(int rank, FileDescriptor socket);
  void wake();

  const int rank_;
  const Secret secret_;
  const FileDescriptor listening_;
  const std::function<Place(int rank)> place_of_;
  const int links_;
  Doorbell& doorbell_;
  FileDescriptor poll_, wake_, handed_over_;
  std::atomic<bool> any_met_{false}, listens_{false}, stop_{false};
  mutable std::mutex mutex_;
  std::vector<int> called_;
  std::vector<Met> met_;
  std::map<int, std::string> troubles_;

  // The thread's.
  std::map<int, Call> calls_;              // by rank; not those that have been met
  std::map<std::uint64_t, Guest> guests_;  // who have not said yet who they are
  std::uint64_t guests_ever_ = 0;
  std::optional<Clock::time_point> admits_from_;  // no descriptors are free until then
  std::set<int> have_met_;

  std::jthread thread_;  // last: it uses everything above
};

}  // namespace kolo
