#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include <kolo/tensor.h>

namespace kolo {

/// DLPack's structures, so that a program needs no other header. They have a namespace of their own, so that it may
/// include one: then `reinterpret_cast` between pointers to the two declarations of a structure.
///
/// Source: the DLPack specification, version 1 (https://dmlc.github.io/dlpack); the layout is that of 64-bit platforms.
namespace dlpack {

enum class DeviceType : std::int32_t { cpu = 1, cuda = 2, cuda_host = 3, cuda_managed = 13 };

enum class TypeCode : std::uint8_t {
  integer = 0,
  unsigned_integer = 1,
  floating_point = 2,
  bfloat = 4,
  complex = 5,
  boolean = 6
};

struct DLDevice {
  DeviceType device_type = DeviceType::cpu;
  std::int32_t device_id = 0;
};

struct DLDataType {
  TypeCode code = TypeCode::floating_point;
  std::uint8_t bits = 32;  ///< of one lane
  std::uint16_t lanes = 1;
};

struct DLTensor {
  void* data = nullptr;
  DLDevice device;
  std::int32_t ndim = 0;
  DLDataType dtype;
  std::int64_t* shape = nullptr;    ///< `ndim` extents; may be null if that is 0
  std::int64_t* strides = nullptr;  ///< `ndim` steps in elements; null: row-major, without gaps
  std::uint64_t byte_offset = 0;    ///< from `data` to the first element
};

/// A tensor and its owner. The last user calls `deleter(self)`, once, unless it is null.
struct DLManagedTensor {
  DLTensor dl_tensor;
  void* manager_ctx = nullptr;
  void (*deleter)(DLManagedTensor* self) = nullptr;
};

struct DLPackVersion {
  std::uint32_t major = 0;
  std::uint32_t minor = 0;
};

inline constexpr std::uint64_t flag_read_only = 1;
inline constexpr std::uint64_t flag_is_copied = 2;

/// The same since version 1.0. With another major version only `version` and `deleter` may be read.
struct DLManagedTensorVersioned {
  DLPackVersion version;
  void* manager_ctx = nullptr;
  void (*deleter)(DLManagedTensorVersioned* self) = nullptr;
  std::uint64_t flags = 0;
  DLTensor dl_tensor;
};

/// The version that to_dlpack() writes; DlpackTensor accepts its major version. Since 1.2 strides are never null.
inline constexpr DLPackVersion version{1, 2};

static_assert(sizeof(DLDevice) == 8 && sizeof(DLDataType) == 4);
static_assert(sizeof(DLTensor) == 48 && offsetof(DLTensor, device) == 8 && offsetof(DLTensor, ndim) == 16 &&
              offsetof(DLTensor, dtype) == 20 && offsetof(DLTensor, shape) == 24 && offsetof(DLTensor, strides) == 32 &&
              offsetof(DLTensor, byte_offset) == 40);
static_assert(sizeof(DLManagedTensor) == 64 && offsetof(DLManagedTensor, manager_ctx) == 48 &&
              offsetof(DLManagedTensor, deleter) == 56);
static_assert(sizeof(DLManagedTensorVersioned) == 80 && offsetof(DLManagedTensorVersioned, manager_ctx) == 8 &&
              offsetof(DLManagedTensorVersioned, deleter) == 16 && offsetof(DLManagedTensorVersioned, flags) == 24 &&
              offsetof(DLManagedTensorVersioned, dl_tensor) == 32);

}  // namespace dlpack

/// A view of the same memory; nothing is copied, and nothing is owned.
///
/// Takes numbers of the types in dtype.h (one lane), in host, pinned, CUDA or CUDA managed memory, aligned to one
/// element, row-major without gaps, with at most 8 dimensions. Throws Error{invalid_argument} for all else.
Tensor from_dlpack(const dlpack::DLTensor& tensor);

/// Owns a tensor that another library exported; its destructor calls the deleter once.
///
///     kolo::DlpackTensor grad(managed);
///     session.all_reduce("grad", grad.tensor());
///
/// The constructors own their argument even if they throw: the deleter has been called then. They throw
/// Error{invalid_argument} for a null pointer, another major version, and tensors that from_dlpack() refuses. A
/// moved-from object may only be destroyed or assigned to.
class DlpackTensor final {
 public:
  explicit DlpackTensor(dlpack::DLManagedTensor* managed);
  explicit DlpackTensor(dlpack::DLManagedTensorVersioned* managed);

  const Tensor& tensor() const { return tensor_; }
  /// Whether the exporter forbids writing: the tensor may be an input, but no output. kolo does not check this.
  bool read_only() const { return read_only_; }

 private:
  std::unique_ptr<void, void (*)(void*)> managed_;
  bool read_only_ = false;
  Tensor tensor_;
};

/// Describes `tensor` for another library, which calls the deleter after its last use; `keep_alive` lives until then,
/// and should own the memory. The caller owns the structure until it passes it on. Throws
/// Error{invalid_argument} if the shape is not valid() or the data is null though there are elements.
dlpack::DLManagedTensorVersioned* to_dlpack(const Tensor& tensor, std::shared_ptr<void> keep_alive);

}  // namespace kolo
