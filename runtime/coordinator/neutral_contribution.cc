#include "runtime/coordinator/neutral_contribution.h"

#include <fmt/format.h>

#include <algorithm>

#include "ops/bucket.h"
#include "ops/gpu/gpu.h"
#include "runtime/types/rank_set.h"

namespace kolo {
namespace {

Tensor with_rows(Tensor tensor, std::int64_t rows) {
  std::vector<std::int64_t> extents(tensor.shape.extents().begin(), tensor.shape.extents().end());
  extents[0] = rows;
  tensor.shape = Shape(extents);
  return tensor;
}

/// Input and output of one tensor in `memory`, or, before there is any, of the size that it takes.
BucketTensor lay_out(OpKind kind, Tensor tensor, const GroupInfo& group, const AgreedSizes* sizes, std::size_t index) {
  switch (kind) {
    case OpKind::reduce: return {tensor, {}};
    case OpKind::reduce_scatter: {
      const RowRange mine = rows_of_rank(tensor.shape[0], group.size(), group.rank);
      Tensor out = with_rows(tensor, mine.count());
      if (tensor.data) out.data = address(tensor, mine.begin * row_elements(tensor.shape));
      return {tensor, out};
    }
    case OpKind::scatter: {
      Tensor in = tensor;
      in.data = nullptr;
      return {in, with_rows(tensor, rows_of_rank(tensor.shape[0], group.size(), group.rank).count())};
    }
    case OpKind::all_gather:
    case OpKind::gather:
    case OpKind::all_to_all: {
      Tensor in = with_rows(tensor, 0);
      in.data = nullptr;
      const Tensor out = with_rows(tensor, sizes->rows_received(index, group.rank));
      return {in, kind == OpKind::gather ? Tensor{} : out, block_rows(*sizes, index)};
    }
    default: return {tensor, tensor};
  }
}

}  // namespace

SubmissionPtr neutral_contribution(const std::string& name, const Signature& signature,
                                   const std::shared_ptr<const GroupInfo>& group, const AgreedSizes* sizes, int gpu) {
  auto submission = std::make_shared<Submission>();
  submission->name = name;
  submission->group = group;
  submission->signature = signature;
  if (!moves_data(signature.kind)) return submission;
  std::vector<GroupMember> members = signature.members;
  if (members.empty()) members.push_back({name, signature.dtype, signature.shape});
  auto scratch = std::make_shared<std::vector<std::shared_ptr<std::byte>>>();
  for (std::size_t index = 0; index < members.size(); ++index) {
    Tensor tensor{nullptr,
                  members[index].shape,
                  members[index].dtype,
                  {signature.device, signature.device == DeviceKind::cpu ? 0 : gpu}};
    const BucketTensor sized = lay_out(signature.kind, tensor, *group, sizes, index);
    const bool receives = sized.in.shape.dims() > 0 && sized.in.shape[0] == 0 && sized.out.shape.dims() > 0;
    const bool zeros = signature.op == ReduceOp::adasum;  // all values count there, and zeros for nothing
    scratch->push_back(allocate_on(tensor.device, receives ? sized.out.bytes() : sized.in.bytes(), zeros));
    tensor.data = scratch->back().get();
    submission->tensors.push_back(lay_out(signature.kind, tensor, *group, sizes, index));
  }
  submission->scratch = std::move(scratch);
  return submission;
}

std::optional<Failure> check_joined(const Signature& signature, const GroupInfo& group,
                                    const std::vector<int>& joined) {
  if (joined.empty()) return std::nullopt;
  if (signature.kind == OpKind::make_group || signature.kind == OpKind::remove_group) {
    RankSet ranks;
    for (int rank : joined) ranks.add(rank);
    return Failure{ErrorCode::invalid_argument,
                   fmt::format("{} joined, and groups are changed by all ranks; change them before any rank joins",
                               to_string(ranks))};
  }
  if (!has_root(signature.kind)) return std::nullopt;
  const int root = group.ranks[static_cast<std::size_t>(signature.root)];
  if (std::ranges::find(joined, root) == joined.end()) return std::nullopt;
  return Failure{ErrorCode::invalid_argument,
                 fmt::format("the root, rank {}, has joined and takes part no more; choose one that has not", root)};
}

}  // namespace kolo
