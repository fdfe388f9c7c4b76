#include "runtime/coordinator/neutral_contribution.h"

#include <fmt/format.h>

#include <algorithm>
#include <exception>

#include "ops/bucket.h"
#include "ops/gpu/gpu.h"
#include "runtime/operation/block_sizes.h"

namespace kolo {
namespace {

Tensor with_rows(Tensor tensor, std::int64_t rows) {
  std::vector<std::int64_t> extents(tensor.shape.extents().begin(), tensor.shape.extents().end());
  if (extents.empty()) throw Error(ErrorCode::backend, "malformed control message (rows of a tensor without)");
  extents[0] = rows;
  tensor.shape = Shape(extents);
  return tensor;
}

/// Input and output of one tensor in `memory`, or, before there is any, of the size that it takes.
BucketTensor lay_out(OpKind kind, Tensor tensor, const GroupInfo& group, const AgreedSizes& sizes, std::size_t index) {
  const OpTraits& of = traits(kind);
  Tensor nothing = tensor;
  nothing.data = nullptr;
  if (has_rows(kind)) {  // no rows of its own
    const Tensor out = with_rows(tensor, sizes.rows_received(index, group.rank));
    return {with_rows(nothing, 0), of.writes == Side::root ? Tensor{} : out, block_rows(sizes, index)};
  }
  Tensor out = of.writes == Side::root ? Tensor{} : tensor;
  if (of.out == Rows::dealt) {
    const RowRange mine = rows_of_rank(tensor.shape[0], group.size(), group.rank);
    out = with_rows(tensor, mine.count());
    if (of.reads != Side::root && tensor.data)  // in place
      out.data = address(tensor, mine.begin * row_elements(tensor.shape));
  }
  return {of.reads == Side::root ? nothing : tensor, out};
}

using Scratch = std::vector<std::shared_ptr<std::byte>>;

/// Tensors for all of the operation, and their memory.
void lay_out(const Unsubmitted& operation, const GroupInfo& group, int gpu, Request& request, Scratch& scratch) {
  const Signature& signature = operation.signature;
  const AgreedSizes sizes{signature.kind, operation.sizes, operation.absent};
  std::vector<GroupMember> members = signature.members;
  if (members.empty() && moves_data(signature.kind))
    members.push_back({operation.name, signature.dtype, signature.shape});
  for (std::size_t index = 0; index < members.size(); ++index) {
    Tensor tensor{nullptr,
                  members[index].shape,
                  members[index].dtype,
                  {signature.device, signature.device == DeviceKind::cpu ? 0 : gpu}};
    const BucketTensor sized = lay_out(signature.kind, tensor, group, sizes, index);
    if (!sized.in.shape.valid() || !sized.out.shape.valid())
      throw Error(ErrorCode::backend, "malformed control message (a shape that is none)");
    const bool receives = sized.in.shape.dims() > 0 && sized.in.shape[0] == 0 && sized.out.shape.dims() > 0;
    const bool zeros = signature.op == ReduceOp::adasum;  // all values count there, and zeros for nothing
    scratch.push_back(scratch_on(tensor.device, receives ? sized.out.bytes() : sized.in.bytes(), zeros));
    tensor.data = scratch.back().get();
    request.tensors.push_back(lay_out(signature.kind, tensor, group, sizes, index));
  }
}

}  // namespace

SubmissionPtr neutral_contribution(const Unsubmitted& operation, const std::shared_ptr<const GroupInfo>& group,
                                   int gpu) {
  Request request;
  request.text = operation.name;
  request.group = group;
  request.signature = operation.signature;
  auto scratch = std::make_shared<Scratch>();
  try {
    lay_out(operation, *group, gpu, request, *scratch);
  } catch (const std::exception& error) {
    request.tensors = {};
    request.invalid =
        Failure{ErrorCode::backend,
                fmt::format("it has joined, and has no memory for its part ({}); free memory there", error.what())};
  }
  auto submission = std::make_shared<Submission>(std::move(request));
  submission->pending.scratch = std::move(scratch);
  submission->pending.agreed = true;
  submission->queued.uncounted = true;
  return submission;
}

}  // namespace kolo
