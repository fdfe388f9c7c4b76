#pragma once

#include <memory>
#include <optional>
#include <utility>

namespace kolo {

/// A std::optional for what is hardly ever there: that takes the room of a pointer, and memory of its own if it is.
template <class T>
class Rare {
 public:
  Rare() = default;
  Rare(const Rare& other) : value_(copy_of(other)) {}
  Rare(Rare&&) noexcept = default;
  ~Rare() = default;
  Rare& operator=(const Rare& other) {
    value_ = copy_of(other);
    return *this;
  }
  Rare& operator=(Rare&&) noexcept = default;
  Rare& operator=(T value) {
    value_ = std::make_unique<T>(std::move(value));
    return *this;
  }
  Rare& operator=(std::optional<T> value) {
    value_ = value ? std::make_unique<T>(*std::move(value)) : nullptr;
    return *this;
  }

  explicit operator bool() const { return value_ != nullptr; }
  std::optional<T> optional() const { return value_ ? std::optional<T>(*value_) : std::nullopt; }
  T& operator*() { return *value_; }
  const T& operator*() const { return *value_; }
  T* operator->() { return value_.get(); }
  const T* operator->() const { return value_.get(); }
  void reset() { value_.reset(); }

 private:
  static std::unique_ptr<T> copy_of(const Rare& other) { return other ? std::make_unique<T>(*other) : nullptr; }

  std::unique_ptr<T> value_;
};

}  // namespace kolo
