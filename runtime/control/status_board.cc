#include "runtime/control/status_board.h"

#include <algorithm>
#include <cstring>

#include <kolo/detail/hash.h>

namespace kolo {

std::uint64_t StatusBoard::key(GroupKey group, std::string_view name, std::uint64_t occurrence) {
  return detail::Hash().add(static_cast<std::uint64_t>(group.kind)).add(group.id).add(name).add(occurrence).value();
}

void StatusBoard::publish(const Entry& entry) {
  Slot& slot = slots_[index_];
  const auto version = slot.version.load();
  slot.version.store(version + 1);
  slot.beats.store(entry.beats);
  const std::size_t count = std::min(entry.waiting.size(), max_waiting);
  slot.waiting_count.store(count);
  for (std::size_t i = 0; i < count; ++i) slot.waiting[i].store(entry.waiting[i]);
  char text[max_text] = {};
  entry.last_completed.copy(text, max_text);
  for (std::size_t word = 0; word < slot.last_completed.size(); ++word) {
    std::uint64_t value;
    std::memcpy(&value, text + 8 * word, 8);
    slot.last_completed[word].store(value);
  }
  slot.version.store(version + 2);
}

std::optional<StatusBoard::Entry> StatusBoard::read(int rank) const {
  const auto found = std::find(ranks_.begin(), ranks_.end(), rank);
  if (found == ranks_.end()) return std::nullopt;
  const Slot& slot = slots_[found - ranks_.begin()];
  for (int attempt = 0; attempt < 100; ++attempt) {
    const auto version = slot.version.load();
    if (version % 2 == 1) continue;
    Entry entry;
    entry.beats = slot.beats.load();
    const auto count = std::min<std::uint64_t>(slot.waiting_count.load(), max_waiting);
    for (std::size_t i = 0; i < count; ++i) entry.waiting.push_back(slot.waiting[i].load());
    char text[max_text + 1] = {};
    for (std::size_t word = 0; word < slot.last_completed.size(); ++word) {
      const std::uint64_t value = slot.last_completed[word].load();
      std::memcpy(text + 8 * word, &value, 8);
    }
    entry.last_completed = text;
    if (slot.version.load() == version) return entry;
  }
  return std::nullopt;
}

}  // namespace kolo
