#include "runtime/control/network.h"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <memory>
#include <set>
#include <system_error>

#include <kolo/error.h>

namespace kolo {
namespace {

struct SocketAddress {
  sockaddr_storage storage{};
  socklen_t size = sizeof storage;

  sockaddr* get() { return reinterpret_cast<sockaddr*>(&storage); }
};

SocketAddress to_system(const NetworkAddress& address) {
  SocketAddress result;
  if (address.v6) {
    auto* const v6 = reinterpret_cast<sockaddr_in6*>(&result.storage);
    v6->sin6_family = AF_INET6;
    v6->sin6_port = htons(address.port);
    std::memcpy(&v6->sin6_addr, address.bytes.data(), sizeof v6->sin6_addr);
    result.size = sizeof *v6;
  } else {
    auto* const v4 = reinterpret_cast<sockaddr_in*>(&result.storage);
    v4->sin_family = AF_INET;
    v4->sin_port = htons(address.port);
    std::memcpy(&v4->sin_addr, address.bytes.data(), sizeof v4->sin_addr);
    result.size = sizeof *v4;
  }
  return result;
}

NetworkAddress from_system(const sockaddr& address) {
  NetworkAddress result;
  if (address.sa_family == AF_INET6) {
    const auto& v6 = reinterpret_cast<const sockaddr_in6&>(address);
    result.v6 = true;
    result.port = ntohs(v6.sin6_port);
    std::memcpy(result.bytes.data(), &v6.sin6_addr, sizeof v6.sin6_addr);
  } else {
    const auto& v4 = reinterpret_cast<const sockaddr_in&>(address);
    result.port = ntohs(v4.sin_port);
    std::memcpy(result.bytes.data(), &v4.sin_addr, sizeof v4.sin_addr);
  }
  return result;
}

/// Whether other hosts can use it without naming an interface.
bool travels(const sockaddr* address) {
  if (!address) return false;
  if (address->sa_family == AF_INET) return true;
  return address->sa_family == AF_INET6 &&
         !IN6_IS_ADDR_LINKLOCAL(&reinterpret_cast<const sockaddr_in6*>(address)->sin6_addr);
}

FileDescriptor new_socket(const NetworkAddress& address, int type) {
  return FileDescriptor(::socket(address.v6 ? AF_INET6 : AF_INET, type | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
}

std::set<std::string> words(std::string_view list) {
  std::set<std::string> result;
  while (!list.empty()) {
    const auto comma = std::min(list.find(','), list.size());
    if (comma > 0) result.emplace(list.substr(0, comma));
    list.remove_prefix(std::min(comma + 1, list.size()));
  }
  return result;
}

}  // namespace

std::string to_string(const NetworkAddress& address) {
  char text[INET6_ADDRSTRLEN] = {};
  (void)::inet_ntop(address.v6 ? AF_INET6 : AF_INET, address.bytes.data(), text, sizeof text);
  return address.v6 ? fmt::format("[{}]:{}", text, address.port) : fmt::format("{}:{}", text, address.port);
}

void encode(Writer& writer, const NetworkAddress& address) {
  writer.put(address.v6);
  for (const std::uint8_t byte : address.bytes) writer.put(byte);
  writer.put(address.port);
}

NetworkAddress decode_network_address(Reader& reader) {
  NetworkAddress address;
  address.v6 = reader.get<std::uint8_t>() != 0;
  for (std::uint8_t& byte : address.bytes) byte = reader.get<std::uint8_t>();
  address.port = reader.get<std::uint16_t>();
  return address;
}

std::vector<NetworkAddress> own_addresses(std::string_view interfaces) {
  ifaddrs* list = nullptr;
  if (::getifaddrs(&list) != 0)
    throw Error(ErrorCode::backend, fmt::format("the interfaces of this host cannot be listed ({})",
                                                std::generic_category().message(errno)));
  const std::unique_ptr<ifaddrs, decltype(&::freeifaddrs)> owned(list, &::freeifaddrs);
  const std::set<std::string> wanted = words(interfaces);
  std::set<std::string> here;
  std::vector<NetworkAddress> found, loopback;
  for (const ifaddrs* one = list; one; one = one->ifa_next) {
    if (!travels(one->ifa_addr) || !(one->ifa_flags & IFF_UP)) continue;
    here.insert(one->ifa_name);
    if (!wanted.empty() && !wanted.contains(one->ifa_name)) continue;
    auto& to = wanted.empty() && (one->ifa_flags & IFF_LOOPBACK) ? loopback : found;
    to.push_back(from_system(*one->ifa_addr));
  }
  for (const std::string& name : wanted) {
    if (!here.contains(name))
      throw Error(ErrorCode::invalid_argument,
                  fmt::format("KOLO_INTERFACE={}: no interface {} with an address is up on this host; there is {}",
                              interfaces, name, fmt::join(here, ", ")));
  }
  if (found.empty()) found = std::move(loopback);
  if (found.empty())
    throw Error(ErrorCode::backend, "no interface of this host has an address; other nodes cannot reach it");
  std::stable_partition(found.begin(), found.end(), [](const NetworkAddress& address) { return !address.v6; });
  return found;
}

std::vector<NetworkAddress> unshared(std::size_t node, std::span<const std::string> hosts,
                                     std::span<const std::vector<NetworkAddress>> addresses) {
  std::vector<NetworkAddress> result = addresses[node];
  for (std::size_t i = 0; i < hosts.size(); ++i) {
    if (hosts[i] == hosts[node]) continue;
    std::erase_if(
        result, [&](const NetworkAddress& one) { return std::ranges::find(addresses[i], one) != addresses[i].end(); });
  }
  return result;
}

NetworkAddress address_towards(std::span<const NetworkAddress> mine, std::span<const NetworkAddress> theirs) {
  for (NetworkAddress there : theirs) {
    there.port = 9;  // any: nothing is sent
    const FileDescriptor socket = new_socket(there, SOCK_DGRAM);
    SocketAddress to = to_system(there), from;
    if (!socket || ::connect(socket.get(), to.get(), to.size) != 0 ||
        ::getsockname(socket.get(), from.get(), &from.size) != 0)
      continue;
    NetworkAddress source = from_system(*from.get());
    source.port = 0;
    if (const auto found = std::ranges::find(mine, source); found != mine.end()) return *found;
  }
  return mine.front();
}

FileDescriptor listening_socket(NetworkAddress& at) {
  FileDescriptor socket = new_socket(at, SOCK_STREAM);
  SocketAddress here = to_system(at);
  if (!socket || ::bind(socket.get(), here.get(), here.size) != 0 || ::listen(socket.get(), SOMAXCONN) != 0 ||
      ::getsockname(socket.get(), here.get(), &here.size) != 0)
    throw Error(ErrorCode::backend, fmt::format("cannot listen for other nodes on {} ({}); KOLO_INTERFACE names others",
                                                to_string(at), std::generic_category().message(errno)));
  at = from_system(*here.get());
  return socket;
}

FileDescriptor connecting_socket(const NetworkAddress& to) {
  FileDescriptor socket = new_socket(to, SOCK_STREAM);
  SocketAddress there = to_system(to);
  if (socket && ::connect(socket.get(), there.get(), there.size) != 0 && errno != EINPROGRESS) {
    const int why = errno;
    socket.reset();
    errno = why;
  }
  return socket;
}

}  // namespace kolo
