#include "ops/local/share.h"

#include <cstring>

namespace kolo {

void LocalShare::enter() const {
  if (!board_.enter(rank_))
    throw Error(ErrorCode::aborted, "a rank of the group left before the operation was complete");
}

bool LocalShare::proceed(StepBudget& budget) {
  budget_ = &budget;
  seen_ = 0;
  local_method(signature().kind)(*this);
  return seen_ == done_;
}

void LocalShare::copy(std::size_t index, const LocalPlace& from, const LocalPlace& to, std::int64_t count) {
  in_chunks(count, [&](std::int64_t begin, std::int64_t length) {
    const std::byte* source = address(tensor(from.rank, index).*from.side, from.offset + begin);
    std::byte* destination = address(tensor(to.rank, index).*to.side, to.offset + begin);
    if (destination == source) return;
    std::memcpy(destination, source, static_cast<std::size_t>(length) * size_of(signature().dtype));
  });
}

LocalMethod local_method(OpKind kind) {
  switch (kind) {
    case OpKind::all_reduce: return local_all_reduce;
    case OpKind::reduce: return local_reduce;
    case OpKind::reduce_scatter: return local_reduce_scatter;
    case OpKind::broadcast: return local_broadcast;
    case OpKind::all_gather: return local_all_gather;
    case OpKind::gather: return local_gather;
    case OpKind::scatter: return local_scatter;
    case OpKind::all_to_all: return local_all_to_all;
    case OpKind::send_recv: return local_send_recv;
    default: return nullptr;
  }
}

}  // namespace kolo
