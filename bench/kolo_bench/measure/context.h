#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include <kolo/session.h>

#include "bench/kolo_bench/measure/buffer_placement.h"
#include "bench/kolo_bench/measure/candidate.h"
#include "bench/kolo_bench/measure/checker.h"
#include "bench/kolo_bench/measure/timing.h"
#include "bench/kolo_bench/options.h"
#include "bench/kolo_bench/peers/peer.h"
#include "bench/kolo_bench/ranks.h"
#include "bench/kolo_bench/report/result.h"
#include "bench/kolo_bench/report/table.h"
#include "bench/kolo_bench/watch.h"

namespace kolo::bench {

/// The shared state of measurements: ranks, session or backends, placement of buffers, peer, and results. One per run;
/// making and destroying it are collective.
class BenchContext {
 public:
  /// Errors: UsageError, reported.
  BenchContext(const Options& options, const Ranks& ranks);

  const Options& options() const { return options_; }
  const Ranks& ranks() const { return ranks_; }
  Session& session() { return *session_; }
  const Config& config() const { return config_; }
  /// Of a run without session.
  const World& world_of_ranks() const { return *world_; }
  /// The group in which kolo's operations run: all ranks.
  const Group& group() const { return group_; }
  /// A new one of all ranks, with Order::program.
  Group ordered_group();
  Watch& watch() { return watch_; }
  Report& report() { return report_; }
  const WorldInfo& world() const { return report_.world; }

  /// kolo as a candidate: through the session, or --direct.
  std::unique_ptr<Candidate> kolo(const Work& work);

  /// Where the buffers lie.
  const BufferPlacement& place() const { return *place_; }
  /// The implementation that kolo is compared with; null: none.
  Peer* peer() const { return peer_.get(); }
  /// Its name, if there is one, and with --mpi-algorithms that of its fastest way.
  std::vector<std::string> peers() const;

  /// Memory of the kind that the options name, or of another, zeroed.
  Storage storage(std::size_t bytes) { return storage(bytes, options_.memory); }
  Storage storage(std::size_t bytes, BufferMemory memory);
  /// Writes values into the work's tensors.
  void fill(const Work& work) const;

  /// Prints the head of the table. peers: the names that every result is compared with; shown: the options in the head.
  void begin(const std::vector<std::string>& peers) { begin(peers, options_); }
  void begin(const std::vector<std::string>& peers, const Options& shown);
  /// Prints results of one size, and keeps them.
  void add(std::vector<Result> results);
  /// Prints the table's last lines.
  void end();

  /// Prints a line on rank 0's stderr, the same line only once.
  void note(const std::string& line);

  /// Runs `candidate` on fresh values as often as the options demand, and returns the number of wrong elements on all
  /// ranks; the first is reported. Nothing with -c 0.
  std::optional<std::int64_t> wrong_elements(const Work& work, Candidate& candidate, bool any_order);

  /// What knows the results of work on values that only this `seed` has. `any_order`: of values whose sums have the
  /// same bits in any order.
  Checker checker(const Work& work, bool any_order, std::uint64_t seed);
  /// Counts and reports the wrong elements on all ranks; `when` tells which of the candidate's runs it was.
  std::int64_t count_wrong(const Work& work, const Candidate& candidate, const Checker& checker, const char* when);

 private:
  std::int64_t device_peak() const;
  void print(const std::string& text);

  void describe(const World& world);

  const Options& options_;
  const Ranks& ranks_;
  std::unique_ptr<BufferPlacement> place_;
  Config config_;
  Watch watch_;
  std::optional<World> world_;  // of backends that are called directly
  std::optional<Session> session_;
  Group group_{};
  std::unique_ptr<Peer> peer_;
  Report report_;
  std::unique_ptr<Table> table_;
  std::set<std::string> noted_;
  bool one_node_ = true;
  bool yields_ = false;
};

/// Checks kolo's timed runs by the last one: it works on fresh values, and its outputs are poisoned first. So an
/// operation in place, whose values change with every run, can be checked, too.
class TimedCheck final : public LastIteration {
 public:
  /// All of them must outlive this.
  TimedCheck(BenchContext& context, const Work& work, Candidate& kolo);
  void before() override;
  void after() override;
  /// The wrong elements of that run and of wrong_elements(), which follows. Nothing with -c 0.
  std::optional<std::int64_t> all_wrong();

 private:
  BenchContext& context_;
  const Work& work_;
  Candidate& kolo_;
  const Checker checker_;
  std::int64_t wrong_ = 0;
};

/// The first candidate's times as a result, the others' as its peers. Collective.
Result make_result(const BenchContext& context, const Work& work, std::span<Candidate* const> candidates,
                   const std::vector<Series>& series);

/// Measures what the options ask for. Errors: UsageError, reported; Error.
void run_sweep(BenchContext& context);
void run_buckets(BenchContext& context);
void run_latency(BenchContext& context);
void run_overlap(BenchContext& context);
void run_beside(BenchContext& context);
void run_pack(BenchContext& context);
void run_tune(BenchContext& context);
/// `mpi_calls` counts those of this process so far.
void run_idle(BenchContext& context, const std::function<std::int64_t()>& mpi_calls);

}  // namespace kolo::bench
