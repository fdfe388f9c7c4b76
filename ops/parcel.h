#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include <kolo/dtype.h>
#include <kolo/error.h>

namespace kolo {

/// One send or receive of a mailbox. Its owner fills in the first part, and keeps it until it is done or withdrawn.
struct Parcel {
  bool sends = false;
  std::uint64_t group = 0;
  std::vector<int> peers;  ///< whom it goes to; of a receive: one of these sends it
  std::vector<int> tags;   ///< its tag; of a receive: one of these, or any if there are none
  DType dtype = DType::f32;
  bool shorter = false;  ///< a receive: a message may have fewer bytes
  std::byte* data = nullptr;
  std::size_t bytes = 0;
  bool elsewhere = false;  ///< the bytes go another way, once it is done: in one order for both ranks of each direction

  bool done = false;
  std::optional<Failure> failure;  ///< the other rank's parcel differs
  bool matched = false;            ///< its partner is known: of a send, it has said so
  int peer = -1, tag = 0;          ///< of a receive that is matched: where it comes from; `tag` also of a send
  std::size_t received = 0;

  std::uint64_t number = 0;  // of the message, or of the receive, in their order
  std::size_t moved = 0;     // bytes
};

/// What two mailboxes say to each other, before bytes that may follow.
struct Frame {
  enum class Kind : std::uint8_t { message, answer, data, cancel };
  enum class Verdict : std::uint8_t { taken, go, refused, copying };
  /// Comes what a message holds: when it is asked for, say; and then a part of it in bulk, or not.
  enum class How : std::uint8_t { asked, eager, shown, elsewhere, bulk };

  Kind kind = Kind::message;
  DType dtype = DType::f32;
  How how = How::asked;              // of a message, or part; of the receive that refuses it
  Verdict verdict = Verdict::taken;  // of an answer
  std::int32_t tag = 0;
  std::uint64_t number = 0;  // of the message, by its sender
  std::uint64_t group = 0;
  std::uint64_t bytes = 0;  // of the message, of the receive that refuses it, or of this part
};

}  // namespace kolo
