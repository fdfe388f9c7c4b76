#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace kolo {

/// Bytes by key, which the processes of a job see alike: by them they can find each other without MPI. Derive from it
/// to use another library's.
///
/// Keys are 1 to 512 bytes, values at most 16 MiB, others Error{invalid_argument}. Every function may be called by any
/// thread; each sees what those that returned before it, on any process, did. A store that cannot be reached any more
/// is Error{backend}.
class Store {
 public:
  using Bytes = std::vector<std::byte>;
  using Deadline = std::chrono::steady_clock::time_point;

  virtual ~Store() = default;

  /// Sets or replaces the value.
  virtual void set(std::string_view key, std::span<const std::byte> value) = 0;

  /// The value, as soon as there is one. Throws Error{stalled} that names the key if there is none at the deadline; one
  /// that has passed asks whether there is one now.
  virtual Bytes get(std::string_view key, Deadline deadline) = 0;

  /// Adds to a number, which is 0 where the key has no value, and returns the new one; no two callers get the same
  /// turn. Throws Error{invalid_argument} if the value is no number of add().
  virtual std::int64_t add(std::string_view key, std::int64_t n) = 0;

  /// Removes the value, if there is one.
  virtual void remove(std::string_view key) = 0;
};

/// A store in a folder, for the processes of one node (or of several, on a file system that has locks and atomic
/// renames for all of them): a file per key, which is never seen half-written. A job needs a folder of its own; it is
/// made if it is missing, and stays. A value that was cut short is Error{backend} that names the file.
class FileStore final : public Store {
 public:
  /// Throws Error{backend} if there is no such folder and it cannot be made.
  explicit FileStore(std::string path);

  void set(std::string_view key, std::span<const std::byte> value) override;
  Bytes get(std::string_view key, Deadline deadline) override;
  std::int64_t add(std::string_view key, std::int64_t n) override;
  void remove(std::string_view key) override;

 private:
  std::string path_;
};

/// A store that one process serves, in a thread of its own, and others reach over TCP. Values are gone with it; the
/// server must live until nobody needs the store. Nothing is encrypted, and whoever reaches the port can read and
/// write: what does not speak this protocol is shown out, and harms nobody. A server that has ended, or has not
/// answered for `timeout` (get: for 5 s after its deadline), is Error{backend}; the object then stays unusable.
class TcpStore final : public Store {
 public:
  /// host       name or address; the server listens there if the host has that address, else at all of its own
  /// port       of the server; 0, there: any, which port() tells
  /// is_server  whether this process serves
  /// timeout    for everything but get(), and for the server to begin: who connects tries again until then
  ///
  /// Throws Error{backend} that names host and port.
  TcpStore(const std::string& host, std::uint16_t port, bool is_server, std::chrono::milliseconds timeout);
  ~TcpStore() override;

  void set(std::string_view key, std::span<const std::byte> value) override;
  Bytes get(std::string_view key, Deadline deadline) override;
  std::int64_t add(std::string_view key, std::int64_t n) override;
  void remove(std::string_view key) override;

  std::uint16_t port() const;

 private:
  struct Parts;
  const std::unique_ptr<Parts> parts_;
};

}  // namespace kolo
