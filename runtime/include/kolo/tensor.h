#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <span>
#include <string>
#include <vector>

#include <kolo/device.h>
#include <kolo/dtype.h>

namespace kolo {

/// Extents of a dense, row-major tensor; `Shape{}` is a scalar (one element). At most 8 dimensions.
///
/// A shape with more dimensions or a negative extent can be built but is not `valid()`: submitting it becomes an agreed
/// error on every rank, where throwing here would leave the other ranks waiting.
class Shape {
 public:
  static constexpr int max_dims = 8;

  Shape() = default;
  Shape(std::initializer_list<std::int64_t> extents) : Shape(std::span(extents.begin(), extents.size())) {}
  explicit Shape(std::span<const std::int64_t> extents);

  int dims() const { return dims_; }
  std::int64_t operator[](int dim) const { return extents_[static_cast<std::size_t>(dim)]; }
  std::span<const std::int64_t> extents() const {
    return {extents_.data(), static_cast<std::size_t>(dims_ < max_dims ? dims_ : max_dims)};
  }
  bool valid() const;

  /// Product of the extents; 1 for a scalar, 0 if any extent is 0. Requires valid().
  std::int64_t elements() const { return dims_ == 1 ? extents_[0] : product(); }

  friend bool operator==(const Shape& a, const Shape& b) {
    if (a.dims_ != b.dims_) return false;
    for (std::size_t i = 0; i < a.extents().size(); ++i) {
      if (a.extents_[i] != b.extents_[i]) return false;
    }
    return true;
  }

 private:
  std::int64_t product() const;

  std::array<std::int64_t, max_dims> extents_{};
  int dims_ = 0;
};

/// "[5,4]"; "[]" for a scalar.
std::string to_string(const Shape& shape);

/// A non-owning view of contiguous, row-major elements. Copying it copies the view.
///
/// data    first element; may be null only if the tensor is empty
/// shape   extents in elements
/// device  where `data` points
struct Tensor {
  void* data = nullptr;
  Shape shape{0};
  DType dtype = DType::f32;
  Device device{};

  std::int64_t elements() const { return shape.elements(); }
  std::size_t bytes() const { return static_cast<std::size_t>(elements()) * size_of(dtype); }
};

/// A view of `data` with the given shape. The memory must outlive every operation it is submitted to.
template <class T>
Tensor view(T* data, const Shape& shape) {
  return {data, shape, DTypeOf<T>::value, {}};
}
/// A one-dimensional view of a span, array or vector.
template <class T, std::size_t N>
Tensor view(std::span<T, N> values) {
  return view(values.data(), Shape{static_cast<std::int64_t>(values.size())});
}
template <class T>
Tensor view(std::vector<T>& values) {
  return view(std::span<T>(values));
}
/// A view of one number, as a scalar.
template <class T>
Tensor view_scalar(T& value) {
  return view(&value, Shape{});
}

}  // namespace kolo
