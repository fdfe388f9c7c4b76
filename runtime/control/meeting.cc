#include "runtime/control/meeting.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <system_error>

#include <kolo/error.h>

#include "runtime/control/started_thread.h"

namespace kolo {
namespace {

using namespace std::chrono_literals;

constexpr auto guest_time = 10s;   // in which a caller must have said who it is
constexpr auto connect_time = 5s;  // in which there must be an answer of some host
constexpr auto call_again = 1s;
constexpr auto lower_waits = 20ms;  // for the other's call, before it calls itself
constexpr auto no_descriptors = 100ms;
constexpr std::size_t most_guests = 256;

struct Greeting {
  std::array<char, 8> what{'k', 'o', 'l', 'o', ' ', 't', 'c', 'p'};
  std::int32_t from = 0, to = 0;
  std::array<std::byte, 16> secret{};
};
using Answer = std::array<std::byte, 16>;

// What an event is about: one of these, or a guest, or a call.
enum Tag : std::uint64_t { wake_tag, listening_tag, handed_over_tag, links_tag, first_guest = 16 };
constexpr std::uint64_t call_bit = std::uint64_t{1} << 63;

[[noreturn]] void throw_errno(const char* what) {
  throw Error(ErrorCode::backend,
              fmt::format("{} failed ({}); raise ulimit -n", what, std::generic_category().message(errno)));
}

void set_option(int socket, int level, int option, int value) {
  (void)::setsockopt(socket, level, option, &value, sizeof value);
}

/// Finds out when the other host is gone or the link is down, within half a minute.
void keep_alive(int socket) {
  set_option(socket, SOL_SOCKET, SO_KEEPALIVE, 1);
  set_option(socket, IPPROTO_TCP, TCP_KEEPIDLE, 10);
  set_option(socket, IPPROTO_TCP, TCP_KEEPINTVL, 3);
  set_option(socket, IPPROTO_TCP, TCP_KEEPCNT, 5);
  set_option(socket, IPPROTO_TCP, TCP_USER_TIMEOUT, 25000);
}

/// Of the abstract kind, which leaves no file behind.
std::pair<sockaddr_un, socklen_t> unix_address(const Meeting::Secret& secret, int rank) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::string name = "kolo-";
  for (const std::byte byte : secret.name) name += fmt::format("{:02x}", static_cast<unsigned>(byte));
  name += fmt::format("-{}", rank);
  std::copy(name.begin(), name.end(), address.sun_path + 1);
  return {address, static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size())};
}

/// A message of one byte, of which only the descriptor that comes with it counts (unix(7), SCM_RIGHTS).
class DescriptorMessage {
 public:
  DescriptorMessage() {
    message.msg_iov = &data_;
    message.msg_iovlen = 1;
    message.msg_control = control_.data();
    message.msg_controllen = CMSG_LEN(sizeof(int));  // there is room for two
  }
  DescriptorMessage(const DescriptorMessage&) = delete;
  DescriptorMessage& operator=(const DescriptorMessage&) = delete;

  void set(int descriptor) {
    cmsghdr* const header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(sizeof descriptor);
    std::memcpy(CMSG_DATA(header), &descriptor, sizeof descriptor);
  }
  /// What has come; none, if nothing else has.
  FileDescriptor take() {
    const cmsghdr* const header = CMSG_FIRSTHDR(&message);
    int descriptor = -1;
    if (header && header->cmsg_level == SOL_SOCKET && header->cmsg_type == SCM_RIGHTS &&
        header->cmsg_len == CMSG_LEN(sizeof descriptor))
      std::memcpy(&descriptor, CMSG_DATA(header), sizeof descriptor);
    return FileDescriptor(descriptor);
  }

  msghdr message{};

 private:
  char byte_ = 0;
  iovec data_{&byte_, 1};
  alignas(cmsghdr) std::array<std::byte, CMSG_SPACE(sizeof(int))> control_{};
};

}  // namespace

