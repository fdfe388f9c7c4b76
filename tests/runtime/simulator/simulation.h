#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace kolo::testing {

/// How a simulation ended.
struct Simulated {
  bool hung = false;              ///< all threads wait for ever, or the limit has passed
  bool ended = false;             ///< by end_simulation()
  std::string threads;            ///< if it hung: what each thread waits for
  std::vector<int> waiting;       ///< if it hung: the ranks that these threads belong to
  std::chrono::nanoseconds time;  ///< by the virtual clock
  std::uint64_t switches = 0;     ///< from one thread to another
};

/// Runs a program with all its threads as fibers of this one, under a virtual clock: what happens follows from the
/// seed, and happens again with the same seed.
///
/// Meanwhile threads, mutexes, condition variables, futexes, sleeps and clocks of the whole process are the
/// simulation's: simulation.cc defines the functions of libc under them. A fiber runs until it comes to one of those;
/// the seed decides whether another goes on there. Time passes a little with every call, and jumps when all sleep. What
/// spins must read the clock or yield.
///
/// A program that hangs is left where it is: its threads' memory and what they own are lost.
Simulated simulate(std::uint64_t seed, std::chrono::seconds limit, const std::function<void()>& program);

// In a simulation.

/// The next thread that this thread starts, and all that it starts, belong to this rank.
void starts_rank(int rank);
/// The rank that this thread belongs to; -1: none.
int rank_of_thread();
/// The threads of this rank stand still, as a stopped process would, until so much time has passed.
void freeze(int rank, std::chrono::nanoseconds time);
/// The threads of this rank never run again, as those of a killed process.
void kill(int rank);
/// Calls `action` at that time, in no thread: it must not wait.
void at(std::chrono::nanoseconds time, std::function<void()> action);
/// Whether the simulation itself runs now, in this thread.
bool simulation_works();
/// Ends the simulation where it is, as exit() would.
[[noreturn]] void end_simulation();
/// The virtual time that has passed.
std::chrono::nanoseconds virtual_time();

}  // namespace kolo::testing
