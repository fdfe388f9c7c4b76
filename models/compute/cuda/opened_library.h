#pragma once

#include <dlfcn.h>

#include <kolo/detail/unique.h>

namespace kolo::models::cuda {

struct LibraryTraits {
  using Raw = void*;
  static Raw null() noexcept { return nullptr; }
  static void destroy(Raw library) noexcept { (void)dlclose(library); }
};
/// A shared library; none where it was not found.
class OpenedLibrary {
 public:
  explicit OpenedLibrary(const char* name) : library_(dlopen(name, RTLD_NOW | RTLD_LOCAL)) {}

  explicit operator bool() const { return static_cast<bool>(library_); }
  /// Whether it has a function of this name, which `function` then is.
  template <class Function>
  bool find(Function& function, const char* name) const {
    function = reinterpret_cast<Function>(dlsym(library_.get(), name));
    return function != nullptr;
  }

 private:
  Unique<LibraryTraits> library_;
};

/// Of a handle that one of a library's functions destroys, for Unique<>.
template <class Functions, class Handle, auto destroyer>
struct HandleTraits {
  struct Raw {
    const Functions* functions = nullptr;
    Handle handle = nullptr;
    bool operator==(const Raw&) const = default;
  };
  static Raw null() noexcept { return {}; }
  static void destroy(const Raw& raw) noexcept { (void)(raw.functions->*destroyer)(raw.handle); }
};

}  // namespace kolo::models::cuda
