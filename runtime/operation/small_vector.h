#pragma once

#include <cstddef>
#include <utility>
#include <vector>

namespace kolo {

/// A list that mostly has one element, which then needs no memory of its own.
template <class T>
class SmallVector {
 public:
  void push_back(T value) {
    if (size_ == 1) many_.push_back(std::move(one_));
    size_ == 0 ? void(one_ = std::move(value)) : many_.push_back(std::move(value));
    ++size_;
  }
  std::size_t size() const { return size_; }
  bool empty() const { return size_ == 0; }
  T* begin() { return size_ > 1 ? many_.data() : &one_; }
  T* end() { return begin() + size_; }
  const T* begin() const { return const_cast<SmallVector*>(this)->begin(); }
  const T* end() const { return begin() + size_; }
  T& operator[](std::size_t i) { return begin()[i]; }
  const T& operator[](std::size_t i) const { return begin()[i]; }
  const T& front() const { return *begin(); }

 private:
  T one_{};
  std::vector<T> many_;  // all, if there are several
  std::size_t size_ = 0;
};

}  // namespace kolo
