// The root sends a segment of its input; the others receive it into their output. Packed segments pass through staging.

#include <cstring>

#include "ops/mpi/transfer.h"

namespace kolo {
namespace {

void begin(MpiTransfer& transfer) {
  if (transfer.is_root()) transfer.pack_input();
  if (transfer.ranks() == 1) return;
  std::byte* values = transfer.is_root() ? transfer.input() : transfer.output();  // not written on the root
  check_mpi(MPI_Ibcast(values, transfer.bytes(), MPI_BYTE, transfer.signature().root, transfer.group().exchange.get(),
                       transfer.request()),
            "MPI_Ibcast");
}

void proceed(MpiTransfer&) {}

void finish(MpiTransfer& transfer) {
  transfer.unpack_output();
  const bool copy_on_root = transfer.is_root() && !transfer.staged() && transfer.input() != transfer.output();
  if (copy_on_root) std::memcpy(transfer.output(), transfer.input(), static_cast<std::size_t>(transfer.bytes()));
}

}  // namespace

constinit const MpiMethod mpi_broadcast{begin, proceed, finish};

}  // namespace kolo
