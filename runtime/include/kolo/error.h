#pragma once

#include <cstdint>
#include <stdexcept>
#include <string>
#include <string_view>

namespace kolo {

/// The kind of an error. The numeric values are part of the wire format: append only.
enum class ErrorCode : std::uint8_t {
  invalid_argument,  ///< one rank passed an invalid argument; every rank gets this error for that tensor
  mismatch,          ///< ranks submitted the same name with different descriptions
  in_flight,         ///< the name is already in flight on this rank; nothing was announced
  closed,            ///< the session was closed, here or on a rank that takes part
  stalled,           ///< a deadline passed while ranks were missing
  aborted,           ///< a rank left without finishing, is gone, or its runtime failed: groups that have it are over
  backend,           ///< MPI, CUDA, NCCL or the operating system reported an error
};

/// "mismatch", "closed", …
std::string_view to_string(ErrorCode code);

/// An error as a value: crosses threads and ranks unchanged.
struct Failure {
  ErrorCode code = ErrorCode::backend;
  std::string message;
  friend bool operator==(const Failure&, const Failure&) = default;
};

/// The one exception type that leaves the library. `what()` reads *problem (why) what to try*.
class Error : public std::runtime_error {
 public:
  explicit Error(const Failure& failure) : std::runtime_error(failure.message), code_(failure.code) {}
  Error(ErrorCode code, const std::string& message) : std::runtime_error(message), code_(code) {}
  ErrorCode code() const { return code_; }
  Failure failure() const { return {code_, what()}; }

 private:
  ErrorCode code_;
};

/// A call site, captured by a default argument: `Where where = Where::here()`.
struct Where {
  const char* file;
  int line;
  static constexpr Where here(const char* file = __builtin_FILE(), int line = __builtin_LINE()) { return {file, line}; }
};

}  // namespace kolo
