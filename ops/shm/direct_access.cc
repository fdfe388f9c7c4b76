#include "ops/shm/direct_access.h"

#include <cstring>

namespace kolo {
namespace {

constexpr int period = 32;  // after a negative answer, every 32nd large bucket asks again

/// What a rank shows of a job, before two addresses per tensor: its input's and its output's.
struct Head {
  std::uint64_t released;
  std::uint64_t reachable;  // whether all is that peers need
};

bool shows_input(const Signature& signature, int rank) {
  switch (signature.kind) {
    case OpKind::broadcast:
    case OpKind::scatter: return rank == signature.root;
    case OpKind::gather: return rank != signature.root;
    default: return true;
  }
}

bool shows_output(const Signature& signature, int rank) {
  return signature.kind == OpKind::all_reduce || (signature.kind == OpKind::reduce && rank == signature.root);
}

/// Whether a rank would overwrite, in place, what peers are still to read.
bool overwrites(const Signature& signature, const BucketTensor& tensor) {
  return signature.kind == OpKind::all_to_all && tensor.in.data == tensor.out.data;
}

const std::byte* address_at(const std::byte* shown, std::size_t index) {
  return shown + sizeof(Head) + index * sizeof(PeerAddress);
}

}  // namespace

bool DirectAccess::asks(const ShmJob& job, const ShmTuning& tuning) {
  const bool eligible = job.all_bytes >= tuning.direct && job.bucket.absent.empty() && members_.size() > 1 &&
                        bytes(job) <= static_cast<std::size_t>(tuning.chunk);
  if (!eligible) return false;
  const bool asks = last_answer_ || jobs_since_asked_ == 0;
  jobs_since_asked_ = (jobs_since_asked_ + 1) % period;
  return asks;
}

std::size_t DirectAccess::bytes(const ShmJob& job) const {
  return sizeof(Head) + 2 * job.bucket.tensors.size() * sizeof(PeerAddress);
}

void DirectAccess::show(const ShmJob& job, std::byte* to) {
  const Bucket& bucket = job.bucket;
  Head head{memory_->released(), 1};
  std::byte* next = to + sizeof(head);
  const auto add = [&](bool shows, const Tensor& tensor) {
    const PeerAddress address = shows ? memory_->find(tensor.data, tensor.bytes()) : PeerAddress{PeerAddress::empty};
    if (address.piece == PeerAddress::nowhere) head.reachable = 0;
    std::memcpy(next, &address, sizeof(address));
    next += sizeof(address);
  };
  for (const BucketTensor& tensor : bucket.tensors) {
    add(shows_input(bucket.signature, rank_), tensor.in);
    add(shows_output(bucket.signature, rank_), tensor.out);
    if (overwrites(bucket.signature, tensor)) head.reachable = 0;
  }
  std::memcpy(to, &head, sizeof(head));
}

void DirectAccess::read(ShmJob& job, const Shown& shown) {
  job.answer(map(job.bucket, shown));
}

/// The tensors of all ranks, if all can be reached.
std::unique_ptr<PeerTensors> DirectAccess::map(const Bucket& bucket, const Shown& shown) {
  const int ranks = static_cast<int>(members_.size());
  last_answer_ = true;
  for (int rank = 0; rank < ranks; ++rank) {
    Head head;
    std::memcpy(&head, shown(rank), sizeof(head));
    if (rank != rank_) memory_->forget_released(members_[static_cast<std::size_t>(rank)], head.released);
    if (head.reachable == 0) last_answer_ = false;
  }
  if (!last_answer_) return nullptr;
  auto peers = std::make_unique<PeerTensors>(bucket, ranks);
  for (int rank = 0; rank < ranks; ++rank) {
    for (std::size_t i = 0; i < bucket.tensors.size(); ++i) {
      const auto find = [&](std::size_t index, const Tensor& own) {
        PeerAddress address;
        std::memcpy(&address, address_at(shown(rank), index), sizeof(address));
        if (rank == rank_)
          return std::shared_ptr<std::byte>(std::shared_ptr<void>(), static_cast<std::byte*>(own.data));
        return address.piece == PeerAddress::empty
                   ? nullptr
                   : memory_->map_again(members_[static_cast<std::size_t>(rank)], address);
      };
      peers->in(rank, i) = find(2 * i, bucket.tensors[i].in);
      peers->out(rank, i) = find(2 * i + 1, bucket.tensors[i].out);
    }
  }
  return peers;
}

}  // namespace kolo
