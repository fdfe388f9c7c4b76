#include "runtime/negotiation/sequence.h"

#include <fmt/format.h>
#include <kolo/detail/hash.h>

#include <algorithm>
#include <bit>

namespace kolo {
namespace {

std::uint64_t hash(const Signature& signature, std::uint64_t number) {
  detail::Hash hash;
  hash.add(number)
      .add(static_cast<std::uint64_t>(signature.kind) | static_cast<std::uint64_t>(signature.op) << 8 |
           static_cast<std::uint64_t>(signature.dtype) << 16 | static_cast<std::uint64_t>(signature.device) << 24 |
           static_cast<std::uint64_t>(static_cast<std::uint32_t>(signature.root)) << 32)
      .add(std::bit_cast<std::uint64_t>(signature.prescale))
      .add(std::bit_cast<std::uint64_t>(signature.postscale))
      .add(static_cast<std::uint64_t>(signature.divide_by_group))
      .add(static_cast<std::uint64_t>(signature.priority));
  const auto add = [&](const Shape& shape) {
    hash.add(static_cast<std::uint64_t>(shape.dims()));
    for (const std::int64_t extent : shape.extents()) hash.add(static_cast<std::uint64_t>(extent));
  };
  add(signature.shape);
  for (const GroupMember& member : signature.members) {
    hash.add(static_cast<std::uint64_t>(member.dtype) + 1);
    add(member.shape);
  }
  return detail::mixed(hash.value()) | 1;
}

}  // namespace

std::uint64_t Sequence::begin(const Signature& signature) {
  const std::uint64_t token = hash(signature, begun_);
  if (last_.size() < remembered) last_.resize(begun_ + 1);
  last_[begun_ % remembered] = {signature, token};
  ++begun_;
  return token;
}

std::string Sequence::text(std::uint64_t number) const {
  if (number >= begun_ || begun_ - number > remembered) return "";
  const Signature& signature = last_[number % remembered].signature;
  const auto together = signature.members.size();
  return fmt::format("#{} {}{}", number, to_string(signature),
                     together == 0 ? "" : fmt::format(" (the first of {} together)", together));
}

Described Sequence::since(std::uint64_t number, int rank) const {
  Described described{rank, std::max(number, begun_ > remembered ? begun_ - remembered : 0), {}};
  for (std::uint64_t one = described.first; one < begun_; ++one)
    described.operations.push_back({last_[one % remembered].token, text(one)});
  return described;
}

std::optional<Failure> Disorder::add(const Described& described, const std::string& group) {
  std::uint64_t number = described.first;
  for (const auto& [token, text] : described.operations) {
    Side& side = sides_[number++][token];
    side.ranks.add(described.rank);
    side.text = text;
  }
  for (const auto& [differs, sides] : sides_) {
    if (sides.size() < 2) continue;
    std::vector<const Side*> shown;
    for (const auto& [token, side] : sides) shown.push_back(&side);
    std::ranges::sort(shown, {}, [](const Side* side) { return side->ranks.ranks().front(); });
    std::string text;
    for (const Side* const side : shown)
      text += fmt::format("{}{}: {}", text.empty() ? "" : "; ", to_string(side->ranks), side->text);
    return Failure{ErrorCode::mismatch,
                   fmt::format("group {}: ranks called different operations ({}); call the same ones in the same order "
                               "on every rank",
                               group, text)};
  }
  return std::nullopt;
}

}  // namespace kolo
