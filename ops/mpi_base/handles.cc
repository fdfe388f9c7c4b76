#include "ops/mpi_base/handles.h"

#include <fmt/format.h>

#include <numeric>
#include <string>
#include <string_view>

namespace kolo {
namespace {

std::string error_text(int rc) {
  std::string text(MPI_MAX_ERROR_STRING, '\0');
  int length = 0;
  if (MPI_Error_string(rc, text.data(), &length) != MPI_SUCCESS) return fmt::format("error {}", rc);
  text.resize(static_cast<std::size_t>(length));
  return text;
}

std::string_view file_name(std::string_view path) {
  return path.substr(path.find_last_of('/') + 1);
}

[[noreturn]] void fail(int rc, const char* call, Where where) {
  throw Error(ErrorCode::backend,
              fmt::format("{} failed ({}) at {}:{}", call, error_text(rc), file_name(where.file), where.line));
}

}  // namespace

void MpiCommTraits::destroy(Raw comm) noexcept {
  int finalized = 0;
  (void)MPI_Finalized(&finalized);
  if (!finalized) (void)MPI_Comm_free(&comm);
}

MpiComm duplicate(MPI_Comm comm) {
  MPI_Comm copy = MPI_COMM_NULL;
  check_mpi(MPI_Comm_dup(comm, &copy), "MPI_Comm_dup");
  MpiComm owned(copy);
  check_mpi(MPI_Comm_set_errhandler(copy, MPI_ERRORS_RETURN), "MPI_Comm_set_errhandler");
  return owned;
}

MpiGroupHandle group_of(MPI_Comm comm) {
  MPI_Group group = MPI_GROUP_NULL;
  check_mpi(MPI_Comm_group(comm, &group), "MPI_Comm_group");
  return MpiGroupHandle(group);
}

std::vector<std::vector<std::byte>> gather_all(MPI_Comm comm, std::span<const std::byte> mine) {
  int size = 0;
  check_mpi(MPI_Comm_size(comm, &size), "MPI_Comm_size");
  const int bytes = static_cast<int>(mine.size());
  std::vector<int> counts(static_cast<std::size_t>(size)), offsets(counts.size());
  check_mpi(MPI_Allgather(&bytes, 1, MPI_INT, counts.data(), 1, MPI_INT, comm), "MPI_Allgather");
  std::exclusive_scan(counts.begin(), counts.end(), offsets.begin(), 0);
  std::vector<std::byte> all(static_cast<std::size_t>(offsets.back() + counts.back()));
  check_mpi(MPI_Allgatherv(mine.data(), bytes, MPI_BYTE, all.data(), counts.data(), offsets.data(), MPI_BYTE, comm),
            "MPI_Allgatherv");
  std::vector<std::vector<std::byte>> result;
  for (std::size_t rank = 0; rank < counts.size(); ++rank) {
    const auto first = all.begin() + offsets[rank];
    result.emplace_back(first, first + counts[rank]);
  }
  return result;
}

MpiGathering::MpiGathering(MPI_Comm comm) : comm_(comm) {
  check_mpi(MPI_Comm_rank(comm, &rank_), "MPI_Comm_rank");
  check_mpi(MPI_Comm_size(comm, &size_), "MPI_Comm_size");
}

int MpiGathering::lowest_on_node() {
  MPI_Comm made = MPI_COMM_NULL;
  check_mpi(MPI_Comm_split_type(comm_, MPI_COMM_TYPE_SHARED, 0, MPI_INFO_NULL, &made), "MPI_Comm_split_type");
  const MpiComm node(made);
  check_mpi(MPI_Comm_set_errhandler(made, MPI_ERRORS_RETURN), "MPI_Comm_set_errhandler");
  int lowest = rank_;
  check_mpi(MPI_Allreduce(MPI_IN_PLACE, &lowest, 1, MPI_INT, MPI_MIN, made), "MPI_Allreduce");
  return lowest;
}

void check_mpi(int rc, const char* call, Where where) {
  if (rc != MPI_SUCCESS) fail(rc, call, where);
}

}  // namespace kolo
