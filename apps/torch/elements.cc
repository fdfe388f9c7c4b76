#include "apps/torch/elements.h"

#include <algorithm>
#include <cstring>

#include "apps/torch/device.h"

namespace kolo_torch {
namespace {

/// How kolo sees an element of a type of torch's.
struct Element {
  kolo::DType dtype;
  std::int64_t each = 1;
  bool is_number = true;
};

Element element_of(at::ScalarType type) {
  using kolo::DType;
  switch (type) {
    case at::kDouble: return {DType::f64};
    case at::kFloat: return {DType::f32};
    case at::kHalf: return {DType::f16};
    case at::kBFloat16: return {DType::bf16};
    case at::kLong: return {DType::i64};
    case at::kInt: return {DType::i32};
    case at::kShort: return {DType::i16};
    case at::kChar: return {DType::i8};
    case at::kUInt64: return {DType::u64};
    case at::kUInt32: return {DType::u32};
    case at::kUInt16: return {DType::u16};
    case at::kByte: return {DType::u8};
    case at::kBool: return {DType::boolean};
    case at::kComplexDouble: return {DType::f64, 2};
    case at::kComplexFloat: return {DType::f32, 2};
    case at::kComplexHalf: return {DType::f16, 2};
    default: return {DType::u8, static_cast<std::int64_t>(c10::elementSize(type)), false};
  }
}

}  // namespace

kolo::Tensor elements(const at::Tensor& tensor) {
  const Element element = element_of(tensor.scalar_type());
  const kolo::Device device =
      tensor.is_cuda() ? kolo::Device{kolo::DeviceKind::cuda, tensor.device().index()} : kolo::Device{};
  return {const_cast<void*>(tensor.const_data_ptr()), kolo::Shape{tensor.numel() * element.each}, element.dtype,
          device};
}

std::int64_t elements_each(at::ScalarType type) {
  return element_of(type).each;
}

bool can_add(at::ScalarType type) {
  return element_of(type).is_number;
}

void check_tensor(const at::Tensor& tensor, const char* operation) {
  TORCH_CHECK_TYPE(tensor.layout() == at::kStrided, operation, ": a tensor is ", tensor.layout(),
                   "; kolo moves dense ones (of sparse ones it has all_reduce)");
  TORCH_CHECK(tensor.is_cpu() || tensor.is_cuda(), operation, ": a tensor is on ", tensor.device(),
              "; kolo moves those in memory of the host and of CUDA GPUs");
}

bool is_plain(const at::Tensor& tensor) {
  return tensor.is_contiguous() && !tensor.is_conj() && !tensor.is_neg();
}

at::Tensor contiguous(const at::Tensor& tensor) {
  return is_plain(tensor) ? tensor : tensor.contiguous().resolve_conj().resolve_neg();
}

void copy_values(const at::Tensor& to, const at::Tensor& from) {
  if (is_plain(to) && to.is_cpu()) {
    if (to.nbytes() > 0) std::memcpy(to.data_ptr(), from.const_data_ptr(), to.nbytes());
  } else {
    to.copy_(from.view(to.sizes()));
    if (!to.is_cpu()) keep_until_here(to);
  }
}

std::function<void()> copy_back(const std::vector<at::Tensor>& tensors, const std::vector<at::Tensor>& copies) {
  if (std::ranges::equal(tensors, copies, [](const auto& a, const auto& b) { return a.is_same(b); })) return {};
  return [tensors, copies] {
    for (std::size_t i = 0; i < tensors.size(); ++i) {
      if (!tensors[i].is_same(copies[i])) copy_values(tensors[i], copies[i]);
    }
  };
}

}  // namespace kolo_torch
