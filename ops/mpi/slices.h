#pragma once

#include "ops/mpi/transfer.h"

namespace kolo {

/// Slice `rank` of a segment: what that rank reduces. In elements of the segment.
Slice slice_of_rank(const MpiTransfer& transfer, int rank);

/// Starts the exchange of slices on MpiGroup::exchange: each rank receives its slice of every other rank's input().
/// Leaves in send_counts and send_offsets how long the slices are and where they begin, this rank's counting as empty.
void exchange_slices(MpiTransfer& transfer);

/// Puts the length of this rank's slice into send_counts too: for a second phase that gathers slices. Only once the
/// exchange has arrived.
void count_own_slice(MpiTransfer& transfer);

/// Reduces this rank's slice, or all of the segment if it travels whole, in rank order: the inputs received and this
/// rank's own input(). `to` stands for the begin of the segment.
void reduce_received(MpiTransfer& transfer, std::byte* to);

}  // namespace kolo
