#pragma once

#include <utility>

namespace kolo {

/// Sole owner of a handle of a C library, which its destructor destroys. `Traits` has the raw type and its destruction:
///
///     struct FileTraits {
///       using Raw = int;
///       static Raw null() noexcept { return -1; }
///       static void destroy(Raw file) noexcept { (void)::close(file); }
///     };
///     using File = Unique<FileTraits>;
template <class Traits>
class Unique final {
 public:
  using Raw = typename Traits::Raw;

  Unique() noexcept = default;
  explicit Unique(Raw raw) noexcept : raw_(raw) {}
  Unique(Unique&& other) noexcept : raw_(other.release()) {}
  Unique& operator=(Unique&& other) noexcept {
    if (this != &other) reset(other.release());
    return *this;
  }
  ~Unique() { reset(); }

  Raw get() const noexcept { return raw_; }
  explicit operator bool() const noexcept { return raw_ != Traits::null(); }

  /// Gives up ownership without destroying.
  Raw release() noexcept { return std::exchange(raw_, Traits::null()); }

  /// Destroys what is held and takes `raw` instead.
  void reset(Raw raw = Traits::null()) noexcept {
    const Raw old = std::exchange(raw_, raw);
    if (old != Traits::null()) Traits::destroy(old);
  }

 private:
  Raw raw_ = Traits::null();
};

}  // namespace kolo
