#include "runtime/control/store_server.h"

#include <fmt/format.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <system_error>

#include <kolo/error.h>

#include "runtime/control/started_thread.h"
#include "runtime/control/store_checks.h"
#include "runtime/control/wire.h"

namespace kolo {
namespace {

using namespace std::chrono_literals;

constexpr auto greeting_time = 10s;
constexpr auto admits_after = 100ms;
constexpr std::size_t longest_request = longest_key + longest_value + 64;

}  // namespace

StoreServer::StoreServer(FileDescriptor listening)
    : listening_(std::move(listening)), wake_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
  if (!wake_)
    throw Error(ErrorCode::backend, fmt::format("making a descriptor to wait on failed ({}); raise ulimit -n",
                                                std::generic_category().message(errno)));
  thread_ = started_thread("serves a store", [this] { run(); });
}

StoreServer::~StoreServer() {
  stop_ = true;
  const std::uint64_t one = 1;
  (void)!::write(wake_.get(), &one, sizeof one);
}

void StoreServer::run() {
  while (!stop_) {
    std::vector<pollfd> polled{{wake_.get(), POLLIN, 0}, {admits_from_ ? -1 : listening_.get(), POLLIN, 0}};
    for (const Client& client : clients_)  // who does not read its answers is not heard
      polled.push_back({client.socket.get(), static_cast<short>(client.out.empty() ? POLLIN : POLLOUT), 0});
    if (::poll(polled.data(), polled.size(), milliseconds_to_wait()) > 0) {
      auto events = polled.begin() + 2;
      for (Client& client : clients_) {
        const short seen = (events++)->revents;
        if ((seen & POLLOUT) != 0) {
          send(client);
        } else if (seen != 0) {
          hear(client);
        }
      }
      if (polled[1].revents != 0) admit();
    }
    answer_waiting();
    const auto now = Clock::now();
    if (admits_from_ && now >= *admits_from_) admits_from_.reset();
    std::erase_if(clients_, [&](const Client& client) {
      return client.gone || (!client.greeted && now - client.since > greeting_time);
    });
  }
}

int StoreServer::milliseconds_to_wait() const {
  auto next = admits_from_.value_or(Clock::time_point::max());
  for (const Client& client : clients_) {
    if (!client.greeted) next = std::min(next, client.since + greeting_time);
    if (client.waits_for) next = std::min(next, client.until);
  }
  if (next == Clock::time_point::max()) return -1;
  return static_cast<int>(
      std::clamp<std::int64_t>(std::chrono::ceil<std::chrono::milliseconds>(next - Clock::now()).count(), 0, 60000));
}

void StoreServer::admit() {
  for (;;) {
    FileDescriptor socket(::accept4(listening_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (socket) {
      const int on = 1;
      (void)::setsockopt(socket.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
      clients_.push_back(Client{std::move(socket)});
    } else if (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM) {
      admits_from_ = Clock::now() + admits_after;  // else it would be tried without end
      return;
    } else if (errno != ECONNABORTED && errno != EINTR) {
      return;
    }
  }
}

/// A request takes memory as its bytes arrive, whatever it says of its length.
void StoreServer::hear(Client& client) {
  std::array<std::byte, 65536> piece;
  const ssize_t count = ::recv(client.socket.get(), piece.data(), piece.size(), 0);
  if (count < 0 && (errno == EAGAIN || errno == EINTR)) return;
  client.gone = count <= 0 || client.waits_for;  // who waits for an answer has nothing to say
  if (client.gone) return;
  try {
    client.in.insert(client.in.end(), piece.begin(), piece.begin() + count);
    act_on_input(client);
  } catch (const std::exception&) {  // no such request, or no memory for it
    client.gone = true;
  }
}

void StoreServer::act_on_input(Client& client) {
  if (!client.greeted) {
    const auto greeting = std::as_bytes(std::span(store_greeting));
    const std::size_t seen = std::min(client.in.size(), greeting.size());
    client.gone =
        !std::equal(client.in.begin(), client.in.begin() + static_cast<std::ptrdiff_t>(seen), greeting.begin());
    if (client.gone || seen < greeting.size()) return;
    client.greeted = true;
    client.in.erase(client.in.begin(), client.in.begin() + static_cast<std::ptrdiff_t>(seen));
    client.out.assign(greeting.begin(), greeting.end());
    send(client);
  }
  if (!take_framed(client.in, longest_request, [&](std::span<const std::byte> request) { act(client, request); }))
    client.gone = true;
}

void StoreServer::act(Client& client, std::span<const std::byte> request) {
  if (client.waits_for) throw Error(ErrorCode::backend, "a request before the answer to the last one");
  Reader reader(request);
  const auto what = reader.get<StoreRequest>(static_cast<int>(StoreRequest::count));
  std::string key = reader.get_string();
  if (key.empty() || key.size() > longest_key) throw Error(ErrorCode::backend, "malformed request (length of its key)");
  const auto ends = [&reader] {
    if (!reader.done()) throw Error(ErrorCode::backend, "malformed request (too long)");
  };
  switch (what) {
    case StoreRequest::set: {
      Store::Bytes value(reader.get_length(1));
      reader.copy_to(value);
      ends();
      values_[std::move(key)] = std::move(value);
      return answer(client, StoreAnswer::value, {});
    }
    case StoreRequest::get: {
      const auto wait = std::clamp<std::int64_t>(reader.get<std::int64_t>(), 0, std::int64_t{1} << 40);
      ends();
      client.until = Clock::now() + std::chrono::milliseconds(wait);
      client.waits_for = std::move(key);
      return;
    }
    case StoreRequest::add: {
      const auto n = reader.get<std::int64_t>();
      ends();
      const auto found = values_.find(key);
      try {
        const std::int64_t sum = added(key, found == values_.end() ? std::nullopt : std::optional(found->second), n);
        const auto bytes = std::as_bytes(std::span(&sum, 1));
        values_[std::move(key)].assign(bytes.begin(), bytes.end());
        return answer(client, StoreAnswer::value, bytes);
      } catch (const Error& error) {
        return answer(client, StoreAnswer::refused, std::as_bytes(std::span(std::string_view(error.what()))));
      }
    }
    case StoreRequest::remove:
      ends();
      values_.erase(key);
      return answer(client, StoreAnswer::value, {});
    case StoreRequest::count: break;
  }
}

void StoreServer::answer(Client& client, StoreAnswer what, std::span<const std::byte> value) {
  Writer message;
  message.put(what);
  message.append(value);
  append_framed(client.out, message.bytes());
  send(client);
}

/// Those whose values have come, or whose time is over.
void StoreServer::answer_waiting() {
  const auto now = Clock::now();
  for (Client& client : clients_) {
    if (!client.waits_for || client.gone) continue;
    const auto found = values_.find(*client.waits_for);
    if (found == values_.end() && client.until > now) continue;
    client.waits_for.reset();
    try {
      found == values_.end() ? answer(client, StoreAnswer::none, {})
                             : answer(client, StoreAnswer::value, found->second);
    } catch (const std::exception&) {  // no memory for it
      client.gone = true;
    }
  }
}

void StoreServer::send(Client& client) {
  const ssize_t count = ::send(client.socket.get(), client.out.data(), client.out.size(), MSG_NOSIGNAL);
  if (count >= 0) {
    client.out.erase(client.out.begin(), client.out.begin() + count);
  } else if (errno != EAGAIN && errno != EINTR) {
    client.gone = true;
  }
}

}  // namespace kolo
