#pragma once

#include <mpi.h>

#include <memory>
#include <vector>

#include <kolo/backend.h>

#include "ops/mpi/channel.h"

namespace kolo {

/// The backend that works anywhere: non-blocking messages between the ranks of `comm`, which it duplicates. Making and
/// destroying it are collective (destroying it after abandon() or a failure is not). Throws Error{backend}.
///
/// Its groups and pairs share the duplicate, and staging; for_group() and ending a group involve no other rank. A group
/// has tags by its number: for_group() throws Error{backend} while a group with another member in common has the same
/// ones, which is after some million groups. A group that has the number of the world, 0, has the tags of this
/// backend's own operations: so only while there are none.
///
/// Serves every operation on host tensors, reductions where reducible(); a pair's send_recv. Values are combined as
/// Association says of `places`: where all share a cache to the bits of the local backend.
/// Needs polling.
///
/// An operation that is destroyed unfinished breaks the group on this rank. MPI can withdraw a receive to which no
/// message has begun to come; one that is coming is awaited for 0.1 s. It cannot withdraw what is sent: a tensor that
/// travels without being packed may be read by later MPI calls of the process until the process ends, and written if
/// its peer stands still in the middle of a message.
std::unique_ptr<Backend> mpi_backend(MPI_Comm comm, const MpiTuning& tuning = {}, RankPlaces places = {});
std::unique_ptr<Backend> mpi_backend(std::shared_ptr<MpiChannel> channel);

}  // namespace kolo
