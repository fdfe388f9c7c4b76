#include <fmt/format.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <mutex>
#include <optional>
#include <system_error>
#include <thread>

#include <kolo/error.h>
#include <kolo/store.h>

#include <kolo/detail/unique.h>

#include "runtime/control/store_checks.h"
#include "runtime/control/store_server.h"
#include "runtime/control/wire.h"

namespace kolo {
namespace {

using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;

constexpr auto connect_again = 50ms;
constexpr auto connect_patience = 2s;  // beyond the time-out, for an answer to the last attempt
constexpr auto server_patience = 5s;   // beyond the deadline of a get()

struct AddressesTraits {
  using Raw = addrinfo*;
  static Raw null() noexcept { return nullptr; }
  static void destroy(Raw list) noexcept { ::freeaddrinfo(list); }
};
using Addresses = Unique<AddressesTraits>;

/// Null, with `why`, if the name is not known (yet). Without a host: all addresses of this one.
Addresses addresses_of(const char* host, std::uint16_t port, std::string& why) {
  addrinfo hints{}, *list = nullptr;
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_NUMERICSERV | AI_PASSIVE;
  if (const int error = ::getaddrinfo(host, std::to_string(port).c_str(), &hints, &list); error != 0)
    why = ::gai_strerror(error);
  return Addresses(list);
}

/// Null, with errno, if nothing can listen there.
FileDescriptor listening_at(const addrinfo* address) {
  for (; address; address = address->ai_next) {
    FileDescriptor socket(::socket(address->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    const int on = 1;
    if (!socket || ::setsockopt(socket.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on) != 0) continue;
    if (::bind(socket.get(), address->ai_addr, address->ai_addrlen) == 0 && ::listen(socket.get(), SOMAXCONN) == 0)
      return socket;
  }
  return {};
}

std::uint16_t port_of(const FileDescriptor& socket) {
  sockaddr_storage address{};
  socklen_t size = sizeof address;
  (void)::getsockname(socket.get(), reinterpret_cast<sockaddr*>(&address), &size);
  return ntohs(address.ss_family == AF_INET6 ? reinterpret_cast<const sockaddr_in6&>(address).sin6_port
                                             : reinterpret_cast<const sockaddr_in&>(address).sin_port);
}

/// False when the deadline has passed.
bool wait_for(int socket, short events, Clock::time_point deadline) {
  for (;;) {
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - Clock::now()).count();
    pollfd polled{socket, events, 0};
    const int count = ::poll(&polled, 1, static_cast<int>(std::clamp<std::int64_t>(left, 0, 60000)));
    if (count > 0) return true;
    if (left <= 0) return false;
  }
}

}  // namespace

struct TcpStore::Parts {
  const std::string host;
  const std::chrono::milliseconds timeout;
  std::uint16_t port;
  std::optional<StoreServer> server{};
  std::mutex mutex{};  // of what follows: the connection, with one request at a time
  FileDescriptor socket{};
  std::string broken{};  // why

  /// From now on nothing works: what comes next might be the answer to something else.
  [[noreturn]] void fail(const std::string& why) {
    broken = fmt::format("the store at {}:{} {}; see how the process that serves it has ended", host, port, why);
    socket.reset();
    throw Error(ErrorCode::backend, broken);
  }
  [[noreturn]] void fail_errno(const char* what) {
    fail(fmt::format("{} ({})", what, std::generic_category().message(errno)));
  }

  void serve() {
    std::string why;
    FileDescriptor listening = listening_at(addresses_of(host.c_str(), port, why).get());
    if (!listening && errno != EADDRINUSE) listening = listening_at(addresses_of(nullptr, port, why).get());
    if (!listening)
      throw Error(ErrorCode::backend, fmt::format("cannot serve a store at {}:{} ({}); use another port", host, port,
                                                  std::generic_category().message(errno)));
    port = port_of(listening);
    server.emplace(std::move(listening));
  }

