// A program for session_jobs_test.sh: one way to use, or misuse, a session under a launcher. Prints what came out of
// it; exits with 0 if it got through, 3 on an Error.

#include <kolo/mpi.h>
#include <kolo/session.h>

#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <latch>
#include <optional>
#include <string>
#include <thread>
#include <vector>

namespace {

std::atomic<long> mpi_calls{0};

double cpu_seconds() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](const timeval& time) {
    return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_usec) / 1e6;
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

float sum_of_ones(kolo::Session& session, const char* name) {
  float one = 1;
  session.all_reduce(name, kolo::view_scalar(one));
  return one;
}

/// Ends a session, in which no thread may have found work that nobody had woken it for.
void end(kolo::Session& session) {
  session.close();
  if (session.stats().late_wakeups == 0) return;
  std::fprintf(stderr, "rank %d has woken late\n", session.rank());
  std::fflush(nullptr);
  std::_Exit(9);
}

/// One operation, then nothing: how much CPU time and how many MPI calls does nothing take?
void idle(double seconds) {
  kolo::Session session;
  (void)sum_of_ones(session, "first");
  session.barrier();
  std::this_thread::sleep_for(std::chrono::milliseconds(300));  // everybody has gone to sleep
  const double cpu = cpu_seconds();
  const long calls = mpi_calls;
  std::this_thread::sleep_for(std::chrono::duration<double>(seconds));
  const double share = (cpu_seconds() - cpu) / seconds;
  std::printf("idle rank %d: cpu %s (%.2f %%), mpi calls %ld\n", session.rank(), share < 0.01 ? "low" : "high",
              100 * share, mpi_calls - calls);
  std::fflush(stdout);
  std::this_thread::sleep_for(std::chrono::milliseconds(300));  // nobody measures any more
  // Whoever is asleep is woken: by those who wait, and where nobody does by those who come later.
  float late = 1;
  kolo::Handle handle = session.all_reduce_async("late", kolo::view_scalar(late));
  std::this_thread::sleep_for(std::chrono::milliseconds(200 * session.rank()));
  const auto start = std::chrono::steady_clock::now();
  for (int i = 0; i < 20; ++i) {
    (void)sum_of_ones(session, "awake");
    if (i % 5 == 0) std::this_thread::sleep_for(std::chrono::milliseconds(60));
  }
  handle.wait();
  if (std::chrono::steady_clock::now() - start > std::chrono::seconds(3)) std::printf("woken late\n");
  end(session);
}

