#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include <kolo/config.h>

#include "runtime/control/channel.h"

namespace kolo {

/// The first thing the ranks of a session do: make sure that everybody is there and that the settings that must be
/// equal are. Along the tree: differences are collected up, the verdict comes down. Throws Error{mismatch} on every
/// rank, naming the setting and the ranks on each side. Waits for ranks that are late; the caller's watchdog says so.
///
/// Returns what ranks that knew the verdict earlier have said to this one meanwhile.
std::vector<ControlChannel::Message> agree_on_settings(ControlChannel& control, const Config& config);

/// The same where the channel itself depends on settings: the settings of a rank as a message, and the check of the
/// messages of all ranks, one after the other. Throws Error{mismatch} with the text above.
std::vector<std::byte> settings_message(const Config& config, int rank);
void check_settings(std::span<const std::byte> messages);

}  // namespace kolo
