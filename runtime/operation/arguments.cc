#include "runtime/operation/arguments.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

namespace kolo {
namespace {

std::optional<Failure> refuse(std::string message) {
  return Failure{ErrorCode::invalid_argument, std::move(message)};
}

/// "f32[5,4] on cpu".
std::string to_text(const Tensor& tensor) {
  return fmt::format("{}{} on {}", to_string(tensor.dtype), to_string(tensor.shape), to_string(tensor.device.kind));
}

bool joins_rows(OpKind kind) {
  return traits(kind).out == Rows::joined;
}
bool deals_rows(OpKind kind) {
  return traits(kind).out == Rows::dealt;
}

std::optional<Failure> check_tensor(const Tensor& tensor, bool is_used) {
  if (tensor.shape.dims() > Shape::max_dims) {
    return refuse(fmt::format("the tensor has {} dimensions (at most {} work); reshape it", tensor.shape.dims(),
                              Shape::max_dims));
  }
  if (!tensor.shape.valid()) {
    return refuse(fmt::format("the shape {} has a negative extent or too many elements", to_string(tensor.shape)));
  }
  if (is_used && !tensor.data && tensor.elements() > 0) {
    return refuse(fmt::format("the tensor's memory is a null pointer (its shape is {})", to_string(tensor.shape)));
  }
  return std::nullopt;
}

/// Whether the rows of the input can be joined, dealt out or cut into blocks.
std::optional<Failure> check_rows(OpKind kind, const Shape& in, std::span<const std::int64_t> splits, int ranks) {
  if (!has_blocks(kind)) return std::nullopt;
  if (in.dims() == 0)
    return refuse("the tensor is a scalar (the operation works on rows); pass one with a dimension, such as [1]");
  if (traits(kind).in != Rows::blocks) return std::nullopt;
  if (splits.empty() && in[0] % ranks != 0) {
    return refuse(
        fmt::format("{} rows cannot be cut into {} equal blocks (the shape is {}); make them a multiple of the group's "
                    "size, or pass splits",
                    in[0], ranks, to_string(in)));
  }
  if (splits.empty()) return std::nullopt;
  if (splits.size() != static_cast<std::size_t>(ranks)) {
    return refuse(fmt::format("{} split{} for a group of {} ranks; pass one for each rank", splits.size(),
                              splits.size() == 1 ? "" : "s", ranks));
  }
  std::int64_t sum = 0;
  bool fits = true;
  for (std::int64_t split : splits) fits = fits && split >= 0 && !__builtin_add_overflow(sum, split, &sum);
  if (fits && sum == in[0]) return std::nullopt;
  return refuse(
      fmt::format("the splits {} do not cut the {} row{} of the input (none may be negative, their sum must be that); "
                  "pass fitting ones",
                  to_string(Shape(splits)), in[0], in[0] == 1 ? "" : "s"));
}

bool differ_in_rows_only(const Tensor& a, const Tensor& b) {
  if (a.dtype != b.dtype || a.device != b.device || a.shape.dims() != b.shape.dims()) return false;
  return std::equal(a.shape.extents().begin() + 1, a.shape.extents().end(), b.shape.extents().begin() + 1);
}

/// Whether the output is as it must be on this rank, where it is written; how many rows it must have where they differ
/// is not known before all have announced theirs.
std::optional<Failure> check_output(OpKind kind, const Tensor& in, const Tensor& out, const GroupInfo& group) {
  if (has_rows(kind)) {
    if (differ_in_rows_only(in, out)) return std::nullopt;
    return refuse(
        fmt::format("input and output differ in more than their rows (in: {}; out: {}); pass two tensors of one kind",
                    to_text(in), to_text(out)));
  }
  const auto fits = [&](const Shape& shape) {
    return out.shape == shape && out.dtype == in.dtype && out.device == in.device;
  };
  if (!deals_rows(kind)) {
    if (fits(in.shape)) return std::nullopt;
    return refuse(fmt::format("input and output differ (in: {}; out: {}); pass two tensors of one kind", to_text(in),
                              to_text(out)));
  }
  Tensor wanted = in;
  std::vector<std::int64_t> extents(in.shape.extents().begin(), in.shape.extents().end());
  extents[0] = rows_of_rank(in.shape[0], group.size(), group.rank).count();
  wanted.shape = Shape(extents);
  if (fits(wanted.shape)) return std::nullopt;
  return refuse(fmt::format("the output does not fit (in: {}; out: {}; the group has {} rank{}); pass out: {}",
                            to_text(in), to_text(out), group.size(), group.size() == 1 ? "" : "s", to_text(wanted)));
}

/// Whether input and output are apart, or in place: the smaller one exactly this rank's share of the larger.
std::optional<Failure> check_overlap(OpKind kind, const Tensor& in, const Tensor& out, const GroupInfo& group) {
  const auto begin_in = reinterpret_cast<std::uintptr_t>(in.data);
  const auto begin_out = reinterpret_cast<std::uintptr_t>(out.data);
  if (begin_in == begin_out && !has_blocks(kind)) return std::nullopt;
  const bool apart = begin_in >= begin_out + out.bytes() || begin_out >= begin_in + in.bytes();
  if (apart || in.bytes() == 0 || out.bytes() == 0) return std::nullopt;
  if (joins_rows(kind)) {
    const std::size_t row = in.bytes() / static_cast<std::size_t>(in.shape[0]);
    const bool within = begin_in >= begin_out && begin_in + in.bytes() <= begin_out + out.bytes();
    if (within && (begin_in - begin_out) % row == 0)
      return std::nullopt;  // which rows these must be is known when all have announced theirs
    return refuse(
        "input and output overlap, and the input is not this rank's block of the output; pass that block, or two "
        "tensors apart");
  }
  if (deals_rows(kind)) {
    const auto first = static_cast<std::size_t>(rows_of_rank(in.shape[0], group.size(), group.rank).begin);
    if (begin_out == begin_in + first * (in.bytes() / static_cast<std::size_t>(in.shape[0]))) return std::nullopt;
    return refuse(
        "input and output overlap, and the output is not this rank's rows of the input; pass these rows, or two "
        "tensors apart");
  }
  if (begin_in == begin_out) return std::nullopt;  // all_to_all
  return refuse("input and output overlap without being the same memory; pass the same tensor twice, or two apart");
}

/// Whether the op and the scales suit the type.
std::optional<Failure> check_reduction(const Signature& signature) {
  const ReduceOp op = signature.op;
  const DType dtype = signature.dtype;
  if (op == ReduceOp::adasum && signature.kind != OpKind::all_reduce) {
    return refuse(
        fmt::format("{} does not work with adasum (only all_reduce does); use all_reduce", to_string(signature.kind)));
  }
  if (op == ReduceOp::adasum && !is_floating_point(dtype)) {
    return refuse(
        fmt::format("adasum of {} is not defined (it multiplies tensors by fractions); use a floating-point type",
                    to_string(dtype)));
  }
  if (op != ReduceOp::adasum && !reducible(op, dtype)) {
    const std::string_view advice = dtype == DType::boolean
                                        ? "use logical_or or logical_and, or convert to an integer type"
                                        : "use an integer type or bool";
    return refuse(fmt::format("{} of {} is not defined; {}", to_string(op), to_string(dtype), advice));
  }
  if (!std::isfinite(signature.prescale) || !std::isfinite(signature.postscale)) {
    return refuse(
        fmt::format("prescale {} and postscale {} must be finite numbers", signature.prescale, signature.postscale));
  }
  if (!scalable(op, dtype) && (signature.prescale != 1 || signature.postscale != 1)) {
    return refuse(fmt::format("{} of {} takes no scales (prescale is {}, postscale is {}); leave them at 1",
                              to_string(op), to_string(dtype), signature.prescale, signature.postscale));
  }
  return std::nullopt;
}

}  // namespace

std::optional<Failure> check_arguments(const Signature& signature, const BucketTensor& tensor, const GroupInfo& group,
                                       const RowArguments& rows) {
  const OpKind kind = signature.kind;
  const auto& [in, out, ignored] = tensor;
  if (!moves_data(kind)) return std::nullopt;
  if (has_root(kind) && (signature.root < 0 || signature.root >= group.size())) {
    return refuse(
        fmt::format("root {} is not a rank of the group (it has {}, from 0)", signature.root, group.ranks.size()));
  }
  const bool is_root = signature.root == group.rank;
  const bool reads_in = uses(traits(kind).reads, is_root);
  const bool writes_out = uses(traits(kind).writes, is_root) && !rows.allocates;
  if (auto failure = check_tensor(in, reads_in)) return failure;
  if (writes_out) {
    if (auto failure = check_tensor(out, true)) return failure;
  }
  if (auto failure = check_rows(kind, in.shape, rows.splits, group.size())) return failure;
  if (rows.allocates && out.data)
    return refuse("both an output and a function that allocates one were passed; pass one of them");
  if (writes_out) {
    if (auto failure = check_output(kind, in, out, group)) return failure;
  }
  if (reads_in && writes_out) {
    if (auto failure = check_overlap(kind, in, out, group)) return failure;
  }
  return reduces(kind) ? check_reduction(signature) : std::nullopt;
}

std::optional<Failure> check_timeout(double seconds) {
  if (seconds > 0 && seconds < 1e9) return std::nullopt;
  return refuse(fmt::format("{} is no time to wait; pass seconds, 0 for no time-out", seconds));
}

std::optional<Failure> check_members(std::span<const int> members, int size) {
  std::vector<int> ranks(members.begin(), members.end());
  std::sort(ranks.begin(), ranks.end());
  if (ranks.empty()) return refuse("a group needs at least one rank");
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    if (ranks[i] < 0 || ranks[i] >= size)
      return refuse(fmt::format("rank {} is not a rank of the session (it has {}, from 0)", ranks[i], size));
    if (i > 0 && ranks[i] == ranks[i - 1]) return refuse(fmt::format("rank {} is listed twice", ranks[i]));
  }
  return std::nullopt;
}

std::string clipped(std::string_view text, std::size_t most) {
  if (text.size() <= most) return std::string(text);
  while (most > 0 && (text[most] & 0xc0) == 0x80) --most;  // no half characters
  return fmt::format("{}...", text.substr(0, most));
}

std::string describe(OpKind kind, std::string_view name, std::string_view group) {
  return fmt::format("{} '{}' in group {}", to_string(kind), clipped(name), group);
}
std::string describe(const Request& request) {
  if (const auto& match = request.match) {
    const std::string tags = match->tags.empty() ? "any tag" : fmt::format("tag {}", fmt::join(match->tags, " or "));
    const std::string peer = match->peer < 0 ? "any rank" : fmt::format("rank {}", match->peer);
    return fmt::format("{} {}, {}, in group {}", match->sends ? "send to" : "recv from", peer, tags,
                       request.parent->name);
  }
  return describe(request.signature.kind, request.name(), request.group->name);
}

}  // namespace kolo
