#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include <kolo/world.h>

namespace kolo::testing {

/// What goes wrong in a simulated program, and when: drawn from a seed.
struct Fault {
  enum class Kind : std::uint8_t {
    none,
    late,    ///< a rank starts late
    freeze,  ///< a rank stands still for a while
    stop,    ///< a rank never runs again
    kill,    ///< the same, and the ranks of its node and its neighbours elsewhere notice
    start,   ///< a rank's backend throws when it starts an operation
    step,    ///< ... when an operation advances
    group,   ///< ... when it is made for a group, or hears of the other ranks there
    memory,  ///< a rank has no memory for something while it hears, decides or sends
    leave,   ///< a rank's program ends by an exception
  };
  Kind kind = Kind::none;
  int rank = 0;
  std::chrono::nanoseconds when{0}, how_long{0};
  int call =
      0;  ///< which of those of the backend throws, which allocation fails, how many operations go before; from 0
};

Fault draw_fault(std::uint64_t seed, int ranks, const std::vector<Fault::Kind>& kinds);
std::string to_string(const Fault& fault);

/// How the job ended, if a watchdog ended it.
struct JobEnd {
  bool ended = false;
  int by_rank = -1;
  int exit_code = 0;
};

/// How what moves an operation's data lets a rank know that it is complete.
enum class Notice : std::uint8_t {
  rings,   ///< it rings the rank's doorbell, as the other ranks of a node do
  polled,  ///< it must be asked, as a GPU
  called,  ///< so must it, and it moves the data only while a rank calls it, as MPI: what an operation that is complete
           ///< has left there, the other ranks need
};

/// The network between virtual ranks: messages arrive in order on each edge, after a delay that the seed draws.
class VirtualNetwork {
 public:
  VirtualNetwork(std::uint64_t seed, int ranks, std::chrono::nanoseconds slowest, Notice notice = Notice::rings);
  ~VirtualNetwork();

  /// Puts the network's channel into a rank's world, and around each of its backends one whose operations take virtual
  /// time, and which has the fault.
  void enter(int rank, World& world, const Fault& fault);

  /// From now on backends do not serve what ranks of several nodes meet by, as in a world from a store.
  void keep_nodes_apart();

  const JobEnd& job_end() const;

  struct State;

 private:
  std::shared_ptr<State> state_;
};

}  // namespace kolo::testing
