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

}  // namespace kolo::models::cuda
