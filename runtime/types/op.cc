#include <kolo/op.h>

#include <fmt/format.h>

namespace kolo {

std::string_view to_string(OpKind kind) {
  return traits(kind).name;
}

std::string_view to_string(ReduceOp op) {
  switch (op) {
    case ReduceOp::sum: return "sum";
    case ReduceOp::average: return "average";
    case ReduceOp::min: return "min";
    case ReduceOp::max: return "max";
    case ReduceOp::product: return "product";
    case ReduceOp::bit_and: return "bit_and";
    case ReduceOp::bit_or: return "bit_or";
    case ReduceOp::bit_xor: return "bit_xor";
    case ReduceOp::logical_and: return "logical_and";
    case ReduceOp::logical_or: return "logical_or";
    case ReduceOp::adasum: return "adasum";
  }
  return "unknown reduction";
}

std::string to_string(DType dtype, const Shape& shape) {
  const std::string text = to_string(shape);
  if (shape.dims() > 0 && shape[0] == any_rows)
    return fmt::format("{}[*{}", to_string(dtype), text.substr(3));  // for [-1
  return fmt::format("{}{}", to_string(dtype), text);
}

std::string to_string(const Signature& signature) {
  std::string text(to_string(signature.kind));
  if (!moves_data(signature.kind)) return text;
  const bool rooted = has_root(signature.kind);
  if (reduces(signature.kind)) text += fmt::format("({}{}", to_string(signature.op), rooted ? ", " : ")");
  if (rooted) text += fmt::format("{}root {})", reduces(signature.kind) ? "" : "(", signature.root);
  if (!signature.members.empty()) return text + fmt::format(" of {} tensors", signature.members.size());
  text += fmt::format(" {}", to_string(signature.dtype, signature.shape));
  if (signature.device != DeviceKind::cpu) text += fmt::format(" on {}", to_string(signature.device));
  if (signature.prescale != 1) text += fmt::format(" prescale {}", signature.prescale);
  if (signature.postscale != 1) text += fmt::format(" postscale {}", signature.postscale);
  if (signature.priority != 0) text += fmt::format(" priority {}", signature.priority);
  return text;
}

}  // namespace kolo
