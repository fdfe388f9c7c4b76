#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "ops/host/file_descriptor.h"
#include "runtime/control/wire.h"

namespace kolo {

/// An IPv4 or IPv6 address, and a port.
struct NetworkAddress {
  bool v6 = false;
  std::array<std::uint8_t, 16> bytes{};  ///< of IPv4 the first four
  std::uint16_t port = 0;                ///< zero: none

  bool operator==(const NetworkAddress&) const = default;
};

/// "10.0.0.1:4242", "[fd00::1]:4242".
std::string to_string(const NetworkAddress& address);

void encode(Writer& writer, const NetworkAddress& address);
NetworkAddress decode_network_address(Reader& reader);

/// This host's addresses, without ports, IPv4 first: those of the interfaces that `interfaces` names, with commas
/// between them (KOLO_INTERFACE); if it is empty those of all interfaces, of the loopback one only if there is no
/// other. Throws Error{invalid_argument} that says which there are if one that is named is not here or has no address.
std::vector<NetworkAddress> own_addresses(std::string_view interfaces);

/// Those of a node's addresses that a host of another name does not have as well: every host may have the same address
/// on a bridge of its own. `hosts` and `addresses` have an entry per node.
std::vector<NetworkAddress> unshared(std::size_t node, std::span<const std::string> hosts,
                                     std::span<const std::vector<NetworkAddress>> addresses);

/// Of `mine`, which is not empty, the one from which packets to one of `theirs` leave; the first if no way leads there.
NetworkAddress address_towards(std::span<const NetworkAddress> mine, std::span<const NetworkAddress> theirs);

/// A socket that listens at this address, whose port is chosen if it is zero. Throws Error{backend}.
FileDescriptor listening_socket(NetworkAddress& at);

/// A socket that is being connected, which does not block; null, with errno, if there is no way to `to`.
FileDescriptor connecting_socket(const NetworkAddress& to);

}  // namespace kolo
