#include "runtime/operation/block_sizes.h"

#include <fmt/format.h>

#include <algorithm>
#include <memory>

#include "runtime/types/rank_set.h"

namespace kolo {

namespace {

/// The row of the output at which the input begins, or `apart`.
std::int64_t row_in_output(const BucketTensor& tensor) {
  const auto in = reinterpret_cast<std::uintptr_t>(tensor.in.data),
             out = reinterpret_cast<std::uintptr_t>(tensor.out.data);
  if (tensor.in.bytes() == 0 || in < out || in >= out + tensor.out.bytes()) return SizeMark::apart;
  return static_cast<std::int64_t>((in - out) / (tensor.in.bytes() / static_cast<std::size_t>(tensor.in.shape[0])));
}

}  // namespace

std::vector<std::int64_t> own_sizes(OpKind kind, const BucketTensor& tensor, std::span<const std::int64_t> splits,
                                    bool allocates, const GroupInfo& group, int root) {
  const bool writes = kind != OpKind::gather || group.rank == root;
  const auto rows_of = [](const Tensor& of) { return of.shape.dims() > 0 ? of.shape[0] : 0; };
  std::vector<std::int64_t> sizes;
  sizes.push_back(!writes ? SizeMark::no_output : allocates ? SizeMark::to_be_allocated : rows_of(tensor.out));
  sizes.push_back(writes && !allocates ? row_in_output(tensor) : SizeMark::apart);
  if (traits(kind).in != Rows::blocks) {
    sizes.push_back(rows_of(tensor.in));
  } else if (splits.empty()) {
    sizes.insert(sizes.end(), static_cast<std::size_t>(group.size()), rows_of(tensor.in) / group.size());
  } else {
    sizes.insert(sizes.end(), splits.begin(), splits.end());
  }
  return sizes;
}

std::size_t AgreedSizes::tensors() const {
  for (int rank = 0; rank < ranks(); ++rank) {
    if (!is_absent(rank)) return of_rank[static_cast<std::size_t>(rank)].size() / sizes_per_tensor(kind, ranks());
  }
  return 0;
}

bool AgreedSizes::is_absent(int rank) const {
  return std::ranges::binary_search(absent, rank);
}

std::int64_t AgreedSizes::rows(std::size_t tensor, int from, int to) const {
  if (is_absent(from)) return 0;
  const std::size_t first = tensor * sizes_per_tensor(kind, ranks()) + 2;
  return of_rank[static_cast<std::size_t>(from)]
                [first + static_cast<std::size_t>(traits(kind).in == Rows::blocks ? to : 0)];
}

std::int64_t AgreedSizes::rows_received(std::size_t tensor, int rank) const {
  std::int64_t sum = 0;
  for (int from = 0; from < ranks(); ++from) {
    if (__builtin_add_overflow(sum, rows(tensor, from, rank), &sum)) return -1;
  }
  return sum;
}

std::int64_t AgreedSizes::rows_of_output(std::size_t tensor, int rank) const {
  if (is_absent(rank)) return SizeMark::no_output;
  return of_rank[static_cast<std::size_t>(rank)][tensor * sizes_per_tensor(kind, ranks())];
}

std::int64_t AgreedSizes::row_in_output(std::size_t tensor, int rank) const {
  if (is_absent(rank)) return SizeMark::apart;
  return of_rank[static_cast<std::size_t>(rank)][tensor * sizes_per_tensor(kind, ranks()) + 1];
}

std::shared_ptr<const BlockRows> block_rows(const AgreedSizes& sizes, std::size_t tensor) {
  BlockRows rows;
  for (int from = 0; from < sizes.ranks(); ++from) {
    for (int to = 0; to < (traits(sizes.kind).in == Rows::blocks ? sizes.ranks() : 1); ++to)
      rows.push_back(sizes.rows(tensor, from, to));
  }
  const bool equal = std::all_of(rows.begin(), rows.end(), [&](std::int64_t count) { return count == rows.front(); });
  return equal && sizes.absent.empty() ? nullptr : std::make_shared<const BlockRows>(std::move(rows));
}

AgreedRows::AgreedRows(OpKind kind, std::vector<std::vector<std::int64_t>> of_rank, std::vector<int> absent, int rank)
    : kind(kind), of_rank(std::move(of_rank)), absent(std::move(absent)) {
  const AgreedSizes all = sizes();
  for (std::size_t tensor = 0; tensor < all.tensors(); ++tensor) {
    tensors.push_back({all.rows_received(tensor, rank), block_rows(all, tensor), {}});
    for (int other = 0; other < all.ranks(); ++other)
      to_be_allocated |= all.rows_of_output(tensor, other) == SizeMark::to_be_allocated;
  }
}

void set_agreed_rows(Submission& submission, const AgreedRows& rows) {
  const Request& request = submission.request;
  auto& agreed = submission.pending.agreed_tensors;
  agreed.resize(rows.tensors.size());
  for (std::size_t tensor = 0; tensor < agreed.size(); ++tensor) {
    agreed[tensor].rows = rows.tensors[tensor].rows;
    agreed[tensor].output_rows = rows.tensors[tensor].output_rows;
  }
  if (!request.received_rows) return;
  const AgreedSizes sizes = rows.sizes();
  request.received_rows->clear();
  for (int from = 0; from < sizes.ranks(); ++from)
    request.received_rows->push_back(sizes.rows(0, from, request.group->rank));
}

std::optional<Failure> allocate_outputs(Submission& submission, int rank) {
  const Request& request = submission.request;
  Pending& pending = submission.pending;
  const std::size_t stride = sizes_per_tensor(request.signature.kind, request.group->size());
  for (std::size_t i = 0; i < request.tensors.size(); ++i) {
    if (pending.agreed_tensors[i].out) continue;  // the ranks have to vote once more
    Tensor wanted = request.tensors[i].in;
    std::vector<std::int64_t> extents(wanted.shape.extents().begin(), wanted.shape.extents().end());
    extents[0] = pending.agreed_tensors[i].output_rows;
    wanted.shape = Shape(extents);
    std::string why;
    try {
      const Tensor out = request.allocate(wanted.shape);
      pending.agreed_tensors[i].out = out;
      const bool fits = out.shape == wanted.shape && out.dtype == wanted.dtype && out.device == wanted.device &&
                        (out.data || wanted.elements() == 0);
      if (!fits) why = fmt::format("it made {}", to_string(out.dtype, out.shape));
    } catch (const std::exception& error) {
      why = error.what();
    } catch (...) {
      why = "it threw something that is no exception of the standard library";
    }
    if (!why.empty()) {
      return Failure{
          ErrorCode::backend,
          fmt::format("the output {} could not be allocated on rank {} ({}); free memory there, or pass an output",
                      to_string(wanted.dtype, wanted.shape), rank, why)};
    }
    pending.sizes[i * stride] = pending.agreed_tensors[i].output_rows;
  }
  return std::nullopt;
}

namespace {

/// "ranks 0-1: 5 rows for 7; rank 2: 6 rows for 7", sides in the order of their lowest ranks.
std::string misfits(const AgreedSizes& sizes, std::size_t tensor, const GroupInfo& group) {
  std::vector<std::pair<std::string, RankSet>> sides;
  for (int rank = 0; rank < sizes.ranks(); ++rank) {
    const std::int64_t out = sizes.rows_of_output(tensor, rank), received = sizes.rows_received(tensor, rank);
    const bool fits = out < 0 || (sizes.absent.empty() ? out == received : out >= received);
    if (fits && received >= 0) continue;
    auto text = received < 0 ? std::string("too many rows to count")
                             : fmt::format("{} row{} for {}", out, out == 1 ? "" : "s", received);
    const auto same = std::find_if(sides.begin(), sides.end(), [&](const auto& side) { return side.first == text; });
    RankSet& ranks = same == sides.end() ? sides.emplace_back(std::move(text), RankSet{}).second : same->second;
    ranks.add(group.ranks[static_cast<std::size_t>(rank)]);
  }
  std::string line;
  for (const auto& [text, ranks] : sides)
    line += fmt::format("{}{}: {}", line.empty() ? "" : "; ", to_string(ranks), text);
  return line;
}

}  // namespace

std::optional<Failure> check_sizes(const AgreedSizes& sizes, const GroupInfo& group) {
  for (std::size_t tensor = 0; tensor < sizes.tensors(); ++tensor) {
    if (auto text = misfits(sizes, tensor, group); !text.empty()) {
      return Failure{
          ErrorCode::mismatch,
          fmt::format(
              "outputs do not fit what the ranks send ({}); pass outputs of that many rows, or let them be allocated",
              text)};
    }
    std::int64_t before = 0;  // rows of the output of all_gather and gather
    for (int rank = 0; rank < sizes.ranks(); ++rank) {
      const std::int64_t place = sizes.row_in_output(tensor, rank);
      const int session_rank = group.ranks[static_cast<std::size_t>(rank)];
      if (place != SizeMark::apart && traits(sizes.kind).in == Rows::blocks && block_rows(sizes, tensor)) {
        return Failure{
            ErrorCode::invalid_argument,
            fmt::format(
                "rank {} works in place, which takes equal blocks and no rank that has joined; pass two tensors",
                session_rank)};
      }
      if (place != SizeMark::apart && traits(sizes.kind).in != Rows::blocks && place != before) {
        return Failure{ErrorCode::invalid_argument,
                       fmt::format("on rank {} input and output overlap, and the input, at row {} of the output, is "
                                   "not that rank's block, at row {}; "
                                   "pass that block, or two tensors apart",
                                   session_rank, place, before)};
      }
      before += sizes.rows(tensor, rank, 0);
    }
  }
  return std::nullopt;
}

}  // namespace kolo
