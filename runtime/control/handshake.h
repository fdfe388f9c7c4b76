#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <kolo/config.h>

#include "runtime/control/channel.h"

namespace kolo {

/// The start of a session: waits until every rank has arrived, and checks that settings which must agree are equal.
/// Hashes are compared first; where they differ, the settings go up the tree, and the verdict comes down. Throws
/// Error{mismatch} on every rank, naming the setting and the ranks on each side. The caller's watchdog reports late
/// ranks.
///
/// Returns messages of ranks that knew the verdict earlier.
std::vector<ControlChannel::Message> agree_on_settings(ControlChannel& control, const Config& config);

/// What a rank runs: the version of the control messages, which this and other versions of kolo can tell apart, and of
/// kolo, with the commit it was built from.
struct Build {
  std::uint32_t protocol = 1;
  std::string kolo = own();

  static std::string own();
};

/// The same check before there is a channel, which itself depends on settings, and also of builds: a hash of both,
/// equal on all ranks if they are; if not, those of one rank as a message, and the check of the messages of all ranks
/// in rank order. It throws Error{mismatch} as above, or naming the builds and the hosts that run them.
std::uint64_t hash_of_settings(const Config& config, const Build& build = {});
std::vector<std::byte> settings_message(const Config& config, int rank, std::string_view host, const Build& build = {});
void check_settings(std::span<const std::vector<std::byte>> messages);

}  // namespace kolo
