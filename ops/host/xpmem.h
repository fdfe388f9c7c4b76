#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

namespace kolo {

/// Memory that processes of one machine show each other by XPMEM (a module of Linux, github.com/hpc/xpmem): it stays
/// what it is and where it is, and the others attach its pages. The module's library is opened at run time.
/// Thread-safe.
///
/// Whoever reads an attached page that is gone (its process has ended, or has unmapped it or stopped showing it) gets
/// SIGBUS.
class Xpmem final : public std::enable_shared_from_this<Xpmem> {
 public:
  /// Names what a process shows, on its machine; none is 0.
  using Id = std::int64_t;

  struct Shown {
    std::shared_ptr<std::byte> data;  ///< shown while it lives
    Id id = 0;
  };

  /// Null where `device` ("/dev/xpmem") cannot be opened for reading and writing, or libxpmem.so.0 cannot be loaded.
  static std::shared_ptr<const Xpmem> open(const std::string& device);

  /// Shows whole pages of this process, which can be read and written, to processes of the same user. All of them are
  /// made now: none is to be missing when it is read. Throws Error{backend}.
  Shown show(std::byte* begin, std::size_t bytes) const;

  /// Attaches the first `bytes` bytes of what a process shows, this one or another, while the result lives, and looks
  /// at each page. Throws Error{backend}.
  std::shared_ptr<std::byte> attach(Id id, std::size_t bytes) const;

 private:
  struct Address {
    Id permit;
    std::int64_t offset;
  };
  struct Library {
    Id (*make)(void* begin, std::size_t bytes, int permit_type, void* permit_value);
    int (*remove)(Id id);
    Id (*get)(Id id, int flags, int permit_type, void* permit_value);
    int (*release)(Id permit);
    void* (*attach)(Address address, std::size_t bytes, void* where);
    int (*detach)(void* data);
  };
  explicit Xpmem(const Library& library) : library_(library) {}

  Library library_;
};

}  // namespace kolo
