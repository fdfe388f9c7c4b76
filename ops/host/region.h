#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>

#include "ops/host/file_descriptor.h"

namespace kolo {

/// Memory that several ranks see: heap for ranks as threads, a shared mapping for processes of one node. Starts as
/// zeros.
///
/// Whatever is placed in a region is valid when all its bytes are zero, uses lock-free atomics, and holds no pointers:
/// the same code then runs between threads (where ThreadSanitizer watches it) and between processes.
class Region {
 public:
  virtual ~Region() = default;
  virtual std::byte* data() const = 0;
  virtual std::size_t size() const = 0;
  /// Of a region that was made without memory: takes it for `bytes` bytes from `offset` on, both of whole pages. Nobody
  /// touches them before. Returns whether there is enough.
  virtual bool reserve(std::size_t offset, std::size_t bytes) = 0;

  /// The object of type T at `offset`, which must be a multiple of alignof(T).
  template <class T>
  T* at(std::size_t offset) const {
    return reinterpret_cast<T*>(data() + offset);
  }
};

/// For ranks in one process: 64-byte aligned zeros; pages nobody touches cost nothing. Throws Error{backend}.
std::shared_ptr<Region> heap_region(std::size_t bytes);

/// When the memory of a shared region is taken.
enum class Reserved : std::uint8_t {
  now,   ///< all of it
  later  ///< by reserve(), part by part
};

/// Makes an anonymous shared mapping that other processes of this node can open by `descriptor()`. Memory is reserved
/// before it is touched: a mapping that finds none then would end in SIGBUS on a full machine. Throws Error{backend},
/// before anything is reserved if there is less available than that.
class SharedRegion final : public Region {
 public:
  static std::shared_ptr<SharedRegion> create(std::size_t bytes, Reserved when = Reserved::now);

  /// Maps the region that process `pid` of this node made; it must still hold the descriptor. Touches no other file:
  /// another process may have this number where ranks live in different PID namespaces. Throws Error{backend}.
  static std::shared_ptr<SharedRegion> open(int pid, int descriptor, std::uint32_t file, std::size_t bytes,
                                            Reserved when = Reserved::now);

  /// Makes pages of this process, which hold what they held, such a mapping, where they are. Nobody may write to them
  /// meanwhile, nor when the region dies: then they become private memory again, unless the program has unmapped them.
  /// `begin` and `bytes` are whole pages. Throws Error{invalid_argument} if they are not ordinary memory of the
  /// process, Error{backend} if there is no memory; then nothing has changed.
  static std::shared_ptr<SharedRegion> adopt(std::byte* begin, std::size_t bytes);

  ~SharedRegion() override;
  SharedRegion(const SharedRegion&) = delete;
  SharedRegion& operator=(const SharedRegion&) = delete;

  std::byte* data() const override { return data_; }
  std::size_t size() const override { return size_; }
  bool reserve(std::size_t offset, std::size_t bytes) override;
  int descriptor() const { return descriptor_.get(); }
  /// Half of the inode's number, which tells it from other regions of this machine. Needs the descriptor.
  std::uint32_t file() const;

  /// Closes the descriptor once every peer has mapped the region; the mapping stays.
  void close_descriptor() { descriptor_.reset(); }

 private:
  SharedRegion(std::byte* data, std::size_t size, FileDescriptor descriptor)
      : data_(data), size_(size), descriptor_(std::move(descriptor)) {}

  void give_back() noexcept;

  std::byte* data_;
  std::size_t size_;
  FileDescriptor descriptor_;
  bool adopted_ = false;
};

}  // namespace kolo
