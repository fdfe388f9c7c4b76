#include "runtime/control/remote_doorbells.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstring>
#include <utility>

#include "runtime/control/started_thread.h"

namespace kolo {
namespace {

constexpr std::uint64_t ring = ~std::uint64_t{0};  // every other word is a count
constexpr int timeout_ms = 1000;

struct Greeting {
  std::uint64_t token;
  std::int64_t rank;
};

bool write_all(int socket, const void* data, std::size_t size) {
  // A few bytes: sent as a whole, or the peer is gone.
  return ::send(socket, data, size, MSG_NOSIGNAL) == static_cast<ssize_t>(size);
}

bool read_all(int socket, void* data, std::size_t size) {
  for (std::size_t got = 0; got < size;) {
    pollfd wanted{socket, POLLIN, 0};
    if (::poll(&wanted, 1, timeout_ms) <= 0) return false;
    const ssize_t count = ::recv(socket, static_cast<char*>(data) + got, size - got, 0);
    if (count <= 0) return false;
    got += static_cast<std::size_t>(count);
  }
  return true;
}

/// The host's own addresses; the loopback one only if there is no other.
std::array<std::uint32_t, 4> own_addresses() {
  std::array<std::uint32_t, 4> found{};
  std::size_t count = 0;
  ifaddrs* interfaces = nullptr;
  if (::getifaddrs(&interfaces) == 0) {
    for (const ifaddrs* one = interfaces; one && count < found.size(); one = one->ifa_next) {
      if (!one->ifa_addr || one->ifa_addr->sa_family != AF_INET || !(one->ifa_flags & IFF_UP) ||
          (one->ifa_flags & IFF_LOOPBACK))
        continue;
      found[count++] = reinterpret_cast<const sockaddr_in*>(one->ifa_addr)->sin_addr.s_addr;
    }
    ::freeifaddrs(interfaces);
  }
  if (count == 0) found[0] = htonl(INADDR_LOOPBACK);
  return found;
}

/// A connection; null if there is none within the time-out.
FileDescriptor connection(std::uint32_t ipv4, std::uint16_t port) {
  FileDescriptor socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!socket) return socket;
  sockaddr_in to{};
  to.sin_family = AF_INET;
  to.sin_port = htons(port);
  to.sin_addr.s_addr = ipv4;
  int failed = ::connect(socket.get(), reinterpret_cast<const sockaddr*>(&to), sizeof to) == 0 ? 0 : errno;
  if (failed == EINPROGRESS) {
    pollfd writable{socket.get(), POLLOUT, 0};
    socklen_t size = sizeof failed;
    if (::poll(&writable, 1, timeout_ms) <= 0 || ::getsockopt(socket.get(), SOL_SOCKET, SO_ERROR, &failed, &size) != 0)
      failed = ETIMEDOUT;
  }
  if (failed != 0) socket.reset();
  return socket;
}

}  // namespace

