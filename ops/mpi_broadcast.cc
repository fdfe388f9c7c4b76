// The root sends a segment of its input; the others receive it into their output. Packed segments pass through staging.

#include <cstring>

#include "ops/mpi_transfer.h"

namespace kolo {

void MpiTransfer::begin_broadcast() {
  if (is_root()) (void)packed_input();
  if (group_.ranks == 1) return;
  std::byte* values = is_root() ? input_ : output_;  // not written on the root
  check_mpi(MPI_Ibcast(values, bytes(), MPI_BYTE, bucket_->signature.root, group_.exchange.get(), &request_),
            "MPI_Ibcast");
}

void MpiTransfer::finish_broadcast() {
  unpack_output();
  const bool copy_on_root = is_root() && !staged_ && input_ != output_;
  if (copy_on_root) std::memcpy(output_, input_, static_cast<std::size_t>(bytes()));
}

}  // namespace kolo
