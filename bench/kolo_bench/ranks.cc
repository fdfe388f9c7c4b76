#include "bench/kolo_bench/ranks.h"

#include <numeric>

namespace kolo::bench {
namespace {

MpiComm node_of(MPI_Comm comm, int rank) {
  MPI_Comm node = MPI_COMM_NULL;
  check_mpi(MPI_Comm_split_type(comm, MPI_COMM_TYPE_SHARED, rank, MPI_INFO_NULL, &node), "MPI_Comm_split_type");
  return MpiComm(node);
}

std::int64_t sum_over(MPI_Comm comm, std::int64_t mine) {
  std::int64_t sum = 0;
  check_mpi(MPI_Allreduce(&mine, &sum, 1, MPI_INT64_T, MPI_SUM, comm), "MPI_Allreduce");
  return sum;
}

}  // namespace

Ranks::Ranks(MPI_Comm comm) : comm_(duplicate(comm)) {
  check_mpi(MPI_Comm_rank(comm_.get(), &rank_), "MPI_Comm_rank");
  check_mpi(MPI_Comm_size(comm_.get(), &size_), "MPI_Comm_size");
  node_ = node_of(comm_.get(), rank_);
  check_mpi(MPI_Comm_rank(node_.get(), &rank_on_node_), "MPI_Comm_rank");
  nodes_ = static_cast<int>(sum(rank_on_node_ == 0 ? 1 : 0));
}

void Ranks::barrier() const {
  check_mpi(MPI_Barrier(comm_.get()), "MPI_Barrier");
}

std::vector<std::string> Ranks::gather(const std::string& mine) const {
  const int bytes = static_cast<int>(mine.size());
  std::vector<int> counts(static_cast<std::size_t>(size_)), offsets(counts.size());
  check_mpi(MPI_Allgather(&bytes, 1, MPI_INT, counts.data(), 1, MPI_INT, comm_.get()), "MPI_Allgather");
  std::exclusive_scan(counts.begin(), counts.end(), offsets.begin(), 0);
  std::string all(static_cast<std::size_t>(offsets.back() + counts.back()), '\0');
  check_mpi(
      MPI_Allgatherv(mine.data(), bytes, MPI_CHAR, all.data(), counts.data(), offsets.data(), MPI_CHAR, comm_.get()),
      "MPI_Allgatherv");
  std::vector<std::string> texts;
  for (std::size_t rank = 0; rank < counts.size(); ++rank) {
    texts.push_back(all.substr(static_cast<std::size_t>(offsets[rank]), static_cast<std::size_t>(counts[rank])));
  }
  return texts;
}

std::int64_t Ranks::sum(std::int64_t mine) const {
  return sum_over(comm_.get(), mine);
}
std::int64_t Ranks::sum_on_node(std::int64_t mine) const {
  return sum_over(node_.get(), mine);
}

void Ranks::combine(std::span<double> values, MPI_Op op) const {
  check_mpi(MPI_Allreduce(MPI_IN_PLACE, values.data(), static_cast<int>(values.size()), MPI_DOUBLE, op, comm_.get()),
            "MPI_Allreduce");
}

std::vector<int> Ranks::slowest(std::span<const double> values) const {
  struct Located {
    double value;
    int rank;
  };
  std::vector<Located> all;
  for (const double value : values) all.push_back({value, rank_});
  check_mpi(
      MPI_Allreduce(MPI_IN_PLACE, all.data(), static_cast<int>(all.size()), MPI_DOUBLE_INT, MPI_MAXLOC, comm_.get()),
      "MPI_Allreduce");
  std::vector<int> ranks;
  for (const Located& one : all) ranks.push_back(one.rank);
  return ranks;
}

int Ranks::least(int mine) const {
  check_mpi(MPI_Allreduce(MPI_IN_PLACE, &mine, 1, MPI_INT, MPI_MIN, comm_.get()), "MPI_Allreduce");
  return mine;
}

}  // namespace kolo::bench