/// MPI is the host's, initialised for `level`.
void host(const std::string& level) {
  const int wanted = level == "multiple"     ? MPI_THREAD_MULTIPLE
                     : level == "serialized" ? MPI_THREAD_SERIALIZED
                     : level == "funneled"   ? MPI_THREAD_FUNNELED
                                             : MPI_THREAD_SINGLE;
  int provided = 0;
  MPI_Init_thread(nullptr, nullptr, wanted, &provided);
  try {
    kolo::Session session;
    std::printf("host sum %g\n", sum_of_ones(session, "x"));
    end(session);
  } catch (const kolo::Error&) {
    MPI_Finalize();
    throw;
  }
  int value = 1, sum = 0;  // MPI is still there, and still the host's
  MPI_Allreduce(&value, &sum, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
  std::printf("host after %d\n", sum);
  MPI_Finalize();
}

/// The last rank stops in a state that what it has published describes badly.
///
/// step       its watchdog has published that it waits for "x"; that completes, and it stops before the next step's "x"
/// submitted  it has submitted "x" and published that, and another rank has not
void freeze_after(const std::string& what) {
  kolo::Session session;
  const bool victim = session.rank() == session.size() - 1;
  float x = 1;
  const auto sleep = [](double seconds) { std::this_thread::sleep_for(std::chrono::duration<double>(seconds)); };
  if (victim) {
    std::printf("victim %d\n", static_cast<int>(getpid()));
    std::fflush(stdout);
  }
  if (what == "step") {
    if (session.rank() == 0) sleep(1.5);  // others report after 0.5, 1 and 2 s
    session.all_reduce("x", kolo::view_scalar(x));
    if (victim) raise(SIGSTOP);
  } else {
    if (session.rank() == 0) sleep(60);
    kolo::Handle handle = session.all_reduce_async("x", kolo::view_scalar(x));
    if (victim) sleep(1);
    if (victim) raise(SIGSTOP);
    handle.wait();
  }
  session.all_reduce("x", kolo::view_scalar(x));
}

/// The last rank stops being a good peer while the others wait for it, by name or in an ordered group.
void signalled(int signal, bool in_order = false) {
  kolo::Session session;
  kolo::Group ordered;
  if (in_order) ordered = session.new_group(session.world().info()->ranks, {.order = kolo::Order::program});
  const auto sum = [&](const char* name) {
    float one = 1;
    in_order ? session.all_reduce(kolo::view_scalar(one), {.group = ordered}) : (void)sum_of_ones(session, name);
  };
  sum("before");
  if (session.rank() == session.size() - 1) {
    std::this_thread::sleep_for(std::chrono::seconds(1));  // its watchdog has published what it completed
    std::printf("victim %d\n", static_cast<int>(getpid()));
    std::fflush(stdout);
    raise(signal);
  }
  sum("after");
}

/// The last rank is killed; the others go on, rank 1 for longer. Rank 0 says how long MPI held it then, if it let go.
void outlives() {
  static std::chrono::steady_clock::time_point end_of_main;
  int rank = 0;
  try {
    std::atexit([] {  // before the session's own, so it runs after that
      if (end_of_main.time_since_epoch().count() == 0) return;
      const std::chrono::duration<double> waited = std::chrono::steady_clock::now() - end_of_main;
      std::printf("rank 0 was let go after %.0f s\n", waited.count());
    });
    kolo::Session session;
    rank = session.rank();
    (void)sum_of_ones(session, "before");
    if (rank == session.size() - 1) raise(SIGKILL);
    (void)sum_of_ones(session, "after");
  } catch (const kolo::Error& error) {
    std::printf("rank %d goes on: %s\n", rank, std::string(kolo::to_string(error.code())).c_str());
  }
  if (rank == 0) end_of_main = std::chrono::steady_clock::now();
  if (rank == 1) std::this_thread::sleep_for(std::chrono::seconds(25));
}

/// Proportional share of this process: what processes share is divided among them.
long memory_kilobytes() {
  std::ifstream smaps("/proc/self/smaps_rollup");
  for (std::string line; std::getline(smaps, line);) {
    if (line.starts_with("Pss:")) return std::stol(line.substr(4));
  }
  return 0;
}

/// 10 000 groups of two among the ranks, each used once.
void many_groups(bool in_order) {
  kolo::Session session;
  (void)sum_of_ones(session, "first");
  session.barrier();
  const long before = memory_kilobytes();
  std::vector<kolo::Group> groups;
  for (int i = 0; i < 10'000; ++i) {
    const int one = i % session.size(), other = (one + 1 + i / session.size() % (session.size() - 1)) % session.size();
    if (session.rank() != one && session.rank() != other) continue;
    const std::array members{std::min(one, other), std::max(one, other)};
    groups.push_back(session.new_group(members, {.order = in_order ? kolo::Order::program : kolo::Order::names}));
  }
  for (const kolo::Group& group : groups) {
    float value = 1;
    in_order ? session.all_reduce(kolo::view_scalar(value), {.group = group})
             : session.all_reduce("x", kolo::view_scalar(value), {.group = group});
    if (value != 2) std::printf("wrong: %g\n", value);
  }
  session.barrier();
  std::printf("%zu groups, %ld kB\n", groups.size(), memory_kilobytes() - before);
  end(session);
}

/// Every set of ranks leaves without finishing while the others go on, several times: prints the longest time that this
/// rank took, of the shortest of each set.
void leave() {
  using Time = std::chrono::milliseconds;
  Time longest{0};
  for (unsigned leavers = 1, all = 0; leavers == 1 || leavers < all; ++leavers) {
    Time shortest = Time::max();
    for (int tries = 0; tries < 5; ++tries) {
      std::optional<kolo::Session> session(std::in_place);
      all = (1u << session->size()) - 1;
      std::vector<int> staying;
      for (int rank = 0; rank < session->size(); ++rank) {
        if ((leavers >> rank & 1) == 0) staying.push_back(rank);
      }
      const bool leaves = (leavers >> session->rank() & 1) != 0;
      const kolo::Group rest = session->new_group(staying, {.order = kolo::Order::program});
      float one = 1;
      if (!leaves) session->all_reduce(kolo::view_scalar(one), {.group = rest});  // it is open
      session->barrier();
      if (!leaves) {
        try {
          (void)sum_of_ones(*session, "of all");
        } catch (const kolo::Error& error) {
          if (error.code() != kolo::ErrorCode::aborted) throw;
        }
        one = 1;
        session->all_reduce(kolo::view_scalar(one), {.group = rest});
        if (one != static_cast<float>(staying.size())) std::printf("wrong: %g\n", one);
        session->barrier(rest);
      }
      const auto start = std::chrono::steady_clock::now();
      if (leaves) session->abandon();
      session.reset();
      shortest = std::min(shortest, std::chrono::duration_cast<Time>(std::chrono::steady_clock::now() - start));
    }
    longest = std::max(longest, shortest);
  }
  std::printf("left in %d ms\n", static_cast<int>(longest.count()));
}

void stop_for(unsigned seconds) {
  const pid_t self = getpid();
  if (fork() == 0) {
    sleep(seconds);
    kill(self, SIGCONT);
    _exit(0);
  }
  raise(SIGSTOP);
}

/// A rank stops for `seconds`. What the others wait for fails when its time-out is over; of its own rank, afterwards.
void frozen_for(int victim, unsigned seconds) {
  kolo::Session session;
  (void)sum_of_ones(session, "before");
  if (session.rank() == victim) stop_for(seconds);
  for (const char* name : {"late", "after"}) {
    try {
      float one = 1;
      session.all_reduce(name, kolo::view_scalar(one), {.timeout_seconds = name[0] == 'l' ? 0.5 : 30});
      std::printf("rank %d: %s is %g\n", session.rank(), name, one);
    } catch (const kolo::Error& error) {
      std::printf("rank %d: %s: %s\n", session.rank(), std::string(kolo::to_string(error.code())).c_str(),
                  error.what());
    }
  }
}

/// The last rank stops for longer than KOLO_STALL_ABORT_SECONDS while something of its own is in flight, for which the
/// others come soon afterwards.
void stopped_for(unsigned seconds) {
  kolo::Session session;
  float one = 1;
  kolo::Handle handle;
  if (session.rank() == session.size() - 1) {
    handle = session.all_reduce_async("x", kolo::view_scalar(one));
    stop_for(seconds);
  } else {
    std::this_thread::sleep_for(std::chrono::seconds(seconds + 1));
    handle = session.all_reduce_async("x", kolo::view_scalar(one));
  }
  handle.wait();
  std::printf("sum %g\n", one);
}

/// The last rank stops; the others give up after a while, each with an error that ends its program.
void fails_beside_frozen() {
  kolo::Session session;
  (void)sum_of_ones(session, "before");
  if (session.rank() == session.size() - 1) raise(SIGSTOP);
  float one = 1;
  session.all_reduce("after", kolo::view_scalar(one), {.timeout_seconds = 0.5});
}

/// The last rank ends with exit(5) while its session lives, on the stack of main, where another thread may wait for an
/// operation, or as a static object, which a function that follows an operation may do; the others wait for it.
void exits(const std::string& where) {
  const auto program = [&where](kolo::Session& session) {
    (void)sum_of_ones(session, "before");
    const bool last = session.rank() == session.size() - 1;
    if (last && where == "waiting") {
      std::thread([&session] {
        try {
          (void)sum_of_ones(session, "never");
        } catch (const kolo::Error&) {
        }
      }).detach();
      std::this_thread::sleep_for(std::chrono::milliseconds(300));  // it sleeps, with the role
    }
    kolo::Handle handle = session.barrier_async();
    if (last && where == "function") handle.on_done([](const kolo::Error*) { std::exit(5); });
    handle.wait();
    while (last && where == "function") pause();
    if (last) std::exit(5);
    try {
      (void)sum_of_ones(session, "after");
    } catch (const kolo::Error& error) {
      std::printf("rank %d got %s: %s\n", session.rank(), std::string(kolo::to_string(error.code())).c_str(),
                  error.what());
      std::fflush(stdout);
      std::this_thread::sleep_for(std::chrono::seconds(1));  // mpirun ends with the code of the first that ends
    }
  };
  if (where == "static" || where == "function") {
    static kolo::Session session;
    program(session);
  } else if (where == "later") {  // destroyed after MPI is finalised
    static std::optional<kolo::Session> session;
    session.emplace();
    program(*session);
  } else {
    kolo::Session session;
    program(session);
  }
}

/// The last rank makes its session `seconds` after the others, which wait for it: in MPI_Init() or, where the host has
/// called that, in what comes later. What the program's own report() throws, at that, is nobody's concern.
void late(double seconds, bool host) {
  int provided = 0, rank = std::atoi(std::getenv("OMPI_COMM_WORLD_RANK")),
      size = std::atoi(std::getenv("OMPI_COMM_WORLD_SIZE"));
  if (host) MPI_Init_thread(nullptr, nullptr, MPI_THREAD_MULTIPLE, &provided);
  if (rank == size - 1) {
    std::printf("late %d\n", static_cast<int>(getpid()));
    std::fflush(stdout);
    std::this_thread::sleep_for(std::chrono::duration<double>(seconds));
  }
  {
    kolo::Config config = kolo::Config::from_environment();
    config.report = [](const std::string&) { throw 42; };
    config.banner = true;
    kolo::Session session(config);
    std::printf("sum %g\n", sum_of_ones(session, "x"));
    end(session);
  }
  if (host) MPI_Finalize();
}

/// A session of the first two ranks stalls; the others have nothing to do with it.
void part() {
  int provided = 0, rank = 0;
  MPI_Init_thread(nullptr, nullptr, MPI_THREAD_MULTIPLE, &provided);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm comm = MPI_COMM_NULL;
  MPI_Comm_split(MPI_COMM_WORLD, rank < 2 ? 0 : 1, 0, &comm);
  const kolo::Config config = kolo::Config::from_environment();
  kolo::Session session(kolo::mpi_world(comm, config), config);
  if (rank > 0) std::this_thread::sleep_for(std::chrono::seconds(60));
  (void)sum_of_ones(session, "x");
}

/// A world from a store on several hosts with two ranks each.
void hosts() {
  kolo::Session session;
  session.barrier();
  const int first = session.rank() / 2 * 2;
  std::vector<kolo::Group> groups;
  for (int lowest = 0; lowest < session.size(); lowest += 2)
    groups.push_back(session.new_group(std::array{lowest, lowest + 1}));
  float one = 1;
  session.all_reduce("here", kolo::view_scalar(one), {.group = groups[static_cast<std::size_t>(first / 2)]});
  std::printf("%d of %d here, sum %g\n", session.local_size(), session.size(), one);
  try {
    (void)sum_of_ones(session, "everywhere");
  } catch (const kolo::Error& error) {
    std::printf("everywhere: %s\n", error.what());
  }
  end(session);
}

/// Sessions that nobody closes before the program ends.
void at_exit(const std::string& where) {
  if (where == "static") {
    static kolo::Session session;
    std::printf("sum %g\n", sum_of_ones(session, "x"));
  } else {
    static std::optional<kolo::Session> session;
    session.emplace();
    std::printf("sum %g\n", sum_of_ones(*session, "x"));
  }
}

/// A child of fork() uses the session, and ends as `how` says; its parent goes on.
void forks(kolo::Session& session, const std::string& how) {
  const pid_t child = fork();
  if (child == 0) {
    try {
      (void)sum_of_ones(session, "child");
    } catch (const kolo::Error& error) {
      std::printf("child: %s\n", error.what());
      std::fflush(stdout);
    }
    try {
      kolo::Session another;
    } catch (const kolo::Error& error) {
      std::printf("another: %s\n", error.what());
      std::fflush(stdout);
    }
    if (how == "exit") std::exit(0);
    return;
  }
  int status = -1;
  waitpid(child, &status, 0);
  std::printf("child ended with %d, sum %g, late %d\n", status, sum_of_ones(session, "after"),
              static_cast<int>(session.stats().late_wakeups));
}

/// …in main, or in a function that follows an operation, with another behind it.
void forks(const std::string& how) {
  kolo::Session session;
  (void)sum_of_ones(session, "before");
  if (how != "function") return forks(session, how);
  std::latch done(1);
  kolo::Handle handle = session.barrier_async(), other = session.barrier_async();
  handle.on_done([&](const kolo::Error*) {
    other.on_done([&](const kolo::Error*) {
      std::printf("another function\n");
      done.count_down();
    });
    forks(session, how);
  });
  done.wait();
}

void run(const std::string& mode, const std::string& argument) {
  if (mode == "sum") {
    kolo::Session session;
    std::printf("sum %g of %d\n", sum_of_ones(session, "x"), session.size());
    end(session);
  } else if (mode == "calls") {
    const long before = mpi_calls;  // of MPI's own library for C++
    {
      kolo::Session session;
      (void)sum_of_ones(session, "x");
      end(session);
    }
    kolo::Session session;
    std::printf("sum %g of %d, mpi calls %ld\n", sum_of_ones(session, "x"), session.size(), mpi_calls - before);
    end(session);
  } else if (mode == "hosts") {
    hosts();
  } else if (mode == "idle") {
    idle(std::stod(argument));
  } else if (mode == "host") {
    host(argument);
  } else if (mode == "freeze") {
    signalled(SIGSTOP);
  } else if (mode == "fails_beside_frozen") {
    fails_beside_frozen();
  } else if (mode == "frozen_for") {
    frozen_for(argument[0] - '0', static_cast<unsigned>(std::stoi(argument.substr(2))));
  } else if (mode == "stopped_for") {
    stopped_for(static_cast<unsigned>(std::stoi(argument)));
  } else if (mode == "freeze_after") {
    freeze_after(argument);
  } else if (mode == "kill") {
    signalled(SIGKILL, argument == "in_order");
  } else if (mode == "outlives") {
    outlives();
  } else if (mode == "many_groups") {
    many_groups(argument == "in_order");
  } else if (mode == "leave") {
    leave();
  } else if (mode == "exit") {
    exits(argument);
  } else if (mode == "late" || mode == "late_host") {
    late(std::stod(argument), mode == "late_host");
  } else if (mode == "part") {
    part();
  } else if (mode == "at_exit") {
    at_exit(argument);
  } else if (mode == "fork") {
    forks(argument);
  } else if (mode == "again") {
    const auto start = std::chrono::steady_clock::now();
    for (int round = 0; round < 10; ++round) {
      kolo::Session session;
      std::printf("again %g\n", sum_of_ones(session, "x"));
      (void)session.all_gather_object("y", "any");
      end(session);
    }
    if (std::chrono::steady_clock::now() - start > std::chrono::seconds(4)) std::printf("made or closed slowly\n");
  }
}

}  // namespace

