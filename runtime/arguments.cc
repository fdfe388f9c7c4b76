#include "runtime/arguments.h"

#include <fmt/format.h>

#include <cmath>
#include <cstdint>

namespace kolo {
namespace {

std::optional<Failure> refuse(std::string message) { return Failure{ErrorCode::invalid_argument, std::move(message)}; }

bool overlap_partly(const Tensor& a, const Tensor& b) {
  const auto begin_a = reinterpret_cast<std::uintptr_t>(a.data);
  const auto begin_b = reinterpret_cast<std::uintptr_t>(b.data);
  return begin_a != begin_b && begin_a < begin_b + b.bytes() && begin_b < begin_a + a.bytes();
}

/// Whether the op and the scales suit the type.
std::optional<Failure> check_reduction(const Signature& signature) {
  const ReduceOp op = signature.op;
  const DType dtype = signature.dtype;
  if (!reducible(op, dtype)) {
    const std::string_view advice = dtype == DType::boolean ? "use logical_or or logical_and, or convert to an integer type"
                                                            : "use an integer type or bool";
    return refuse(fmt::format("{} of {} is not defined; {}", to_string(op), to_string(dtype), advice));
  }
  if (!std::isfinite(signature.prescale) || !std::isfinite(signature.postscale)) {
    return refuse(fmt::format("prescale {} and postscale {} must be finite numbers", signature.prescale, signature.postscale));
  }
  if (!scalable(op, dtype) && (signature.prescale != 1 || signature.postscale != 1)) {
    return refuse(fmt::format("{} of {} takes no scales (prescale is {}, postscale is {}); leave them at 1", to_string(op),
                              to_string(dtype), signature.prescale, signature.postscale));
  }
  return std::nullopt;
}

}  // namespace

std::optional<Failure> check_arguments(const Signature& signature, const Tensor& in, const Tensor& out, const GroupInfo& group) {
  if (!moves_data(signature.kind)) return std::nullopt;
  for (const Tensor* tensor : {&in, &out}) {
    if (tensor->shape.dims() > Shape::max_dims) {
      return refuse(fmt::format("the tensor has {} dimensions (at most {} work); reshape it", tensor->shape.dims(), Shape::max_dims));
    }
    if (!tensor->shape.valid()) {
      return refuse(fmt::format("the shape {} has a negative extent or too many elements", to_string(tensor->shape)));
    }
    if (!tensor->data && tensor->elements() > 0) {
      return refuse(fmt::format("the tensor's memory is a null pointer (its shape is {})", to_string(tensor->shape)));
    }
  }
  if (in.shape != out.shape || in.dtype != out.dtype || in.device != out.device) {
    return refuse(fmt::format("input and output differ (in: {}{} on {}; out: {}{} on {}); pass two tensors of one kind",
                              to_string(in.dtype), to_string(in.shape), to_string(in.device.kind), to_string(out.dtype),
                              to_string(out.shape), to_string(out.device.kind)));
  }
  if (overlap_partly(in, out)) return refuse("input and output overlap without being the same memory; pass the same tensor twice, or two apart");
  if (signature.kind == OpKind::broadcast && (signature.root < 0 || signature.root >= static_cast<int>(group.ranks.size()))) {
    return refuse(fmt::format("root {} is not a rank of the group (it has {}, from 0)", signature.root, group.ranks.size()));
  }
  return signature.kind == OpKind::all_reduce ? check_reduction(signature) : std::nullopt;
}

std::optional<Failure> check_members(std::span<const int> ranks, int size) {
  if (ranks.empty()) return refuse("a group needs at least one rank");
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    if (ranks[i] < 0 || ranks[i] >= size) return refuse(fmt::format("rank {} is not a rank of the session (it has {}, from 0)", ranks[i], size));
    if (i > 0 && ranks[i] == ranks[i - 1]) return refuse(fmt::format("rank {} is listed twice", ranks[i]));
  }
  return std::nullopt;
}

}  // namespace kolo
