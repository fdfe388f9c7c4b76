#include "ops/shm/access.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <span>
#include <utility>

#include "ops/shm/board.h"
#include "ops/shm/direct.h"

namespace kolo {
namespace {

/// What a rank shows of a job, before a ShownTensor for each input and output.
struct Head {
  std::uint64_t released = 0;
  ShmChooser::Said said;
  bool is_new = false;  // some of the memory, to the others
};
struct ShownTensor {
  PeerAddress shared{PeerAddress::empty};
  std::uint64_t address = 0;  // in its process
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
  switch (signature.kind) {
    case OpKind::gather:
    case OpKind::reduce: return rank == signature.root;
    case OpKind::all_gather:
    case OpKind::all_to_all:
    case OpKind::all_reduce: return true;
    default: return false;
  }
}

/// Whether a rank would overwrite, in place, what peers are still to read.
bool overwrites(const Signature& signature, const BucketTensor& tensor) {
  return signature.kind == OpKind::all_to_all && tensor.in.data == tensor.out.data;
}

/// Whether reading could be faster than the ring: the system looks for each tensor.
bool worth_reading(const ShmJob& job) {
  constexpr std::int64_t least = 16 << 10;  // bytes of a tensor, on average
  return job.all_bytes >= least * std::ssize(job.bucket.tensors);
}

/// What the chooser says of a job; returns its way.
ShmChoice noted(ShmJob& job, const ShmChooser::Answer& answer) {
  job.trial = answer.trial;
  job.settled = answer.settled;
  return answer.choice;
}

}  // namespace

bool ShmAccess::asks(ShmJob& job, const ShmTuning& tuning) {
  if (mapping_) return true;
  const bool eligible = tuning.ring > 0 && job.all_bytes >= tuning.direct && job.bucket.absent.empty() &&
                        members_.size() > 1 && bytes(job) <= static_cast<std::size_t>(tuning.chunk);
  if (!eligible) return false;
  job.begun = std::chrono::steady_clock::now();
  if (chooser_.asks(job.job_class)) return true;
  job.choose(noted(job, chooser_.unasked(job.job_class)));
  return false;
}

std::size_t ShmAccess::bytes(const ShmJob& job) const {
  return mapping_ ? sizeof(bool) : sizeof(Head) + 2 * job.bucket.tensors.size() * sizeof(ShownTensor);
}

void ShmAccess::show(const ShmJob& job, std::byte* to) {
  if (mapping_) {
    std::memcpy(to, &mapping_->mapped, sizeof(bool));
    return;
  }
  const Signature& signature = job.bucket.signature;
  std::byte* next = to + sizeof(Head);
  const std::uint64_t released = memory_->released();
  if (std::exchange(released_, released) != released) known_.clear();  // then the others unmap all
  bool mapped = maps_, is_new = false, overwritten = false;
  std::vector<std::span<const std::byte>> inputs;
  const auto add = [&](bool maps, bool shows, const Tensor& tensor) {
    ShownTensor one;
    if (maps && shows) one.shared = memory_->find(tensor.data, tensor.bytes());
    if (shows) one.address = reinterpret_cast<std::uintptr_t>(tensor.data);
    mapped &= one.shared.piece != PeerAddress::nowhere;
    is_new |= one.shared.piece != PeerAddress::empty && !known_.contains(one.shared.piece);
    std::memcpy(next, &one, sizeof(one));
    next += sizeof(one);
  };
  for (const BucketTensor& tensor : job.bucket.tensors) {
    const bool shows = shows_input(signature, rank_);
    add(!shm_pushes(signature.kind), shows, tensor.in);
    add(true, shows_output(signature, rank_), tensor.out);
    if (shows) inputs.emplace_back(static_cast<const std::byte*>(tensor.in.data), tensor.in.bytes());
    overwritten |= overwrites(signature, tensor);
  }
  const ShmReach reach = overwritten                                       ? ShmReach::none
                         : mapped                                          ? ShmReach::mapped
                         : worth_reading(job) && memory_->readable(inputs) ? ShmReach::readable
                                                                           : ShmReach::none;
  const Head head{
      released_, {{reach, job.in_place}, chooser_.last_trial(job.job_class)}, reach == ShmReach::mapped && is_new};
  std::memcpy(to, &head, sizeof(head));
}

void ShmAccess::read(ShmJob& job, const Shown& shown) {
  if (mapping_) return hear_who_mapped(job, shown);
  const int ranks = static_cast<int>(members_.size());
  Head all = read_as<Head>(shown(0));
  for (int rank = 0; rank < ranks; ++rank) {
    const auto one = read_as<Head>(shown(rank));
    if (rank != rank_) memory_->forget_released(members_[static_cast<std::size_t>(rank)], one.released);
    all.said.place.reach = std::min(all.said.place.reach, one.said.place.reach);
    all.said.place.in_place &= one.said.place.in_place;
    all.said.trial = all.said.trial.joined(one.said.trial);
    all.is_new |= one.is_new;
  }
  if (all.said.place.reach != ShmReach::mapped || !all.is_new) return choose(job, all.said, shown);
  const std::size_t size = bytes(job);
  mapping_.emplace().said = all.said;
  for (int rank = 0; rank < ranks; ++rank) mapping_->shown.emplace_back(shown(rank), shown(rank) + size);
  map_all(job.bucket);
  job.ask_again();
}

void ShmAccess::map_all(const Bucket& bucket) {
  try {
    (void)find_all(bucket, [this](int rank) { return mapping_->shown[static_cast<std::size_t>(rank)].data(); },
                   {ShmWay::mapped, 0});
    mapping_->mapped = true;
  } catch (const Error& error) {
    mapping_->why_not = error.what();
  }
}

void ShmAccess::hear_who_mapped(ShmJob& job, const Shown& shown) {
  const ShmMapping mapping = *std::exchange(mapping_, std::nullopt);
  for (int rank = 0; rank < static_cast<int>(members_.size()); ++rank) maps_ &= read_as<bool>(shown(rank));
  const std::byte* const mine = mapping.shown[static_cast<std::size_t>(rank_)].data() + sizeof(Head);
  for (std::size_t i = 0; maps_ && i < 2 * job.bucket.tensors.size(); ++i)
    known_.insert(read_as<ShownTensor>(mine + i * sizeof(ShownTensor)).shared.piece);
  if (!mapping.why_not.empty() && report_) report_(mapping.why_not + "; the tensors of its ranks are copied");
  ShmChooser::Said said = mapping.said;
  if (!maps_) said.place.reach = ShmReach::none;
  choose(job, said, [&](int rank) { return mapping.shown[static_cast<std::size_t>(rank)].data(); });
}

void ShmAccess::choose(ShmJob& job, const ShmChooser::Said& all, const Shown& shown) {
  const ShmChoice choice = noted(job, chooser_.answer(job.job_class, all));
  job.answer(choice, choice.way == ShmWay::ring ? nullptr : find_all(job.bucket, shown, choice));
}

/// The tensors of all ranks, mapped if they travel that way.
std::unique_ptr<PeerTensors> ShmAccess::find_all(const Bucket& bucket, const Shown& shown, const ShmChoice& choice) {
  auto peers = std::make_unique<PeerTensors>(bucket, *memory_, members_, room_, static_cast<std::size_t>(choice.bytes));
  for (int rank = 0; rank < static_cast<int>(members_.size()); ++rank) {
    for (std::size_t i = 0; i < bucket.tensors.size(); ++i) {
      const auto find = [&](std::size_t index, const Tensor& own) -> PeerTensors::Side {
        if (rank == rank_) return {{std::shared_ptr<void>(), static_cast<std::byte*>(own.data)}};
        const auto side = read_as<ShownTensor>(shown(rank) + sizeof(Head) + index * sizeof(ShownTensor));
        if (choice.way == ShmWay::read) return {nullptr, side.address};
        if (side.shared.piece == PeerAddress::empty) return {};
        return {memory_->map_again(members_[static_cast<std::size_t>(rank)], side.shared)};
      };
      peers->in(rank, i) = find(2 * i, bucket.tensors[i].in);
      peers->out(rank, i) = find(2 * i + 1, bucket.tensors[i].out);
    }
  }
  return peers;
}

void ShmAccess::complete(const ShmJob& job) {
  chooser_.complete(job.job_class, job.trial, {job.begun, std::chrono::steady_clock::now()});
}

}  // namespace kolo