Meeting::Secret Meeting::new_secret() {
  Secret secret;
  static_assert(sizeof secret == 48);
  if (::getrandom(&secret, sizeof secret, 0) != sizeof secret) throw_errno("getrandom()");
  return secret;
}

Meeting::Meeting(int rank, const Secret& secret, FileDescriptor listening, std::function<Place(int rank)> place_of,
                 int links, Doorbell& doorbell)
    : rank_(rank),
      secret_(secret),
      listening_(std::move(listening)),
      place_of_(std::move(place_of)),
      links_(links),
      doorbell_(doorbell),
      poll_(::epoll_create1(EPOLL_CLOEXEC)),
      wake_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
  if (!poll_ || !wake_) throw_errno("making a descriptor to wait on");
  watch(wake_.get(), EPOLLIN, wake_tag);
  watch(links_, EPOLLONESHOT, links_tag);
  if (listening_) {
    watch(listening_.get(), EPOLLIN, listening_tag);
  } else {
    handed_over_.reset(::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    const auto [address, size] = unix_address(secret_, rank_);
    if (!handed_over_ || ::bind(handed_over_.get(), reinterpret_cast<const sockaddr*>(&address), size) != 0)
      throw_errno("making a Unix socket");
    watch(handed_over_.get(), EPOLLIN, handed_over_tag);
  }
  thread_ = started_thread("meets other nodes", [this] { run(); });
}

Meeting::~Meeting() {
  stop_ = true;
  wake();
  if (thread_.joinable()) thread_.join();
}

// ---- any thread -----------------------------------------------------------------------------------------------------

void Meeting::wake() {
  const std::uint64_t one = 1;
  (void)!::write(wake_.get(), &one, sizeof one);
}

void Meeting::call(int rank) {
  {
    const std::lock_guard lock(mutex_);
    called_.push_back(rank);
  }
  wake();
}

std::vector<Meeting::Met> Meeting::take_met() {
  const std::lock_guard lock(mutex_);
  any_met_ = false;
  return std::exchange(met_, {});
}

void Meeting::listen() {
  if (listens_.exchange(true)) return;
  epoll_event event{.events = EPOLLIN | EPOLLONESHOT, .data = {.u64 = links_tag}};
  (void)::epoll_ctl(poll_.get(), EPOLL_CTL_MOD, links_, &event);
}

void Meeting::has_come() {
  if (listens_.exchange(false)) doorbell_.ring();
}

void Meeting::note(int rank, std::string trouble) {
  const std::lock_guard lock(mutex_);
  if (trouble.empty()) {
    troubles_.erase(rank);
  } else {
    troubles_[rank] = std::move(trouble);
  }
}

std::string Meeting::troubles() const {
  const std::lock_guard lock(mutex_);
  std::vector<std::string> all;
  for (const auto& [rank, trouble] : troubles_) all.push_back(trouble);
  return fmt::format("{}", fmt::join(all, "; "));
}

// ---- the thread -----------------------------------------------------------------------------------------------------

void Meeting::run() {
  while (!stop_) {
    std::array<epoll_event, 32> events;
    const int count = ::epoll_wait(poll_.get(), events.data(), static_cast<int>(events.size()), milliseconds_to_wait());
    for (int i = 0; i < count; ++i) act(events[static_cast<std::size_t>(i)].data.u64);
    look_at_the_clock();
  }
}

void Meeting::act(std::uint64_t tag) {
  switch (tag) {
    case wake_tag: return read_wake();
    case listening_tag: return admit_callers();
    case handed_over_tag: return admit_handed_over();
    case links_tag: listens_ = false; return doorbell_.ring();
    default: return (tag & call_bit) != 0 ? go_on(static_cast<int>(tag ^ call_bit)) : hear(tag);
  }
}

void Meeting::watch(int socket, std::uint32_t events, std::uint64_t tag) {
  epoll_event event{.events = events, .data = {.u64 = tag}};
  if (::epoll_ctl(poll_.get(), EPOLL_CTL_ADD, socket, &event) != 0 && errno == EEXIST)
    (void)::epoll_ctl(poll_.get(), EPOLL_CTL_MOD, socket, &event);
}

