#include "ops/mpi_base/handles.h"

#include <fmt/format.h>

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

MpiComm communicator_of(MPI_Comm comm, const GroupInfo& group) {
  MPI_Group made_group = MPI_GROUP_NULL;
  const MpiGroupHandle all = group_of(comm);
  check_mpi(MPI_Group_incl(all.get(), group.size(), group.ranks.data(), &made_group), "MPI_Group_incl");
  const MpiGroupHandle members(made_group);
  MPI_Comm made = MPI_COMM_NULL;
  const int tag = static_cast<int>(group.id % 32768);  // keeps groups apart that are made at once
  check_mpi(MPI_Comm_create_group(comm, members.get(), tag, &made), "MPI_Comm_create_group");
  return MpiComm(made);
}

void check_mpi(int rc, const char* call, Where where) {
  if (rc != MPI_SUCCESS) fail(rc, call, where);
}

}  // namespace kolo
