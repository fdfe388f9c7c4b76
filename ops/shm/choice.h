#pragma once

#include <compare>
#include <cstdint>

#include <kolo/op.h>

namespace kolo {

/// How ranks get at each other's bytes.
enum class ShmWay : std::uint8_t {
  ring,   ///< each puts its own into memory that all see, chunk by chunk
  read,   ///< they read each other's tensors, where the system copies them out of the other process; sums that others
          ///< want travel by the ring
  mapped  ///< they read and write each other's tensors where they lie
};

/// How far ranks reach each other's tensors, the least of all: those of a job that shows them.
enum class ShmReach : std::uint8_t { none, readable, mapped };

/// A way, and the most that it moves at once.
struct ShmChoice {
  ShmWay way = ShmWay::ring;
  std::int64_t bytes = 0;  ///< of a chunk in the ring, of all ranks together; of a piece that is read or mapped
  bool operator==(const ShmChoice&) const = default;
};

/// "ring-256K"; valid for ever. `trial`, while it is not known which way is best: "trial:ring-256K".
const char* text_of(const ShmChoice& choice, bool trial = false);

/// Jobs of which the same is expected: kind, bits of the number of bytes (that of 1 MiB has 21), bytes of
/// an element.
struct ShmClass {
  OpKind kind = OpKind::all_reduce;
  std::uint8_t size_bits = 0;
  std::uint8_t element_bytes = 4;
  auto operator<=>(const ShmClass&) const = default;
};

/// What else decides, and is known only when ranks have shown each other where their tensors lie.
struct ShmPlace {
  ShmReach reach = ShmReach::none;
  bool in_place = false;  ///< on every rank
  auto operator<=>(const ShmPlace&) const = default;
};

}  // namespace kolo
