#pragma once

#include <string_view>
#include <vector>

namespace kolo {

/// What KOLO_FAKE_NODES and KOLO_FAKE_DOMAINS say: "2,2" puts ranks 0-1 and 2-3 apart. By rank: the number of its part.
///
/// setting, where  for the error: the setting's name, and what ranks are counted ("on each node")
///
/// Throws Error{invalid_argument} if the text is malformed or does not add up to the number of ranks.
std::vector<int> parts_of_ranks(std::string_view setting, std::string_view where, std::string_view text, int ranks);

}  // namespace kolo
