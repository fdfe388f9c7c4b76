// An algorithm is a number in a control variable of Open MPI, which a communicator reads when it is made. The names are
// those of the variable's enumeration, so whatever an Open MPI has is measured. (The functions' second names are used
// here, since what sets variables up moves no data and need not be counted: see mpi_calls.cc.)

#include "bench/kolo_bench/peers/mpi_algorithms.h"

#include <fmt/format.h>

#include <cstdlib>
#include <memory>
#include <string_view>
#include <utility>

#include "bench/kolo_bench/options.h"
#include "bench/kolo_bench/peers/peer.h"

namespace kolo::bench {
namespace {

/// The call as Open MPI's variables name it.
std::string_view call_of(OpKind kind) {
  switch (kind) {
    case OpKind::all_reduce: return "allreduce";
    case OpKind::reduce: return "reduce";
    case OpKind::broadcast: return "bcast";
    case OpKind::all_gather: return "allgather";
    case OpKind::reduce_scatter: return "reduce_scatter_block";
    case OpKind::all_to_all: return "alltoall";
    case OpKind::gather: return "gather";
    default: return "scatter";
  }
}

/// A control variable with named values.
class Variable {
 public:
  explicit Variable(std::string name) : name_(std::move(name)) {
    int level = MPI_THREAD_SINGLE;
    check(PMPI_T_init_thread(MPI_THREAD_SINGLE, &level), "PMPI_T_init_thread");
    int index = 0, count = 0;
    check(PMPI_T_cvar_get_index(name_.c_str(), &index), "PMPI_T_cvar_get_index");
    check(PMPI_T_cvar_get_info(index, nullptr, nullptr, nullptr, nullptr, &values_, nullptr, nullptr, nullptr, nullptr),
          "PMPI_T_cvar_get_info");
    check(PMPI_T_cvar_handle_alloc(index, nullptr, &handle_, &count), "PMPI_T_cvar_handle_alloc");
    check(PMPI_T_cvar_read(handle_, &before_), "PMPI_T_cvar_read");
  }
  ~Variable() {
    (void)PMPI_T_cvar_write(handle_, &before_);
    (void)PMPI_T_cvar_handle_free(&handle_);
    (void)PMPI_T_finalize();
  }
  Variable(const Variable&) = delete;
  Variable& operator=(const Variable&) = delete;

  std::vector<std::pair<int, std::string>> values() const {
    std::vector<std::pair<int, std::string>> all;
    char text[256] = {};
    int count = 0, length = sizeof(text);
    check(PMPI_T_enum_get_info(values_, &count, text, &length), "PMPI_T_enum_get_info");
    for (int index = 0; index < count; ++index) {
      int value = 0;
      length = sizeof(text);
      check(PMPI_T_enum_get_item(values_, index, &value, text, &length), "PMPI_T_enum_get_item");
      all.emplace_back(value, text);
    }
    return all;
  }
  void set(int value) const { check(PMPI_T_cvar_write(handle_, &value), "PMPI_T_cvar_write"); }

 private:
  void check(int rc, const char* call) const {
    if (rc == MPI_SUCCESS) return;
    throw UsageError(
        fmt::format("--mpi-algorithms: {} of {} failed with code {} (this MPI lets nobody choose); leave it "
                    "out",
                    call, name_, rc));
  }

  std::string name_;
  MPI_T_enum values_ = MPI_T_ENUM_NULL;
  MPI_T_cvar_handle handle_ = MPI_T_CVAR_HANDLE_NULL;
  int before_ = 0;
};

/// Whether Open MPI's algorithm answers these ranks with an error.
bool is_refused(std::string_view algorithm, int ranks) {
  return algorithm == "two_proc" && ranks != 2;
}

}  // namespace

void let_mpi_algorithms_be_forced() {
  (void)::setenv("OMPI_MCA_coll_tuned_use_dynamic_rules", "1", 1);  // NOLINT(concurrency-mt-unsafe): no threads yet
}

std::vector<MpiAlgorithm> mpi_algorithms(const Ranks& ranks, OpKind kind) {
  std::unique_ptr<Variable> variable;
  std::vector<std::pair<int, std::string>> values;
  cli::collectively(ranks, [&] {
    if (const auto version = mpi_version(); !version.starts_with("Open MPI"))
      throw UsageError(fmt::format("--mpi-algorithms chooses among Open MPI's, and this is {}; leave it out", version));
    variable = std::make_unique<Variable>(fmt::format("coll_tuned_{}_algorithm", call_of(kind)));
    values = variable->values();
  });
  std::vector<MpiAlgorithm> all;
  for (const auto& [value, name] : values) {
    if (value == 0 || is_refused(name, ranks.size())) continue;  // 0: Open MPI's own choice
    cli::collectively(ranks, [&, value = value] { variable->set(value); });
    all.push_back({name, duplicate(ranks.comm())});
  }
  return all;
}

}  // namespace kolo::bench
