#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <span>

#include <kolo/backend.h>
#include <kolo/error.h>

namespace kolo {

/// Where bytes of one rank lie that its peers can reach: made by that rank, understood by all ranks of the node.
struct PeerAddress {
  static constexpr std::uint64_t nowhere = 0;  ///< peers cannot reach it
  static constexpr std::uint64_t empty = 1;    ///< no bytes: nothing to reach

  std::uint64_t piece = nowhere;  ///< or the number of the piece of memory; a rank uses none twice
  std::uint64_t offset = 0;       ///< within the piece
  std::uint64_t piece_bytes = 0;
  std::int32_t descriptor = -1;  ///< by which peers open the piece
  std::uint32_t file = 0;        ///< which file they find there
  std::int64_t xpmem = 0;        ///< or by which they attach it (Xpmem::Id)
};

/// Memory of one rank that its peers on the node can reach, for tensors and for the parts of boards. Used by any thread
/// but for what concerns peers.
class ShmMemory : public MemorySource, public std::enable_shared_from_this<ShmMemory> {
 public:
  /// Host memory, as MemorySource says.
  std::shared_ptr<std::byte> allocate(std::size_t bytes, Device device) override;
  /// The whole pages of the range; what lies at its ends, beyond them, stays as it is.
  bool adopt(void* data, std::size_t bytes) override;
  /// The program has its memory back. Nobody reaches it any more.
  void give_back_adopted() noexcept;
  /// The same as allocate(). Throws Error{backend}, which says why there is none.
  std::shared_ptr<std::byte> reserve(std::size_t bytes);
  /// The same for little that is aligned to 128 bytes: out of a piece that several share, and that goes with the last.
  std::shared_ptr<std::byte> reserve_part(std::size_t bytes);

  /// Where `bytes` bytes at `data` lie.
  PeerAddress find(const void* data, std::size_t bytes) const;

  /// How many pieces have been given back.
  std::uint64_t released() const { return released_.load(std::memory_order_relaxed); }

  /// Maps an address that rank `rank` of the node found; valid while the result lives, whatever becomes of the piece.
  /// Throws Error{backend} if it cannot be mapped here.
  virtual std::shared_ptr<std::byte> map(int rank, const PeerAddress& address) = 0;
  /// The same, and remembers the mapping for the next time, until forget_released().
  virtual std::shared_ptr<std::byte> map_again(int rank, const PeerAddress& address) { return map(rank, address); }

  /// Whether the other ranks of the node, all or none, can be asked to read() what this one has in these ranges,
  /// wherever it lies; of no ranges: whether that is permitted at all.
  virtual bool readable(std::span<const std::span<const std::byte>> ranges) const { return (void)ranges, false; }
  /// Copies bytes at an address of rank `rank`'s process; the rank must leave them alone meanwhile. Returns whether
  /// they are all there.
  virtual bool read(int rank, std::uint64_t address, std::span<std::byte> to) {
    return (void)rank, (void)address, (void)to, false;
  }

  /// Unmaps the pieces that `rank` has freed (`released`: how many, in order).
  virtual void forget_released(int rank, std::uint64_t released) { (void)rank, (void)released; }

 protected:
  struct Piece {
    std::shared_ptr<std::byte> begin;
    std::uint64_t number = 0;  ///< from 2 on
    std::size_t bytes = 0;
    int descriptor = -1;
    std::uint32_t file = 0;
    std::int64_t xpmem = 0;
    bool adopted = false;
  };
  /// Throws Error{backend} if there is no more. `number` is for this piece.
  virtual Piece make_piece(std::size_t bytes, std::uint64_t number) = 0;
  /// Of memory of the program, whole pages. Throws Error{invalid_argument | backend}.
  virtual Piece adopt_piece(std::byte* begin, std::size_t bytes, std::uint64_t number) = 0;

  /// The piece of this rank that begins there; null if it has been freed.
  std::shared_ptr<std::byte> piece_at(const std::byte* begin) const;

 private:
  static constexpr std::size_t piece_of_parts = 256 << 10;

  std::mutex parts_mutex_;
  std::weak_ptr<std::byte> parts_;  // the piece that the next part comes from; no part is used twice
  std::size_t parts_bytes_ = 0;     // of that piece, which are in use
  mutable std::mutex mutex_;
  std::map<const std::byte*, Piece> pieces_;  // by where they begin
  std::uint64_t last_number_ = PeerAddress::empty;
  std::atomic<std::uint64_t> released_{0};
};

}  // namespace kolo
