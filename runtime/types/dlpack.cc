#include <kolo/dlpack.h>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include <kolo/error.h>

namespace kolo {
namespace {

using dlpack::DeviceType;
using dlpack::DLManagedTensor;
using dlpack::DLManagedTensorVersioned;
using dlpack::DLTensor;
using dlpack::TypeCode;

[[noreturn]] void refuse(std::string_view problem) {
  throw Error(ErrorCode::invalid_argument, fmt::format("the DLPack tensor {}", problem));
}

dlpack::DLDataType type_of(DType dtype) {
  const auto bits = static_cast<std::uint8_t>(8 * size_of(dtype));
  switch (dtype) {
    case DType::f64:
    case DType::f32:
    case DType::f16: return {TypeCode::floating_point, bits};
    case DType::bf16: return {TypeCode::bfloat, bits};
    case DType::i64:
    case DType::i32:
    case DType::i16:
    case DType::i8: return {TypeCode::integer, bits};
    case DType::u64:
    case DType::u32:
    case DType::u16:
    case DType::u8: return {TypeCode::unsigned_integer, bits};
    case DType::boolean: return {TypeCode::boolean, bits};
  }
  return {};
}

/// "float32", "type 17 of 4 bits".
std::string to_text(const dlpack::DLDataType& type) {
  switch (type.code) {
    case TypeCode::integer: return fmt::format("int{}", type.bits);
    case TypeCode::unsigned_integer: return fmt::format("uint{}", type.bits);
    case TypeCode::floating_point: return fmt::format("float{}", type.bits);
    case TypeCode::bfloat: return fmt::format("bfloat{}", type.bits);
    case TypeCode::complex: return fmt::format("complex{}", type.bits);
    case TypeCode::boolean: return fmt::format("bool{}", type.bits);
  }
  return fmt::format("type {} of {} bits", static_cast<int>(type.code), type.bits);
}

DType dtype_of(const dlpack::DLDataType& type) {
  if (type.lanes != 1) {
    refuse(fmt::format("holds vectors of {} lanes of {} (only one lane works); make the lanes a dimension", type.lanes,
                       to_text(type)));
  }
  for (int i = 0; i < dtype_count; ++i) {
    const auto dtype = static_cast<DType>(i);
    const dlpack::DLDataType candidate = type_of(dtype);
    if (candidate.code == type.code && candidate.bits == type.bits) return dtype;
  }
  refuse(fmt::format("holds elements of {} (no type of kolo's); convert it, or view it as one of another type",
                     to_text(type)));
}

Device device_of(const dlpack::DLDevice& device) {
  switch (device.device_type) {
    case DeviceType::cpu:
    case DeviceType::cuda_host: return {};
    case DeviceType::cuda:
    case DeviceType::cuda_managed:
      if (device.device_id < 0) {
        refuse(fmt::format("lies on CUDA device {}; pass one with a number from 0", device.device_id));
      }
      return {DeviceKind::cuda, device.device_id};
  }
  refuse(fmt::format(
      "lies on a device of type {} (only CPU 1, CUDA 2, pinned host 3 and CUDA managed 13 work); copy it to the host",
      static_cast<int>(device.device_type)));
}

Shape shape_of(const DLTensor& tensor) {
  if (tensor.ndim < 0) refuse(fmt::format("has {} dimensions; pass 0 for a scalar", tensor.ndim));
  if (tensor.ndim > Shape::max_dims) {
    refuse(fmt::format("has {} dimensions (at most {} work); reshape it", tensor.ndim, Shape::max_dims));
  }
  if (tensor.ndim == 0) return {};
  if (!tensor.shape) refuse(fmt::format("has {} dimensions, but its shape is a null pointer; set it", tensor.ndim));
  const Shape shape(std::span<const std::int64_t>(tensor.shape, static_cast<std::size_t>(tensor.ndim)));
  if (!shape.valid()) {
    refuse(fmt::format("has the shape {}, with a negative extent or too many elements; pass a smaller one",
                       to_string(shape)));
  }
  return shape;
}

std::array<std::int64_t, Shape::max_dims> row_major_strides(const Shape& shape) {
  std::array<std::int64_t, Shape::max_dims> strides{};
  if (shape.elements() == 0) return strides;  // any will do, and products of the other extents may overflow
  std::int64_t step = 1;
  for (int dim = shape.dims() - 1; dim >= 0; --dim) {
    strides[static_cast<std::size_t>(dim)] = step;
    step *= shape[dim];
  }
  return strides;
}

void check_strides(const std::int64_t* strides, const Shape& shape) {
  if (!strides || shape.elements() == 0) return;
  const auto wanted = row_major_strides(shape);
  const auto dims = static_cast<std::size_t>(shape.dims());
  for (std::size_t dim = 0; dim < dims; ++dim) {
    if (shape.extents()[dim] == 1 || strides[dim] == wanted[dim]) continue;
    refuse(fmt::format(
        "has the strides [{}] (for the shape {} only [{}] works, row-major without gaps); make it contiguous",
        fmt::join(std::span(strides, dims), ","), to_string(shape), fmt::join(std::span(wanted).first(dims), ",")));
  }
}

void* data_of(const DLTensor& tensor, const Shape& shape, DType dtype) {
  if (!tensor.data) {
    if (shape.elements() > 0) {
      refuse(fmt::format("has the shape {}, but its data is a null pointer; set it", to_string(shape)));
    }
    return nullptr;
  }
  std::byte* data = static_cast<std::byte*>(tensor.data) + tensor.byte_offset;
  const auto beyond = reinterpret_cast<std::uintptr_t>(data) % size_of(dtype);
  if (beyond != 0 && shape.elements() > 0) {
    refuse(fmt::format(
        "begins {} byte{} beyond a multiple of {} (elements of {} must be aligned; byte_offset is {}); copy it", beyond,
        beyond == 1 ? "" : "s", size_of(dtype), to_string(dtype), tensor.byte_offset));
  }
  return data;
}

template <class Managed>
void release(void* pointer) {
  auto* managed = static_cast<Managed*>(pointer);
  if (managed->deleter) managed->deleter(managed);
}

/// What to_dlpack() allocates.
struct Exported {
  DLManagedTensorVersioned managed;
  std::array<std::int64_t, Shape::max_dims> shape{};
  std::array<std::int64_t, Shape::max_dims> strides{};
  std::shared_ptr<void> keep_alive;
};

}  // namespace

Tensor from_dlpack(const DLTensor& tensor) {
  const Shape shape = shape_of(tensor);
  const DType dtype = dtype_of(tensor.dtype);
  const Device device = device_of(tensor.device);
  check_strides(tensor.strides, shape);
  return {data_of(tensor, shape, dtype), shape, dtype, device};
}

DlpackTensor::DlpackTensor(DLManagedTensor* managed) : managed_(managed, release<DLManagedTensor>) {
  if (!managed) refuse("is a null pointer; pass what the other library exported");
  tensor_ = from_dlpack(managed->dl_tensor);
}

DlpackTensor::DlpackTensor(DLManagedTensorVersioned* managed) : managed_(managed, release<DLManagedTensorVersioned>) {
  if (!managed) refuse("is a null pointer; pass what the other library exported");
  if (managed->version.major != dlpack::version.major) {
    refuse(fmt::format("has version {}.{} (only {}.x works); ask for one with max_version = ({}, {})",
                       managed->version.major, managed->version.minor, dlpack::version.major, dlpack::version.major,
                       dlpack::version.minor));
  }
  read_only_ = (managed->flags & dlpack::flag_read_only) != 0;
  tensor_ = from_dlpack(managed->dl_tensor);
}

DLManagedTensorVersioned* to_dlpack(const Tensor& tensor, std::shared_ptr<void> keep_alive) {
  if (!tensor.shape.valid()) {
    throw Error(
        ErrorCode::invalid_argument,
        fmt::format(
            "cannot export a tensor of shape {} (a negative extent, too many elements, or more than {} dimensions)",
            to_string(tensor.shape), Shape::max_dims));
  }
  if (!tensor.data && tensor.elements() > 0) {
    throw Error(ErrorCode::invalid_argument,
                fmt::format("cannot export a tensor whose memory is a null pointer (its shape is {})",
                            to_string(tensor.shape)));
  }
  auto exported = std::make_unique<Exported>();
  std::ranges::copy(tensor.shape.extents(), exported->shape.begin());
  exported->strides = row_major_strides(tensor.shape);
  exported->keep_alive = std::move(keep_alive);

  DLManagedTensorVersioned& managed = exported->managed;
  managed.version = dlpack::version;
  managed.manager_ctx = exported.get();
  managed.deleter = [](DLManagedTensorVersioned* self) { delete static_cast<Exported*>(self->manager_ctx); };
  const bool on_cuda = tensor.device.kind == DeviceKind::cuda;
  managed.dl_tensor = {.data = tensor.data,
                       .device = {on_cuda ? DeviceType::cuda : DeviceType::cpu, tensor.device.index},
                       .ndim = tensor.shape.dims(),
                       .dtype = type_of(tensor.dtype),
                       .shape = exported->shape.data(),
                       .strides = exported->strides.data()};
  return &exported.release()->managed;
}

}  // namespace kolo
