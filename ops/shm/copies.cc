// Operations that only copy: who has something for others puts it into its slot, where each of them fetches its part.
// What a rank has for itself goes from its input to its output, without a detour, in the last phase: by then, all that
// others need of the same place has been packed, so that this works in place.

#include "ops/shm/transfer.h"

namespace kolo {
namespace {

constexpr std::size_t bytes_copied_twice = 8192;  // that stay in the first-level cache while they are copied twice

/// Copies this rank's part of its own input to its output.
void keep_own(ShmTransfer& transfer) {
  const int me = transfer.rank();
  transfer.for_each_segment_of_block(
      in_block, me, [&](const BucketTensor& tensor, std::int64_t offset, std::int64_t count, std::size_t) {
        transfer.write(tensor, offset + transfer.shift(tensor, me, me), count, address(tensor.in, offset));
      });
}

/// Puts what this rank has for `to` into its slot, from `part` on.
void put_for(ShmTransfer& transfer, int to, std::size_t part) {
  transfer.for_each_segment_of_block(
      in_block, to, [&](const BucketTensor& tensor, std::int64_t offset, std::int64_t count, std::size_t place) {
        transfer.put(transfer.slot(transfer.rank()) + part + place, tensor.in, offset, count);
      });
}

/// All that this rank has, for whoever wants it and to its own place: what goes both ways is read once.
void share_all(ShmTransfer& transfer) {
  const int me = transfer.rank();
  if (transfer.ranks() == 1) return keep_own(transfer);
  const auto block = static_cast<std::int64_t>(bytes_copied_twice / transfer.element_bytes());
  transfer.for_each_segment_of_block(
      in_block, me, [&](const BucketTensor& tensor, std::int64_t offset, std::int64_t count, std::size_t place) {
        const std::int64_t shift = out_block(transfer.signature().kind, tensor, transfer.ranks(), me, me).begin;
        for (std::int64_t done = 0; done < count; done += block) {
          const std::int64_t now = std::min(block, count - done);
          transfer.put(transfer.slot(me) + place + static_cast<std::size_t>(done) * transfer.element_bytes(), tensor.in,
                       offset + done, now);
          transfer.write(tensor, offset + done + shift, now, address(tensor.in, offset + done));
        }
      });
}

/// Fetches what `from` has for this rank, which begins at `part` of its slot.
void fetch_from(ShmTransfer& transfer, int from, std::size_t part) {
  transfer.for_each_segment_of_block(
      out_block, from, [&](const BucketTensor& tensor, std::int64_t offset, std::int64_t count, std::size_t place) {
        transfer.write(tensor, offset, count, transfer.slot(from) + part + place);
      });
}

/// All that this rank has, for whoever wants it.
void pack_all(ShmTransfer& transfer) {
  if (transfer.ranks() > 1) put_for(transfer, transfer.rank(), 0);
}

void pack_all_on_root(ShmTransfer& transfer) {
  if (transfer.is_root()) pack_all(transfer);
}

void pack_parts_on_root(ShmTransfer& transfer) {
  if (transfer.is_root()) shm_pack_parts(transfer);
}

void pack_all_for_root(ShmTransfer& transfer) {
  if (!transfer.is_root()) pack_all(transfer);
}

/// What the others have; see share_all().
void collect_others(ShmTransfer& transfer) {
  for (int from = 0; from < transfer.ranks(); ++from) {
    if (from != transfer.rank()) fetch_from(transfer, from, 0);
  }
}

void collect_all(ShmTransfer& transfer) {
  keep_own(transfer);
  collect_others(transfer);
}

void collect_parts(ShmTransfer& transfer) {
  for (int from = 0; from < transfer.ranks(); ++from) {
    from == transfer.rank() ? keep_own(transfer) : fetch_from(transfer, from, transfer.part(transfer.rank()));
  }
}

void collect_all_on_root(ShmTransfer& transfer) {
  if (transfer.is_root()) collect_all(transfer);
}

void collect_all_from_root(ShmTransfer& transfer) {
  if (!transfer.is_root()) return fetch_from(transfer, transfer.signature().root, 0);
  if (!transfer.in_place()) keep_own(transfer);
}

void collect_part_from_root(ShmTransfer& transfer) {
  transfer.is_root() ? keep_own(transfer)
                     : fetch_from(transfer, transfer.signature().root, transfer.part(transfer.rank()));
}

}  // namespace

void shm_pack_parts(ShmTransfer& transfer) {
  for (int to = 0; to < transfer.ranks(); ++to) {
    if (to != transfer.rank()) put_for(transfer, to, transfer.part(to));
  }
}

constinit const ShmMethod shm_broadcast{pack_all_on_root, nullptr, collect_all_from_root};
constinit const ShmMethod shm_all_gather{share_all, nullptr, collect_others};
constinit const ShmMethod shm_gather{pack_all_for_root, nullptr, collect_all_on_root};
constinit const ShmMethod shm_scatter{pack_parts_on_root, nullptr, collect_part_from_root};
constinit const ShmMethod shm_all_to_all{shm_pack_parts, nullptr, collect_parts};

}  // namespace kolo
