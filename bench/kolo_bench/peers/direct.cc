#include <fmt/format.h>
#include <sched.h>

#include <algorithm>

#include "bench/kolo_bench/measure/candidate.h"
#include "bench/kolo_bench/options.h"
#include "ops/bucket.h"
#include "ops/host/process.h"

namespace kolo::bench {
namespace {

/// Spins, then yields, like a thread that drives operations which poll in a session.
class Spinner {
 public:
  explicit Spinner(bool yields) : spins_(yields ? most : 0) {}
  void wait() {
    if (spins_ < most) {
      ++spins_;
      pause_briefly();
    } else {
      (void)sched_yield();
    }
  }

 private:
  static constexpr int most = 500;  // some twenty microseconds
  int spins_;
};

struct Job {
  Backend* backend;
  Bucket bucket;
};

class Direct final : public Candidate {
 public:
  Direct(std::vector<Job> jobs, std::vector<std::unique_ptr<Backend>> own, bool yields)
      : own_(std::move(own)), jobs_(std::move(jobs)), yields_(yields) {}

  std::string_view name() const override { return "kolo"; }
  std::string_view method() const override { return method_; }

  void run() override {
    Spinner spinner(yields_);
    if (jobs_.size() == 1) {
      const auto operation = jobs_[0].backend->start(jobs_[0].bucket);
      while (!is_done(*operation)) spinner.wait();
      return;
    }
    running_.clear();
    for (std::size_t next = 0; next < jobs_.size() || !running_.empty();) {
      const bool held = std::ranges::any_of(running_, [](const auto& operation) { return operation->holds_backend(); });
      if (next < jobs_.size() && !held) {
        running_.push_back(jobs_[next].backend->start(jobs_[next].bucket));
        ++next;
      }
      if (std::erase_if(running_, [&](const auto& operation) { return is_done(*operation); }) == 0 &&
          next == jobs_.size())
        spinner.wait();
    }
  }

 private:
  bool is_done(Operation& operation) {
    if (!operation.step()) return false;
    method_ = operation.method();
    return true;
  }

  std::vector<std::unique_ptr<Backend>> own_;  // of pairs
  std::vector<Job> jobs_;
  std::vector<std::unique_ptr<Operation>> running_;
  bool yields_;
  const char* method_ = "";
};

Backend& backend_for(const BackendList& backends, const Signature& signature) {
  for (const auto& backend : backends) {
    if (backend->supports(signature)) return *backend;
  }
  throw UsageError(fmt::format("no backend of this world runs {}; try another type, operation or KOLO_BACKEND",
                               to_string(signature)));
}

/// The backend of sends from one rank to another.
std::unique_ptr<Backend> pair_backend(const BackendList& backends, const Signature& signature, int from, int to,
                                      int rank, int ranks) {
  GroupInfo pair;
  pair.kind = GroupKind::pair;
  pair.id = static_cast<GroupId>(from) * static_cast<GroupId>(ranks) + static_cast<GroupId>(to);
  pair.name = fmt::format("{} to {}", from, to);
  pair.ranks = {std::min(from, to), std::max(from, to)};
  pair.rank = rank == pair.ranks[0] ? 0 : 1;
  for (const auto& backend : backends) {
    if (auto made = backend->for_group(pair); made && made->supports(signature)) return made;
  }
  throw UsageError("no backend of this world sends from rank to rank; leave out --direct");
}

/// In a ring: each rank sends to the next one.
std::unique_ptr<Candidate> direct_ring(const BackendList& backends, int rank, int ranks, bool yields,
                                       const Work& work) {
  std::vector<std::unique_ptr<Backend>> own;
  const int next = (rank + 1) % ranks, last = (rank + ranks - 1) % ranks;
  own.push_back(pair_backend(backends, work.signature, rank, next, rank, ranks));
  own.push_back(pair_backend(backends, work.signature, last, rank, rank, ranks));
  std::vector<Job> jobs;
  for (const BucketTensor& lane : work.lanes) {
    Signature send = work.signature, receive = work.signature;
    send.root = rank < next ? 0 : 1;  // the sender's index in the pair
    receive.root = last < rank ? 0 : 1;
    jobs.push_back({own[0].get(), {send, {{lane.in, {}}}}});
    jobs.push_back({own[1].get(), {receive, {{lane.out, lane.out}}}});
  }
  return std::make_unique<Direct>(std::move(jobs), std::move(own), yields);
}

}  // namespace

std::unique_ptr<Candidate> direct(const BackendList& backends, int rank, int ranks, bool yields, const Work& work) {
  if (work.signature.kind == OpKind::send_recv) return direct_ring(backends, rank, ranks, yields, work);
  Backend& backend = backend_for(backends, work.signature);
  std::vector<Job> jobs;
  for (const BucketTensor& lane : work.lanes)
    jobs.push_back({&backend, {work.signature, {lane}, {}, divisor_of(work.signature, ranks)}});
  return std::make_unique<Direct>(std::move(jobs), std::vector<std::unique_ptr<Backend>>{}, yields);
}

}  // namespace kolo::bench
