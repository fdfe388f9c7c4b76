#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <list>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include <kolo/store.h>

#include "ops/host/file_descriptor.h"

namespace kolo {

/// What a client of a TcpStore says first, and the server after it.
inline constexpr std::string_view store_greeting = "kolo store 1\n";

enum class StoreRequest : std::uint8_t { set, get, add, remove, count };  ///< each: request, key, and its argument
enum class StoreAnswer : std::uint8_t { value, none, refused, count };    ///< and the value, or why not

/// Serves a TcpStore, in a thread that sleeps in poll(). A client whose bytes are none of the protocol's is closed, and
/// so is one that has not greeted within 10 s.
class StoreServer {
 public:
  /// `listening` does not block. Throws Error{backend}.
  explicit StoreServer(FileDescriptor listening);
  ~StoreServer();
  StoreServer(const StoreServer&) = delete;
  StoreServer& operator=(const StoreServer&) = delete;

 private:
  using Clock = std::chrono::steady_clock;
  struct Client {
    FileDescriptor socket;
    Clock::time_point since = Clock::now();
    bool greeted = false;
    std::vector<std::byte> in{}, out{};
    std::optional<std::string> waits_for{};
    Clock::time_point until{};
    bool gone = false;
  };

  void run();
  int milliseconds_to_wait() const;
  void admit();
  void hear(Client& client);
  void act_on_input(Client& client);
  void act(Client& client, std::span<const std::byte> request);
  void answer(Client& client, StoreAnswer what, std::span<const std::byte> value);
  void answer_waiting();
  static void send(Client& client);

  const FileDescriptor listening_;
  FileDescriptor wake_;
  std::atomic<bool> stop_{false};

  // The thread's.
  std::map<std::string, Store::Bytes> values_;
  std::list<Client> clients_;
  std::optional<Clock::time_point> admits_from_;  // no descriptors are free until then

  std::jthread thread_;  // last: it uses everything above
};

}  // namespace kolo
