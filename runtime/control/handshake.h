#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include <kolo/config.h>

#include "runtime/control/channel.h"

namespace kolo {

/// The start of a session: waits until every rank has arrived, and checks that settings which must agree are equal.
/// Differences go up the tree, the verdict comes down. Throws Error{mismatch} on every rank, naming the setting and the
/// ranks on each side. The caller's watchdog reports late ranks.
///
/// Returns messages of ranks that knew the verdict earlier.
std::vector<ControlChannel::Message> agree_on_settings(ControlChannel& control, const Config& config);

/// The same check before there is a channel, which itself depends on settings: the settings of one rank as a message,
/// and the check of the messages of all ranks in rank order. Throws Error{mismatch} as above.
std::vector<std::byte> settings_message(const Config& config, int rank);
void check_settings(std::span<const std::byte> messages);

}  // namespace kolo