int Meeting::milliseconds_to_wait() const {
  auto next = Clock::time_point::max();
  if (admits_from_) next = *admits_from_;
  if (!guests_.empty()) next = std::min(next, guests_.begin()->second.leaves);  // the oldest
  for (const auto& [rank, call] : calls_) {
    if (call.state != State::greeting) next = std::min(next, call.due);
  }
  if (next == Clock::time_point::max()) return -1;
  return static_cast<int>(
      std::clamp<std::int64_t>(std::chrono::ceil<std::chrono::milliseconds>(next - Clock::now()).count(), 0, 60000));
}

void Meeting::look_at_the_clock() {
  const auto now = Clock::now();
  if (admits_from_ && now >= *admits_from_) {
    admits_from_.reset();
    watch(listening_.get(), EPOLLIN, listening_tag);
  }
  std::erase_if(guests_, [&](const auto& guest) { return guest.second.leaves <= now; });
  for (auto& [rank, call] : calls_) {
    if (call.state == State::greeting || call.due > now) continue;
    call.state == State::waiting ? begin(rank, call) : fail(rank, call, ETIMEDOUT);
  }
}

void Meeting::read_wake() {
  std::uint64_t ignored = 0;
  (void)!::read(wake_.get(), &ignored, sizeof ignored);
  std::vector<int> called;
  {
    const std::lock_guard lock(mutex_);
    called.swap(called_);
  }
  for (const int rank : called) {
    if (!have_met_.contains(rank))
      calls_.try_emplace(rank, Call{.due = Clock::now() + (rank > rank_ ? lower_waits : 0ms)});
  }
}

// ---- being called ---------------------------------------------------------------------------------------------------