// What a session may call between its start and its end, counted; see the profiling interface of the MPI standard.
extern "C" {
int MPI_Test(MPI_Request* request, int* flag, MPI_Status* status) {
  return ++mpi_calls, PMPI_Test(request, flag, status);
}
int MPI_Improbe(int source, int tag, MPI_Comm comm, int* flag, MPI_Message* message, MPI_Status* status) {
  return ++mpi_calls, PMPI_Improbe(source, tag, comm, flag, message, status);
}
int MPI_Iprobe(int source, int tag, MPI_Comm comm, int* flag, MPI_Status* status) {
  return ++mpi_calls, PMPI_Iprobe(source, tag, comm, flag, status);
}
int MPI_Isend(const void* data, int count, MPI_Datatype type, int to, int tag, MPI_Comm comm, MPI_Request* request) {
  return ++mpi_calls, PMPI_Isend(data, count, type, to, tag, comm, request);
}
int MPI_Irecv(void* data, int count, MPI_Datatype type, int from, int tag, MPI_Comm comm, MPI_Request* request) {
  return ++mpi_calls, PMPI_Irecv(data, count, type, from, tag, comm, request);
}
int MPI_Abort(MPI_Comm comm, int code) {
  int size = 0;
  MPI_Comm_size(comm, &size);
  std::fprintf(stderr, "aborts %d ranks\n", size);
  return PMPI_Abort(comm, code);
}
int MPI_Initialized(int* flag) {
  return ++mpi_calls, PMPI_Initialized(flag);
}
int MPI_Finalized(int* flag) {
  return ++mpi_calls, PMPI_Finalized(flag);
}
}

int main(int argc, char** argv) {
  try {
    run(argc > 1 ? argv[1] : "sum", argc > 2 ? argv[2] : "");
    return 0;
  } catch (const kolo::Error& error) {
    std::fprintf(stderr, "error(%s): %s\n", std::string(kolo::to_string(error.code())).c_str(), error.what());
    return 3;
  }
}
