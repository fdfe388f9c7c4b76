#include "runtime/control/tcp_links.h"

#include <fmt/format.h>
#include <linux/sockios.h>
#include <poll.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <system_error>
#include <thread>
#include <utility>

#include "runtime/control/wire.h"

namespace kolo {
namespace {

using namespace std::chrono_literals;

constexpr std::size_t longest_message = 1 << 30;

std::string text_of(int error) {
  return std::generic_category().message(error);
}

/// Whether the other host is there, and does not have all that was sent.
bool under_way(int socket) {
  pollfd state{socket, 0, 0};  // tells when the other end is gone
  int bytes = 0;
  return socket >= 0 && ::poll(&state, 1, 0) == 0 && ::ioctl(socket, SIOCOUTQ, &bytes) == 0 && bytes > 0;
}

}  // namespace

TcpLinks::TcpLinks(int rank, const Meeting::Secret& secret, FileDescriptor listening,
                   std::function<Meeting::Place(int rank)> place_of, Doorbell& doorbell)
    : poll_(::epoll_create1(EPOLL_CLOEXEC)),
      place_of_(place_of),
      meeting_(rank, secret, std::move(listening), std::move(place_of), poll_.get(), doorbell) {}

/// A socket that is closed before all that came was read takes back what the other host does not have yet. While what
/// came is not read, word of what the other host has may not come through.
TcpLinks::~TcpLinks() {
  const auto deadline = std::chrono::steady_clock::now() + 1s;
  for (const auto& entry : links_) {
    const int socket = entry.second.socket.get();
    while (under_way(socket) && std::chrono::steady_clock::now() < deadline) {
      while (::recv(socket, nullptr, 1 << 20, MSG_TRUNC | MSG_DONTWAIT) > 0) continue;
      if (under_way(socket)) std::this_thread::sleep_for(1ms);
    }
  }
}

void TcpLinks::open(int rank) {
  if (links_.try_emplace(rank).second) meeting_.call(rank);
}

void TcpLinks::send(int to, std::span<const std::byte> message) {
  Link& link = links_[to];
  if (link.closing) return;
  append_framed(link.outgoing, message);
  if (link.socket) unsent_.insert(to);
}

bool TcpLinks::flush() {
  welcome();
  for (const int rank : std::vector(unsent_.begin(), unsent_.end())) push(rank, links_.at(rank));
  return unsent_.empty();
}

/// Writes what fits.
void TcpLinks::push(int rank, Link& link) {
  while (link.socket && link.sent < link.outgoing.size()) {
    const ssize_t count = ::send(link.socket.get(), link.outgoing.data() + link.sent, link.outgoing.size() - link.sent,
                                 MSG_NOSIGNAL | MSG_DONTWAIT);
    if (count >= 0) {
      link.sent += static_cast<std::size_t>(count);
    } else if (errno == EAGAIN || errno == EWOULDBLOCK || errno == ENOBUFS) {
      break;
    } else if (errno != EINTR) {
      link.closing = true;  // what has come from there is still to be read
      link.sent = link.outgoing.size();
    }
  }
  const bool all = link.sent == link.outgoing.size();
  if (all) {
    unsent_.erase(rank);
    link.outgoing.clear();
    link.sent = 0;
  }
  if (link.socket && link.watched_for_room == all) {
    link.watched_for_room = !all;
    watch(EPOLL_CTL_MOD, rank, link);
  }
}

void TcpLinks::watch(int operation, int rank, Link& link) {
  epoll_event event{.events = link.watched_for_room ? EPOLLIN | EPOLLOUT : EPOLLIN,
                    .data = {.u64 = static_cast<std::uint64_t>(rank)}};
  if (::epoll_ctl(poll_.get(), operation, link.socket.get(), &event) != 0) lose(rank, link, text_of(errno));
}

/// Takes the connections that were made.
void TcpLinks::welcome() {
  if (!meeting_.any_met()) return;
  for (Meeting::Met& met : meeting_.take_met()) {
    Link& link = links_[met.rank];
    link.socket = std::move(met.socket);
    ++connected_;
    unsent_.insert(met.rank);
    watch(EPOLL_CTL_ADD, met.rank, link);
    push(met.rank, link);
  }
}

bool TcpLinks::pending() const {
  epoll_event event;
  return !messages_.empty() || !losses_.empty() || meeting_.any_met() ||
         (connected_ > 0 && ::epoll_wait(poll_.get(), &event, 1, 0) > 0);
}

bool TcpLinks::receive(ControlChannel::Message& message) {
  welcome();
  while (messages_.empty() && connected_ > 0 && read()) continue;
  if (messages_.empty()) return false;
  message = std::move(messages_.front());
  messages_.pop_front();
  return true;
}

/// Whether there was something to read.
bool TcpLinks::read() {
  std::array<epoll_event, 16> events;
  const int count = ::epoll_wait(poll_.get(), events.data(), static_cast<int>(events.size()), 0);
  if (count > 0) meeting_.has_come();
  bool any = false;
  for (int i = 0; i < count; ++i) {
    const epoll_event& event = events[static_cast<std::size_t>(i)];
    if ((event.events & ~static_cast<std::uint32_t>(EPOLLOUT)) == 0) continue;
    const int rank = static_cast<int>(event.data.u64);
    read_from(rank, links_.at(rank));
    any = true;
  }
  return any;
}

std::optional<ControlChannel::Loss> TcpLinks::take_loss() {
  if (losses_.empty()) return std::nullopt;
  ControlChannel::Loss loss = std::move(losses_.front());
  losses_.pop_front();
  return loss;
}

void TcpLinks::read_from(int rank, Link& link) {
  std::array<std::byte, 16 << 10> bytes;
  make_room(link.incoming, bytes.size());  // what has been taken from the socket must not be lost
  const ssize_t count = ::recv(link.socket.get(), bytes.data(), bytes.size(), MSG_DONTWAIT);
  if (count > 0) {
    link.incoming.insert(link.incoming.end(), bytes.begin(), bytes.begin() + count);
    const bool sound = take_framed(link.incoming, longest_message, [&](std::span<const std::byte> message) {
      messages_.push_back({rank, {message.begin(), message.end()}});
    });
    if (!sound) lose(rank, link, "what comes over it is no message");
    return;
  }
  if (count < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR)) return;
  lose(rank, link, count == 0 ? "it was closed there" : text_of(errno));
}

void TcpLinks::lose(int rank, Link& link, const std::string& why) {
  link.socket.reset();
  link.closing = true;
  link.outgoing = {};
  link.incoming = {};
  link.sent = 0;
  unsent_.erase(rank);
  --connected_;
  losses_.push_back({rank, fmt::format("{} is gone: the connection to it was lost ({})", place_of_(rank).name, why)});
  meeting_.note(rank, fmt::format("the connection to {} was lost: {}", place_of_(rank).name, why));
}

}  // namespace kolo