RemoteDoorbells::RemoteDoorbells(int rank, Doorbell& doorbell) : rank_(rank), doorbell_(doorbell) {
  listening_.reset(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  wake_.reset(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  sockaddr_in any{};
  any.sin_family = AF_INET;
  socklen_t size = sizeof any;
  const bool listens = listening_ && wake_ &&
                       ::bind(listening_.get(), reinterpret_cast<const sockaddr*>(&any), size) == 0 &&
                       ::listen(listening_.get(), 64) == 0 &&
                       ::getsockname(listening_.get(), reinterpret_cast<sockaddr*>(&any), &size) == 0 &&
                       ::getrandom(&address_.token, sizeof address_.token, 0) == sizeof address_.token;
  if (!listens) return;  // this rank and its remote neighbours poll
  address_.ipv4 = own_addresses();
  address_.port = ntohs(any.sin_port);
  thread_ = started_thread("listens to other nodes", [this] { listen(); });
}

RemoteDoorbells::~RemoteDoorbells() {
  stop_ = true;
  wake_listener();
  if (thread_.joinable()) thread_.join();
}

RemoteDoorbells::Edge& RemoteDoorbells::edge(int rank) {
  const std::lock_guard lock(mutex_);
  auto& edge = edges_[rank];
  if (!edge) edge = std::make_unique<Edge>();
  return *edge;
}

void RemoteDoorbells::wake_listener() {
  const std::uint64_t one = 1;
  if (wake_) (void)!::write(wake_.get(), &one, sizeof one);
}

void RemoteDoorbells::connect(int rank) {
  Edge& to = edge(rank);
  if (rank > rank_ || to.socket >= 0 || address_.port == 0 || static_cast<std::size_t>(rank) >= addresses_.size())
    return;
  const Address& there = addresses_[static_cast<std::size_t>(rank)];
  for (std::uint32_t ipv4 : there.ipv4) {
    if (ipv4 == 0 || there.port == 0) continue;
    FileDescriptor socket = connection(ipv4, there.port);
    if (!socket) continue;
    const Greeting greeting{there.token, rank_};
    std::uint64_t answer = 0;  // of the right rank: only it knows its token
    if (write_all(socket.get(), &greeting, sizeof greeting) && read_all(socket.get(), &answer, sizeof answer) &&
        answer == ~there.token) {
      adopt(rank, std::move(socket));
      return;
    }
  }
}

void RemoteDoorbells::adopt(int rank, FileDescriptor socket) {
  const int on = 1;
  (void)::setsockopt(socket.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  edge(rank).socket = socket.release();
  wake_listener();
}

void RemoteDoorbells::sent(int rank) {
  Edge& to = edge(rank);
  to.sent.fetch_add(1);
  if (to.peer_sleeps.load() && to.peer_sleeps.exchange(false)) (void)write_all(to.socket, &ring, sizeof ring);
}

void RemoteDoorbells::received(int rank) {
  ++edge(rank).received;
}

bool RemoteDoorbells::ask(std::span<const int> ranks) {
  for (int rank : ranks) {
    Edge& from = edge(rank);
    const int socket = from.socket;
    if (socket < 0) return false;
    if (from.asked && from.asked_at == from.received) continue;
    from.asked_at = from.received;
    from.asked = true;
    if (!write_all(socket, &from.received, sizeof from.received)) return false;
  }
  return true;
}

// ---- the listener ---------------------------------------------------------------------------------------------------

void RemoteDoorbells::listen() {
  while (!stop_) {
    std::vector<pollfd> sockets{{listening_.get(), POLLIN, 0}, {wake_.get(), POLLIN, 0}};
    std::vector<Edge*> edges;
    {
      const std::lock_guard lock(mutex_);
      for (auto& [rank, edge] : edges_) {
        if (edge->socket < 0) continue;
        sockets.push_back({edge->socket, POLLIN, 0});
        edges.push_back(edge.get());
      }
    }
    if (::poll(sockets.data(), sockets.size(), -1) < 0) continue;
    std::uint64_t ignored = 0;
    if (sockets[1].revents != 0) (void)!::read(wake_.get(), &ignored, sizeof ignored);
    if (sockets[0].revents != 0) accept_one();
    for (std::size_t i = 0; i < edges.size(); ++i) {
      if (sockets[i + 2].revents != 0) read_from(*edges[i]);
    }
  }
}

void RemoteDoorbells::accept_one() {
  FileDescriptor socket(::accept4(listening_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
  if (!socket) return;
  Greeting greeting{};
  const std::uint64_t answer = ~address_.token;
  const bool known =
      read_all(socket.get(), &greeting, sizeof greeting) && greeting.token == address_.token && greeting.rank > rank_;
  if (!known || !write_all(socket.get(), &answer, sizeof answer)) return;
  adopt(static_cast<int>(greeting.rank), std::move(socket));
  doorbell_.ring();  // the rank may have been polling because this edge was missing
}

void RemoteDoorbells::read_from(Edge& edge) {
  std::uint8_t bytes[256];
  const ssize_t count = ::recv(edge.socket, bytes, sizeof bytes, 0);
  if (count < 0 && (errno == EAGAIN || errno == EINTR)) return;
  if (count <= 0) {  // the peer is gone; whether that matters is decided elsewhere
    const FileDescriptor closed_here(edge.socket.exchange(-1));
    doorbell_.ring();
    return;
  }
  edge.incoming.insert(edge.incoming.end(), bytes, bytes + count);
  while (edge.incoming.size() >= sizeof(std::uint64_t)) {
    std::uint64_t word = 0;
    std::memcpy(&word, edge.incoming.data(), sizeof word);
    edge.incoming.erase(edge.incoming.begin(), edge.incoming.begin() + sizeof word);
    if (word == ring) {
      edge.asked = false;
      doorbell_.ring();
      continue;
    }
    edge.peer_sleeps = true;
    if (edge.sent.load() > word && edge.peer_sleeps.exchange(false)) (void)write_all(edge.socket, &ring, sizeof ring);
  }
}

}  // namespace kolo
