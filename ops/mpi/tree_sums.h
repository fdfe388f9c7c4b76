#pragma once

#include "ops/mpi/transfer.h"

namespace kolo {

/// all_reduce, and reduce, of a chunk along its transfer's tree(): as of MpiMethod.
void begin_tree(MpiTransfer& transfer);
bool proceed_tree(MpiTransfer& transfer);
/// Where the result lies after that, on ranks that have one.
std::byte* result_of_tree(const MpiTransfer& transfer);

}  // namespace kolo
