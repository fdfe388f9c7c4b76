// Where tensors are mapped every rank combines its slice of all inputs and writes the results to wherever they are
// wanted. What is only copied a rank writes to where it is wanted, or fetches from where it lies, mapped or read.
// Nothing is packed, and when all ranks have done their part nobody needs another's memory any more. A slice is read
// before it is written, and by nobody but the rank that writes it: so this works in place (but for all_to_all).
//
// To write is better where cores are far from each other: what others have read takes ten times as long to be written
// the next time, also by the program, and here nobody reads another's memory.

#include "ops/shm/direct.h"

#include "ops/kernels/reduce.h"
#include "ops/shm/transfer.h"

namespace kolo {
namespace {

/// Combines elements of all ranks' inputs, from `offset` on, and writes them to the outputs of ranks [first, last),
/// from `to` on.
void combine_piece(ShmTransfer& transfer, const BucketTensor& tensor, std::int64_t offset, std::int64_t count,
                   int first, int last, std::int64_t to) {
  const std::size_t index = transfer.index_of(tensor);
  PeerTensors& peers = *transfer.job().peer_tensors;
  peers.sources.clear();
  peers.cached.clear();
  peers.streamed.clear();
  const auto bytes = [&](std::int64_t elements) {
    return static_cast<std::size_t>(elements) * transfer.element_bytes();
  };
  for (int rank = 0; rank < transfer.ranks(); ++rank)
    peers.sources.push_back(peers.in(rank, index).mapped.get() + bytes(offset));
  for (int rank = first; rank < last; ++rank) {
    std::byte* const out = peers.out(rank, index).mapped.get() + bytes(to);
    const bool in_place = out == peers.sources[static_cast<std::size_t>(rank)];
    (transfer.job().large && !in_place ? peers.streamed : peers.cached).push_back(out);
  }
  reduce(transfer.job().reduction, peers.sources, peers.cached, static_cast<std::size_t>(count), peers.streamed);
}

/// Combines this rank's slice of the chunk for ranks [first, last).
void combine_directly(ShmTransfer& transfer, int first, int last) {
  transfer.for_each_own_segment([&](const BucketTensor& tensor, std::int64_t offset, std::int64_t count, std::size_t) {
    combine_piece(transfer, tensor, offset, count, first, last, offset);
  });
}

void combine_directly_for_all(ShmTransfer& transfer) {
  combine_directly(transfer, 0, transfer.ranks());
}
void combine_directly_for_root(ShmTransfer& transfer) {
  const int root = transfer.signature().root;
  combine_directly(transfer, root, root + 1);
}

void combine_rows_directly(ShmTransfer& transfer) {
  const int me = transfer.rank();
  transfer.for_each_segment_of_block(
      in_block, me, [&](const BucketTensor& tensor, std::int64_t offset, std::int64_t count, std::size_t) {
        const std::int64_t first = in_block(OpKind::reduce_scatter, tensor, transfer.ranks(), me, me).begin;
        combine_piece(transfer, tensor, offset, count, me, me + 1, offset - first);
      });
}

/// Writes what this rank has for `to` there.
void push(ShmTransfer& transfer, int to) {
  transfer.for_each_segment_of_block(
      in_block, to, [&](const BucketTensor& tensor, std::int64_t offset, std::int64_t count, std::size_t) {
        const std::int64_t there = offset + transfer.shift(tensor, transfer.rank(), to);
        std::byte* const out = transfer.job().peer_tensors->out(to, transfer.index_of(tensor)).mapped.get();
        transfer.write_to(out + static_cast<std::size_t>(there) * transfer.element_bytes(), tensor, count,
                          address(tensor.in, offset));
      });
}

/// Each rank begins with the one after it: so they write to different ones.
void push_to_all(ShmTransfer& transfer) {
  for (int i = 0; i < transfer.ranks(); ++i) push(transfer, (transfer.rank() + 1 + i) % transfer.ranks());
}

void push_to_root(ShmTransfer& transfer) {
  push(transfer, transfer.signature().root);
}

/// Fetches what rank `from` has for this one.
void fetch(ShmTransfer& transfer, int from) {
  transfer.for_each_segment_of_block(
      out_block, from, [&](const BucketTensor& tensor, std::int64_t offset, std::int64_t count, std::size_t) {
        const std::int64_t there = offset - transfer.shift(tensor, from, transfer.rank());
        PeerTensors& peers = *transfer.job().peer_tensors;
        const std::size_t index = transfer.index_of(tensor);
        const std::size_t begin = static_cast<std::size_t>(there) * transfer.element_bytes();
        if (const auto& mapped = peers.in(from, index).mapped) {
          transfer.write(tensor, offset, count, mapped.get() + begin);
        } else {
          peers.read(from, index, begin, address(tensor.out, offset),
                     static_cast<std::size_t>(count) * transfer.element_bytes());
        }
      });
}

void fetch_from_all(ShmTransfer& transfer) {
  for (int from = 0; from < transfer.ranks(); ++from) fetch(transfer, from);
}

void fetch_on_root(ShmTransfer& transfer) {
  if (transfer.is_root()) fetch_from_all(transfer);
}

void fetch_from_root(ShmTransfer& transfer) {
  fetch(transfer, transfer.signature().root);
}

constexpr ShmMethod for_all{nullptr, combine_directly_for_all, nullptr, false},
    for_root{nullptr, combine_directly_for_root, nullptr, false}, rows{nullptr, combine_rows_directly, nullptr, false},
    from_all{nullptr, fetch_from_all, nullptr, false}, on_root{nullptr, fetch_on_root, nullptr, false},
    from_root{nullptr, fetch_from_root, nullptr, false}, to_all{nullptr, push_to_all, nullptr, false},
    to_root{nullptr, push_to_root, nullptr, false};

}  // namespace

const ShmMethod* shm_direct_method(OpKind kind, ShmWay way) {
  const bool mapped = way == ShmWay::mapped;
  switch (kind) {
    case OpKind::all_reduce: return mapped ? &for_all : &shm_all_reduce_reading;
    case OpKind::reduce: return mapped ? &for_root : &shm_reduce_reading;
    case OpKind::reduce_scatter: return mapped ? &rows : &shm_reduce_scatter_reading;
    case OpKind::all_gather:
    case OpKind::all_to_all: return mapped ? &to_all : &from_all;
    case OpKind::gather: return mapped ? &to_root : &on_root;
    case OpKind::broadcast:
    case OpKind::scatter: return &from_root;
    default: return nullptr;
  }
}

}  // namespace kolo
