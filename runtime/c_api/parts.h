#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <exception>
#include <memory>
#include <mutex>
#include <new>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <kolo/kolo.h>
#include <kolo/kolo_c.h>

// The objects behind the C API's pointers, and the conversion of its arguments and of exceptions.

struct kolo_config {
  kolo::Config config;
  std::vector<std::string> unknown;  ///< one line for each variable of the environment that is no setting
  mutable std::string text;          ///< the last result of kolo_config_get()
};
struct kolo_store {
  std::unique_ptr<kolo::Store> store;
};
struct kolo_world {
  std::optional<kolo::World> world;  ///< empty once a session has taken it
  kolo::Config config;
};
struct kolo_session {
  kolo::Session session;
};
struct kolo_group {
  kolo::Group group;  ///< with info()
};
struct kolo_memory {
  kolo::Memory memory;
};
struct kolo_arena {
  kolo::GradientArena arena;
};
struct kolo_handle {
  kolo::BlockRows rows;              ///< written by the operation
  std::int64_t* rows_out = nullptr;  ///< the program's array for them
  std::mutex giving;                 ///< of several threads that have waited
  kolo::Handle handle;               ///< last: its destructor blocks until the operation no longer writes to `rows`
};

namespace kolo::c_api {

/// Keeps the text for kolo_last_error() and returns the status.
int fail(kolo_status status, const char* function, std::string_view text) noexcept;
int fail(const Error& error) noexcept;

/// Runs `call` and turns its exceptions into a status. The body of each function of the API is one such call.
template <class Call>
int guarded(Call&& call, const char* function = __builtin_FUNCTION()) noexcept {
  try {
    std::forward<Call>(call)();
    return KOLO_OK;
  } catch (const Error& error) {
    return fail(error);
  } catch (const std::invalid_argument& error) {  // a mistake that only C allows
    return fail(KOLO_INVALID_ARGUMENT, function, error.what());
  } catch (const std::bad_alloc&) {
    return fail(KOLO_BACKEND, function, "out of memory");
  } catch (const std::exception& error) {
    return fail(KOLO_BACKEND, function, error.what());
  } catch (...) {
    return fail(KOLO_BACKEND, function, "an exception of an unknown type");
  }
}

/// The object behind a pointer. Throws std::invalid_argument if it is null.
template <class T>
T& at(T* pointer, std::string_view name) {
  if (!pointer) throw std::invalid_argument(fmt::format("{} is a null pointer", name));
  return *pointer;
}

/// The variable for the result, set to null.
template <class T>
T*& result(T** variable, std::string_view name) {
  T*& made = at(variable, name);
  made = nullptr;
  return made;
}

/// An enumerator from its number, which must be less than `count`.
template <class Enum>
Enum enumerator(int number, int count, std::string_view type) {
  if (number < 0 || number >= count)
    throw std::invalid_argument(fmt::format("{} is no {} (they go from 0 to {})", number, type, count - 1));
  return static_cast<Enum>(number);
}
inline DType dtype_of(int number) {
  return enumerator<DType>(number, dtype_count, "kolo_dtype");
}
inline Device device_of(int kind, int index) {
  return {enumerator<DeviceKind>(kind, 2, "kolo_device_kind"), index};
}

Tensor tensor_of(const kolo_tensor& tensor);
kolo_tensor to_c(const Tensor& tensor);

/// The session's world if null.
inline Group group_of(const kolo_group* group) {
  return group ? group->group : Group();
}

/// A time from a program: NaN and what is negative are 0, and there is a longest one.
inline std::chrono::nanoseconds duration_of(double seconds) {
  constexpr double longest = 1e9;
  const double bounded = std::isnan(seconds) ? 0 : std::clamp(seconds, 0.0, longest);
  return std::chrono::nanoseconds(static_cast<std::int64_t>(bounded * 1e9));
}
inline std::chrono::steady_clock::time_point from_now(double seconds) {
  return std::chrono::steady_clock::now() + duration_of(seconds);
}

/// A copy of `bytes` with a zero behind it, for kolo_free().
void* copy_of(std::string_view bytes);
/// `count` bytes; null is allowed if there are none.
std::string_view bytes_of(const void* bytes, size_t count, std::string_view name = "bytes");

/// Copies the rows that the operation received into the program's array.
void give_rows(kolo_handle& handle);

/// The settings of `config`, or of the environment if it is null. Reports unknown variables.
Config settings_of(const kolo_config* config);

}  // namespace kolo::c_api
