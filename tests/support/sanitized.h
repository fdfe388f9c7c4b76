#pragma once

namespace kolo {

/// Whether this is a build with sanitizers, where everything takes many times as long.
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
inline constexpr bool sanitized = true;
#else
inline constexpr bool sanitized = false;
#endif

}  // namespace kolo
