#include "models/data/token_windows.h"

#include <algorithm>

namespace kolo::models {

TokenWindows::TokenWindows(std::shared_ptr<const TokenStream> stream, const Settings& settings)
    : stream_(std::move(stream)), settings_(settings) {}

std::int64_t TokenWindows::count() const {
  return std::max<std::int64_t>(settings_.part.count - 1, 0) / settings_.positions;
}

void TokenWindows::gather(std::span<const std::int64_t> examples, std::int64_t, BatchStorage& to) const {
  const auto positions = static_cast<std::size_t>(settings_.positions);
  to.examples = static_cast<std::int64_t>(examples.size());
  to.tokens.resize(examples.size() * positions);
  to.targets.resize(to.tokens.size());
  std::vector<std::int32_t> window(positions + 1);
  for (std::size_t i = 0; i < examples.size(); ++i) {
    stream_->copy(settings_.part.first + examples[i] * settings_.positions, settings_.vocabulary, window);
    const auto at = static_cast<std::ptrdiff_t>(i * positions);
    std::copy(window.begin(), window.end() - 1, to.tokens.begin() + at);
    std::copy(window.begin() + 1, window.end(), to.targets.begin() + at);
  }
}

}  // namespace kolo::models