void Meeting::admit_callers() {
  for (;;) {
    FileDescriptor socket(::accept4(listening_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (socket) {
      admit(std::move(socket));
    } else if (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM) {
      watch(listening_.get(), 0, listening_tag);  // else it would be tried without end
      admits_from_ = Clock::now() + no_descriptors;
      return;
    } else if (errno != ECONNABORTED && errno != EINTR) {
      return;
    }
  }
}

void Meeting::admit(FileDescriptor socket) {
  if (guests_.size() >= most_guests) guests_.erase(guests_.begin());
  const std::uint64_t tag = first_guest + guests_ever_++;
  set_option(socket.get(), SOL_SOCKET, SO_RCVLOWAT, sizeof(Greeting));  // readable when it is whole
  watch(socket.get(), EPOLLIN | EPOLLRDHUP, tag);
  guests_.emplace(tag, Guest{std::move(socket), Clock::now() + guest_time});
}

/// Looks at the greeting without taking it, since it may be for another rank of the node.
void Meeting::hear(std::uint64_t guest) {
  const auto found = guests_.find(guest);
  if (found == guests_.end()) return;
  FileDescriptor socket = std::move(found->second.socket);
  guests_.erase(found);
  Greeting greeting;
  const bool known = ::recv(socket.get(), &greeting, sizeof greeting, MSG_PEEK) == sizeof greeting &&
                     greeting.what == Greeting{}.what && greeting.secret == secret_.of_callers;
  if (!known) return;
  if (greeting.to != rank_) {
    (void)::epoll_ctl(poll_.get(), EPOLL_CTL_DEL, socket.get(), nullptr);
    return hand_over(greeting.to, std::move(socket));
  }
  const auto own = calls_.find(greeting.from);
  const bool busy = own != calls_.end() && own->second.state != State::waiting && greeting.from < rank_;
  if (busy || have_met_.contains(greeting.from)) return;
  (void)!::recv(socket.get(), &greeting, sizeof greeting, 0);
  if (::send(socket.get(), &secret_.of_called, sizeof secret_.of_called, MSG_NOSIGNAL) != sizeof(Answer)) return;
  meet(greeting.from, std::move(socket));
}

/// If that fails, the caller calls again.
void Meeting::hand_over(int rank, FileDescriptor socket) {
  if (!listening_ || rank < 0) return;
  auto [address, size] = unix_address(secret_, rank);
  DescriptorMessage with_socket;
  with_socket.message.msg_name = &address;
  with_socket.message.msg_namelen = size;
  with_socket.set(socket.get());
  const FileDescriptor sender(::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (sender) (void)::sendmsg(sender.get(), &with_socket.message, MSG_NOSIGNAL);
}

/// Whoever hands something over is no more trusted than whoever calls.
void Meeting::admit_handed_over() {
  for (;;) {
    DescriptorMessage with_socket;
    if (::recvmsg(handed_over_.get(), &with_socket.message, MSG_CMSG_CLOEXEC) < 0) return;
    if (FileDescriptor socket = with_socket.take()) admit(std::move(socket));
  }
}

// ---- calling --------------------------------------------------------------------------------------------------------

void Meeting::begin(int rank, Call& call) {
  call.socket = connecting_socket(place_of_(rank).address);
  if (!call.socket) return fail(rank, call, errno);
  call.state = State::connecting;
  call.due = Clock::now() + connect_time;
  watch(call.socket.get(), EPOLLOUT, call_bit | static_cast<std::uint64_t>(rank));
}

/// It is connected, or has been answered, or has failed.
void Meeting::go_on(int rank) {
  const auto found = calls_.find(rank);
  if (found == calls_.end() || found->second.state == State::waiting) return;
  Call& call = found->second;
  const int socket = call.socket.get();
  if (call.state == State::connecting) {
    int error = 0;
    socklen_t size = sizeof error;
    if (::getsockopt(socket, SOL_SOCKET, SO_ERROR, &error, &size) != 0 || error != 0) return fail(rank, call, error);
    const Greeting greeting{.from = rank_, .to = rank, .secret = secret_.of_callers};
    if (::send(socket, &greeting, sizeof greeting, MSG_NOSIGNAL) != sizeof greeting) return fail(rank, call, errno);
    keep_alive(socket);  // the other one may take its time to answer
    set_option(socket, SOL_SOCKET, SO_RCVLOWAT, sizeof(Answer));
    call.state = State::greeting;
    const Place place = place_of_(rank);
    note(rank, fmt::format("{} does not answer at {}", place.name, to_string(place.address)));
    return watch(socket, EPOLLIN | EPOLLRDHUP, call_bit | static_cast<std::uint64_t>(rank));
  }
  Answer answer;
  const ssize_t count = ::recv(socket, answer.data(), answer.size(), 0);
  if (count < 0 && (errno == EAGAIN || errno == EINTR)) return;
  if (count != sizeof answer || answer != secret_.of_called) return fail(rank, call, count < 0 ? errno : ECONNREFUSED);
  meet(rank, std::move(call.socket));
}

void Meeting::fail(int rank, Call& call, int error) {
  const Place place = place_of_(rank);
  note(rank, fmt::format("no connection to {} at {}: {}", place.name, to_string(place.address),
                         std::generic_category().message(error)));
  call.socket.reset();
  call.state = State::waiting;
  call.due = Clock::now() + call_again;
}

void Meeting::meet(int rank, FileDescriptor socket) {
  (void)::epoll_ctl(poll_.get(), EPOLL_CTL_DEL, socket.get(), nullptr);
  set_option(socket.get(), SOL_SOCKET, SO_RCVLOWAT, 1);
  set_option(socket.get(), IPPROTO_TCP, TCP_NODELAY, 1);
  keep_alive(socket.get());
  have_met_.insert(rank);
  calls_.erase(rank);
  note(rank, "");
  {
    const std::lock_guard lock(mutex_);
    met_.push_back({rank, std::move(socket)});
    any_met_.store(true, std::memory_order_release);
  }
  doorbell_.ring();
}

}  // namespace kolo
