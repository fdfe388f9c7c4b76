// The random programs with ranks that are processes, on one host or several, one after the other; see kills_test.py.
//
//   mpirun … property_job MARKS FIRST_SEED SECONDS [STALL_ABORT_SECONDS]
//
// MARKS  a file that all ranks can write to, wherever they run; made if it is missing. Rank 0 clears it before the
// first program.
//
// KOLO_TEST_MEMORY=adopted: tensors lie in memory that the session has adopted, by XPMEM if it has KOLO_XPMEM; more of
// them are large.
//
// Prints what is not as the serial model says, and ends with 1 then. A run of a minute or more is to leave memory and
// descriptors as they were after its first tenth.

#include <fcntl.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <malloc.h>
#include <sys/mman.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <filesystem>
#include <fstream>
#include <optional>
#include <string>

#include "tests/runtime/property/property_player.h"
#include "tests/support/adopted_memory.h"

namespace kolo::testing {
namespace {

/// The marks of all processes: `path`, mapped for as long as this process lives.
std::shared_ptr<Marks> marks_in(const char* path) {
  const int file = open(path, O_RDWR | O_CREAT, 0600);
  void* const memory = file < 0 || ftruncate(file, sizeof(Marks)) != 0
                           ? MAP_FAILED
                           : mmap(nullptr, sizeof(Marks), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  if (memory == MAP_FAILED) throw std::runtime_error(fmt::format("cannot map {}", path));
  close(file);
  return {static_cast<Marks*>(memory), [](Marks*) {}};
}

/// What a process holds of the machine, between two sessions: not what the allocator keeps free, nor stacks of threads
/// that have ended.
struct Held {
  std::ptrdiff_t descriptors = 0;
  long kilobytes = 0;
};

Held held_now() {
  const std::filesystem::directory_iterator open("/proc/self/fd"), end;
  std::ifstream pages("/proc/self/statm");
  long all = 0, resident = 0, shared = 0;
  pages >> all >> resident >> shared;
  const struct mallinfo2 memory = mallinfo2();
  const auto allocated = static_cast<long>((memory.uordblks + memory.hblkhd) / 1024);
  return {std::distance(open, end), allocated + shared * (sysconf(_SC_PAGESIZE) / 1024)};
}

/// Some tensors become so large that they travel without the ring where they lie in memory that peers reach.
void enlarge(PropertyProgram& program) {
  for (PropertyStep& step : program.steps) {
    for (PropertyOp& op : step.ops) {
      for (PropertyTensor& tensor : op.tensors) {
        if (tensor.inner.size() == 2) tensor.inner.back() *= 4000;
      }
    }
  }
}

class Job {
 public:
  explicit Job(char** arguments)
      : marks_(marks_in(arguments[1])),
        next_(std::strtoull(arguments[2], nullptr, 10)),
        seconds_(std::strtod(arguments[3], nullptr)) {
    if (arguments[4]) stall_abort_ = std::strtod(arguments[4], nullptr);
  }

  /// Returns the exit code.
  int run() {
    while (one_program()) {
      if (early_.descriptors == 0 && elapsed() >= seconds_ / 10) early_ = held_now();
    }
    const Held now = held_now();
    std::printf("rank %d: %d programs, %d operations; after a tenth and at the end %td, %td descriptors, %ld, %ld KB\n",
                rank_, programs_, operations_, early_.descriptors, now.descriptors, early_.kilobytes, now.kilobytes);
    if (seconds_ < 60) return good_ ? 0 : 1;
    const bool flat = now.descriptors <= early_.descriptors && now.kilobytes <= early_.kilobytes + 1024;
    if (!flat) std::printf("problem: rank %d has grown\n", rank_);
    return good_ && flat ? 0 : 1;
  }

 private:
  double elapsed() const { return std::chrono::duration<double>(Clock::now() - start_).count(); }

  /// The next program for as many ranks as there are. False: that was the last one.
  bool one_program() {
    while (size_ && draw_program(next_).ranks != *size_) ++next_;
    PropertyProgram program = draw_program(next_);
    if (adopts_) enlarge(program);
    Config config = config_of(program);
    config.fake_nodes.clear();
    if (stall_abort_ > 0 && size_) {  // the first session starts MPI, which may take long
      config.stall_report_seconds = 1;
      config.stall_abort_seconds = stall_abort_;
    }
    if (const char* const device = std::getenv("KOLO_XPMEM")) config.set("KOLO_XPMEM", device);
    SharedState shared(program, Checks::model, marks_);
    Session* adopting = nullptr;
    AdoptedMemory adopted([&](void* data, std::size_t bytes) { adopting->adopt(data, bytes); });
    Session session(config);
    adopting = &session;
    if (adopts_) shared.adopted = &adopted;
    rank_ = session.rank();
    if (!std::exchange(size_, session.size())) {
      if (rank_ == 0) {
        marks_->given_up = 0;
        marks_->patience = stall_abort_ > 0 ? 2 : 20;  // less than the sessions'
        for (auto& mark : marks_->reached) mark = 0;
      }
      std::printf("rank %d is pid %d\n", rank_, static_cast<int>(getpid()));
      std::fflush(stdout);
      return true;
    }
    play(session, program, shared);
    if (const auto late = session.stats().late_wakeups) shared.problem(fmt::format("{} late wake-ups", late));
    const bool last = rank_ == 0 && elapsed() >= seconds_;
    const auto all = session.all_gather_object("what each rank knows", (last ? "1" : "0") + shared.to_text());
    for (int other = 0; other < session.size(); ++other) {
      if (other != rank_) shared.add(all[static_cast<std::size_t>(other)].substr(1));
    }
    shared.check();
    for (const std::string& problem : shared.problems()) {
      std::printf("problem: rank %d, seed %llu: %s\n", rank_, static_cast<unsigned long long>(next_), problem.c_str());
      good_ = false;
    }
    ++next_;
    ++programs_;
    operations_ += program.operations();
    return all[0][0] == '0';
  }

  using Clock = std::chrono::steady_clock;
  const std::shared_ptr<Marks> marks_;
  std::uint64_t next_;  // seed
  const double seconds_;
  double stall_abort_ = 0;
  const bool adopts_ = std::getenv("KOLO_TEST_MEMORY") && std::string(std::getenv("KOLO_TEST_MEMORY")) == "adopted";
  const Clock::time_point start_ = Clock::now();
  std::optional<int> size_;
  int rank_ = 0, programs_ = 0, operations_ = 0;
  bool good_ = true;
  Held early_;
};

}  // namespace
}  // namespace kolo::testing

int main(int argc, char** argv) {
  if (argc < 4) return 2;
  try {
    return kolo::testing::Job(argv).run();
  } catch (const std::exception& error) {
    std::printf("ended: %s\n", error.what());
    std::fflush(stdout);
    return 3;
  }
}
