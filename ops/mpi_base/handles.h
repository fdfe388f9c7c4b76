#pragma once

#include <mpi.h>

#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include <kolo/backend.h>
#include <kolo/error.h>
#include <kolo/group.h>

#include <kolo/detail/unique.h>

#include "ops/host/gathering.h"

namespace kolo {

struct MpiCommTraits {
  using Raw = MPI_Comm;
  static Raw null() noexcept { return MPI_COMM_NULL; }
  static void destroy(Raw comm) noexcept;  // collective; does nothing once MPI is finalized
};

/// Owns a communicator that this library made. Destroying it is collective.
using MpiComm = Unique<MpiCommTraits>;

struct MpiGroupTraits {
  using Raw = MPI_Group;
  static Raw null() noexcept { return MPI_GROUP_NULL; }
  static void destroy(Raw group) noexcept { (void)MPI_Group_free(&group); }
};
using MpiGroupHandle = Unique<MpiGroupTraits>;

/// The ranks of `comm`. Throws Error{backend}.
MpiGroupHandle group_of(MPI_Comm comm);

/// A copy of `comm` whose errors are returned, not fatal. Collective. Throws Error{backend}.
MpiComm duplicate(MPI_Comm comm);

/// The bytes of each rank. Collective. Throws Error{backend}.
std::vector<std::vector<std::byte>> gather_all(MPI_Comm comm, std::span<const std::byte> mine);

/// Of the ranks of `comm`, which must outlive it.
class MpiGathering final : public Gathering {
 public:
  explicit MpiGathering(MPI_Comm comm);
  int rank() const override { return rank_; }
  int size() const override { return size_; }
  std::vector<std::vector<std::byte>> all(std::span<const std::byte> mine) override { return gather_all(comm_, mine); }
  int lowest_on_node() override;

 private:
  const MPI_Comm comm_;
  int rank_ = 0, size_ = 0;
};

/// Throws Error{backend} with MPI's text, the call's name and the caller's file and line unless `rc` is MPI_SUCCESS.
///
///     check_mpi(MPI_Ibarrier(comm, &request), "MPI_Ibarrier");
void check_mpi(int rc, const char* call, Where where = Where::here());

}  // namespace kolo