  /// Whether the server was there. Until the deadline there may be none yet.
  bool connect(Clock::time_point deadline, std::string& why) {
    const Addresses list = addresses_of(host.c_str(), port, why);
    for (const addrinfo* address = list.get(); address; address = address->ai_next) {
      socket.reset(::socket(address->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
      int error = errno;
      if (socket) {
        error = ::connect(socket.get(), address->ai_addr, address->ai_addrlen) == 0 ? 0 : errno;
        socklen_t size = sizeof error;
        const auto answers_by = std::max(deadline, Clock::now() + connect_patience);
        if (error == EINPROGRESS && (!wait_for(socket.get(), POLLOUT, answers_by) ||
                                     ::getsockopt(socket.get(), SOL_SOCKET, SO_ERROR, &error, &size) != 0))
          error = ETIMEDOUT;
      }
      if (error == 0) return true;
      why = std::generic_category().message(error);
    }
    return false;
  }

  void greet(Clock::time_point deadline) {
    const std::array<std::pair<int, int>, 4> options{
        {{TCP_NODELAY, 1}, {TCP_KEEPIDLE, 10}, {TCP_KEEPINTVL, 3}, {TCP_KEEPCNT, 5}}};
    for (const auto& [option, value] : options)
      (void)::setsockopt(socket.get(), IPPROTO_TCP, option, &value, sizeof value);
    const int on = 1;
    (void)::setsockopt(socket.get(), SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on);
    send_all(std::as_bytes(std::span(store_greeting)), deadline);
    std::array<std::byte, store_greeting.size()> answer;
    receive_all(answer, deadline);
    if (!std::ranges::equal(answer, std::as_bytes(std::span(store_greeting))))
      fail("is none of kolo's (something else answers there)");
  }

  void send_all(std::span<const std::byte> bytes, Clock::time_point deadline) {
    while (!bytes.empty()) {
      if (!wait_for(socket.get(), POLLOUT, deadline)) fail("takes nothing any more");
      const ssize_t count = ::send(socket.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
      if (count >= 0) {
        bytes = bytes.subspan(static_cast<std::size_t>(count));
      } else if (errno != EAGAIN && errno != EINTR) {
        fail_errno("has gone");
      }
    }
  }
  void receive_all(std::span<std::byte> bytes, Clock::time_point deadline) {
    while (!bytes.empty()) {
      if (!wait_for(socket.get(), POLLIN, deadline)) fail("does not answer");
      const ssize_t count = ::recv(socket.get(), bytes.data(), bytes.size(), 0);
      if (count > 0) {
        bytes = bytes.subspan(static_cast<std::size_t>(count));
      } else if (count == 0) {
        fail("has gone");
      } else if (errno != EAGAIN && errno != EINTR) {
        fail_errno("has gone");
      }
    }
  }

  /// The value of the answer.
  Bytes ask(std::string_view key, const Writer& request, Clock::time_point deadline) {
    const std::lock_guard lock(mutex);
    if (!broken.empty()) throw Error(ErrorCode::backend, broken);
    std::vector<std::byte> framed;
    append_framed(framed, request.bytes());
    send_all(framed, deadline);
    std::uint32_t length = 0;
    receive_all(std::as_writable_bytes(std::span(&length, 1)), deadline);
    if (length == 0 || length > longest_value + 1) fail("gives answers that are malformed");
    Bytes answer(length);
    receive_all(answer, deadline);
    const auto what = static_cast<StoreAnswer>(answer.front());
    answer.erase(answer.begin());
    if (what == StoreAnswer::none) throw_no_value(key);
    if (what == StoreAnswer::refused)
      throw Error(ErrorCode::invalid_argument,
                  std::string(reinterpret_cast<const char*>(answer.data()), answer.size()));
    return answer;
  }
};

namespace {

Writer request_for(StoreRequest what, std::string_view key, std::size_t value_bytes = 0) {
  check_entry(key, value_bytes);
  Writer request;
  request.put(what);
  request.put(key);
  return request;
}

}  // namespace

TcpStore::TcpStore(const std::string& host, std::uint16_t port, bool is_server, std::chrono::milliseconds timeout)
    : parts_(new Parts{host, timeout, port}) {
  const auto deadline = Clock::now() + timeout;
  if (is_server) parts_->serve();
  std::string why;
  while (!parts_->connect(deadline, why)) {
    if (Clock::now() >= deadline)
      throw Error(ErrorCode::backend,
                  fmt::format("there is no store at {}:{} ({}, for {:.3g} s); see whether the process that serves it "
                              "has been started",
                              host, parts_->port, why, std::chrono::duration<double>(timeout).count()));
    std::this_thread::sleep_for(connect_again);
  }
  parts_->greet(std::max(deadline, Clock::now() + server_patience));
}

TcpStore::~TcpStore() = default;

std::uint16_t TcpStore::port() const {
  return parts_->port;
}

void TcpStore::set(std::string_view key, std::span<const std::byte> value) {
  Writer request = request_for(StoreRequest::set, key, value.size());
  request.put(static_cast<std::uint32_t>(value.size()));
  request.append(value);
  (void)parts_->ask(key, request, Clock::now() + parts_->timeout);
}

Store::Bytes TcpStore::get(std::string_view key, Deadline deadline) {
  const auto now = Clock::now();
  deadline = std::clamp(deadline, now, now + std::chrono::hours(24 * 365));
  Writer request = request_for(StoreRequest::get, key);
  request.put(static_cast<std::int64_t>(std::chrono::ceil<std::chrono::milliseconds>(deadline - now).count()));
  return parts_->ask(key, request, deadline + server_patience);
}

std::int64_t TcpStore::add(std::string_view key, std::int64_t n) {
  Writer request = request_for(StoreRequest::add, key);
  request.put(n);
  const Bytes answer = parts_->ask(key, request, Clock::now() + parts_->timeout);
  return Reader(answer).get<std::int64_t>();
}

void TcpStore::remove(std::string_view key) {
  (void)parts_->ask(key, request_for(StoreRequest::remove, key), Clock::now() + parts_->timeout);
}

}  // namespace kolo
