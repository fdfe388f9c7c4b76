#include <kolo/error.h>

namespace kolo {

std::string_view to_string(ErrorCode code) {
  switch (code) {
    case ErrorCode::invalid_argument: return "invalid_argument";
    case ErrorCode::mismatch: return "mismatch";
    case ErrorCode::in_flight: return "in_flight";
    case ErrorCode::closed: return "closed";
    case ErrorCode::stalled: return "stalled";
    case ErrorCode::aborted: return "aborted";
    case ErrorCode::backend: return "backend";
  }
  return "unknown error";
}

}  // namespace kolo
