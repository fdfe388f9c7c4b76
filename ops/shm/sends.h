#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>

#include <kolo/backend.h>

#include "ops/shm/chooser.h"
#include "ops/shm/reach.h"

namespace kolo {

/// How the large messages of this rank to another one go: through a ring, or the receiver copies them. Chosen by how
/// long earlier ones took, by the sender alone.
class ShmSends final {
 public:
  static constexpr std::size_t large = 64 << 10;  ///< what has fewer bytes goes through a ring, unless it is mapped

  ShmSends(std::shared_ptr<const Reach> reach, std::shared_ptr<const ShmKnown> known);

  /// Where the receiver is to copy a message; none: it is to be sent.
  std::optional<LaneAddress> begin(std::span<const std::byte> message);
  /// The receiver has it.
  void end(std::span<const std::byte> message);
  /// It was withdrawn; or the receiver cannot copy it.
  void give_up(std::span<const std::byte> message);

 private:
  struct Trial {
    const std::byte* message;
    ShmClass of;
    std::uint64_t number;
    std::chrono::steady_clock::time_point begun;
  };

  std::shared_ptr<const Reach> reach_;
  ShmChooser chooser_;
  std::optional<Trial> trial_;
};

}  // namespace kolo
