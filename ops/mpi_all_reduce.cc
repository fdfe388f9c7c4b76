// A small segment: every rank sends all of it to every rank (Iallgather), and all reduce it alike. A larger one: rank r
// gets slice r of every other rank (Ialltoallv), reduces these and its own in rank order, and sends the result to all
// (Iallgatherv): every element crosses the wire twice, and is added once. Not MPI_Allreduce: its order of addition
// changes with an element's place.

#include "ops/mpi_transfer.h"
#include "ops/reduce.h"

namespace kolo {

bool MpiTransfer::travels_whole() const {
  return bytes() <= tuning_.small && static_cast<std::size_t>(bytes()) * sources_.size() <= received_.size();
}

void MpiTransfer::begin_all_reduce() {
  const std::byte* input = packed_input();
  if (group_.ranks == 1) return;
  if (!travels_whole()) return exchange_slices();
  check_mpi(
      MPI_Iallgather(input, bytes(), MPI_BYTE, received_.data(), bytes(), MPI_BYTE, group_.exchange.get(), &request_),
      "MPI_Iallgather");
}

void MpiTransfer::exchange_slices() {
  const int mine = static_cast<int>(static_cast<std::size_t>(slice(group_.rank).count()) * element_bytes());
  int others = 0;
  for (int rank = 0; rank < group_.ranks; ++rank) {
    const auto r = static_cast<std::size_t>(rank);
    const bool self = rank == group_.rank;  // the own slice stays where it is
    slice_offsets_[r] = static_cast<int>(static_cast<std::size_t>(slice(rank).begin) * element_bytes());
    slice_counts_[r] = self ? 0 : static_cast<int>(static_cast<std::size_t>(slice(rank).count()) * element_bytes());
    offsets_[r] = others * mine;
    counts_[r] = self ? 0 : mine;
    if (!self) ++others;
  }
  check_mpi(MPI_Ialltoallv(input_, slice_counts_.data(), slice_offsets_.data(), MPI_BYTE, received_.data(),
                           counts_.data(), offsets_.data(), MPI_BYTE, group_.exchange.get(), &request_),
            "MPI_Ialltoallv");
}

void MpiTransfer::proceed_all_reduce() {
  const bool whole = group_.ranks == 1 || travels_whole();
  const Slice mine = whole ? Slice{0, segment_.count} : slice(group_.rank);
  const std::size_t offset = static_cast<std::size_t>(mine.begin) * element_bytes();
  for (std::size_t r = 0; r < sources_.size(); ++r) {
    const bool in_place = static_cast<int>(r) == group_.rank;
    if (in_place)
      sources_[r] = input_ + offset;
    else
      sources_[r] =
          received_.data() + (whole ? r * static_cast<std::size_t>(bytes()) : static_cast<std::size_t>(offsets_[r]));
  }
  void* const destination = output_ + offset;
  reduce(reduction_of(bucket_->signature, group_.ranks), sources_, {&destination, 1},
         static_cast<std::size_t>(mine.count()));
  if (!whole) gather_slices();
}

void MpiTransfer::gather_slices() {
  // The exchange has arrived, so its lists are free: slice_offsets_ still holds, and the own slice counts now.
  for (int rank = 0; rank < group_.ranks; ++rank) {
    slice_counts_[static_cast<std::size_t>(rank)] =
        static_cast<int>(static_cast<std::size_t>(slice(rank).count()) * element_bytes());
  }
  check_mpi(MPI_Iallgatherv(MPI_IN_PLACE, 0, MPI_BYTE, output_, slice_counts_.data(), slice_offsets_.data(), MPI_BYTE,
                            group_.gather.get(), &request_),
            "MPI_Iallgatherv");
}

}  // namespace kolo
