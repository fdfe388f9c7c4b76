// Collectives of which each rank has a block, in a list of tensors or in one that joins them.

#include <algorithm>
#include <utility>

#include "apps/torch/collectives.h"
#include "apps/torch/elements.h"

namespace kolo_torch {
namespace {

bool equal_sizes(const Tensors& blocks) {
  return std::ranges::all_of(blocks, [&](const auto& block) { return block.numel() == blocks[0].numel(); });
}

std::int64_t elements_of(const Tensors& blocks) {
  std::int64_t sum = 0;
  for (const at::Tensor& block : blocks) sum += block.numel();
  return sum;
}

/// Whether they lie one behind the other in memory, without gaps.
bool are_neighbours(const Tensors& blocks) {
  const char* next = nullptr;
  return std::ranges::all_of(blocks, [&](const auto& block) {
    if (block.numel() == 0) return true;
    const auto* const begin = static_cast<const char*>(block.const_data_ptr());
    const bool follows = is_plain(block) && (!next || begin == next);
    next = begin + block.nbytes();
    return follows;
  });
}

/// Slices of a tensor of one dimension, as large as the blocks.
template <class Each>
void each_slice(const Tensors& blocks, const at::Tensor& joined, Each&& each) {
  std::int64_t begin = 0;
  for (const at::Tensor& block : blocks) {
    each(block, joined.narrow(0, begin, block.numel()));
    begin += block.numel();
  }
}

std::vector<kolo::NamedTensor> pairs(const Tensors& inputs, const Tensors& outputs) {
  std::vector<kolo::NamedTensor> all;
  for (std::size_t i = 0; i < inputs.size(); ++i) all.push_back({{}, elements(inputs[i]), elements(outputs[i])});
  return all;
}

void check_blocks(const Tensors& blocks, const at::Tensor& like, int ranks, const char* operation) {
  TORCH_CHECK(blocks.size() == static_cast<std::size_t>(ranks), operation, ": a list of ", blocks.size(),
              " tensors, in a group of ", ranks, " ranks");
  for (const at::Tensor& block : blocks) {
    check_tensor(block, operation);
    TORCH_CHECK_TYPE(block.scalar_type() == like.scalar_type(), operation, ": tensors of types ", block.scalar_type(),
                     " and ", like.scalar_type());
    TORCH_CHECK(block.device() == like.device(), operation, ": tensors on ", block.device(), " and ", like.device());
  }
}

/// Checks that each rank's block has arrived in its place.
std::function<void()> check_rows(std::shared_ptr<const kolo::BlockRows> rows, std::vector<std::int64_t> wanted,
                                 const char* operation) {
  return [rows = std::move(rows), wanted = std::move(wanted), operation] {
    for (std::size_t i = 0; i < wanted.size(); ++i) {
      TORCH_CHECK((*rows)[i] == wanted[i], operation, ": rank ", i, " sent ", (*rows)[i],
                  " elements, there is room for ", wanted[i]);
    }
  };
}

std::function<void()> both(std::function<void()> first, std::function<void()> second) {
  if (!first || !second) return first ? first : second;
  return [first = std::move(first), second = std::move(second)] {
    first();
    second();
  };
}

}  // namespace

/// The blocks of a list as one: where they lie, if they are neighbours, or in memory of its own.
struct Collectives::Joined {
  at::Tensor memory;  // its own; undefined: none
  kolo::Tensor view;
  std::int64_t each;  // elements of the view for one of a block

  /// What copies the results to the blocks.
  std::function<void()> copy_to(const Tensors& blocks) const {
    if (!memory.defined()) return {};
    return [blocks, memory = memory] {
      each_slice(blocks, memory, [](const at::Tensor& block, const at::Tensor& slice) { copy_values(block, slice); });
    };
  }
  std::vector<std::int64_t> rows(const Tensors& blocks) const {
    std::vector<std::int64_t> all;
    for (const at::Tensor& block : blocks) all.push_back(block.numel() * each);
    return all;
  }
  Tensors kept(const Tensors& blocks) const { return memory.defined() ? Tensors{memory} : blocks; }
};

/// Memory for something temporary.
at::Tensor Collectives::scratch(std::int64_t elements, const at::Tensor& like) {
  return job_->pool.allocate(*session(), elements, like.options().requires_grad(false));
}

Collectives::Joined Collectives::joined(const Tensors& blocks, bool are_read) {
  Joined one;
  one.each = elements_each(blocks[0].scalar_type());
  if (are_neighbours(blocks)) {
    const auto first = std::ranges::find_if(blocks, [](const auto& block) { return block.numel() > 0; });
    one.view = elements(first == blocks.end() ? blocks[0] : *first);
    one.view.shape = kolo::Shape{elements_of(blocks) * one.each};
  } else {
    one.memory = scratch(elements_of(blocks), blocks[0]);
    one.view = elements(one.memory);
    if (are_read)
      each_slice(blocks, one.memory,
                 [](const at::Tensor& block, const at::Tensor& slice) { copy_values(slice, contiguous(block)); });
  }
  return one;
}

OperationPtr Collectives::all_gather(const Tensors& outputs, const at::Tensor& input, double seconds) {
  check_tensor(input, "all_gather");
  check_blocks(outputs, input, size(), "all_gather");
  const at::Tensor in = contiguous(input);
  const Joined out = joined(outputs, false);
  const auto rows = std::make_shared<kolo::BlockRows>();
  kolo::Handle handle = session()->all_gather_async(
      elements(in), out.view,
      {.group = group_, .rows = rows.get(), .ready = job_->ready(in), .timeout_seconds = seconds});
  Tensors kept = out.kept(outputs);
  kept.push_back(in);
  return start(std::move(handle), std::move(kept),
               both(check_rows(rows, out.rows(outputs), "all_gather"), out.copy_to(outputs)));
}

OperationPtr Collectives::all_gather_joined(const Tensors& outputs, const Tensors& inputs, double seconds, bool waits) {
  TORCH_CHECK(outputs.size() == inputs.size(), "all_gather: ", outputs.size(), " outputs of ", inputs.size(),
              " inputs");
  if (inputs.empty()) return together({});
  Tensors ins, outs;
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    check_tensor(inputs[i], "all_gather");
    check_tensor(outputs[i], "all_gather");
    TORCH_CHECK(outputs[i].numel() == inputs[i].numel() * size() && outputs[i].scalar_type() == inputs[i].scalar_type(),
                "all_gather: output ", outputs[i].toString(), outputs[i].sizes(), " of inputs ", inputs[i].toString(),
                inputs[i].sizes(), " of ", size(),
                " ranks: the one must have all elements of the others, of their type");
    ins.push_back(contiguous(inputs[i]));
    outs.push_back(contiguous(outputs[i]));
  }
  const kolo::AllGatherOptions options{.group = group_, .ready = job_->ready(ins[0]), .timeout_seconds = seconds};
  if (waits && can_be_called(ins))
    return run([&] { session()->all_gather(elements(ins[0]), elements(outs[0]), options); }, copy_back(outputs, outs));
  kolo::Handle handle = ins.size() == 1 ? session()->all_gather_async(elements(ins[0]), elements(outs[0]), options)
                                        : session()->grouped_all_gather_async(pairs(ins, outs), options);
  Tensors kept = ins;
  kept.insert(kept.end(), outs.begin(), outs.end());
  return start(std::move(handle), std::move(kept), copy_back(outputs, outs));
}

OperationPtr Collectives::gather(const Tensors& outputs, const at::Tensor& input, int root, double seconds) {
  check_tensor(input, "gather");
  const at::Tensor in = contiguous(input);
  kolo::GatherOptions options{.root = root, .group = group_, .ready = job_->ready(in), .timeout_seconds = seconds};
  if (rank() != root) return start(session()->gather_async(elements(in), {}, options), {in});
  check_blocks(outputs, input, size(), "gather");
  const Joined out = joined(outputs, false);
  const auto rows = std::make_shared<kolo::BlockRows>();
  options.rows = rows.get();
  kolo::Handle handle = session()->gather_async(elements(in), out.view, options);
  Tensors kept = out.kept(outputs);
  kept.push_back(in);
  return start(std::move(handle), std::move(kept),
               both(check_rows(rows, out.rows(outputs), "gather"), out.copy_to(outputs)));
}

OperationPtr Collectives::gather_joined(const at::Tensor& output, const at::Tensor& input, int root, double seconds) {
  if (rank() != root) return gather({}, input, root, seconds);
  check_tensor(output, "gather");
  TORCH_CHECK(output.numel() == input.numel() * size(), "gather: output of ", output.numel(), " elements, input of ",
              input.numel(), " on each of ", size(), " ranks");
  const at::Tensor out = contiguous(output);
  const auto blocks = out.view(-1).chunk(size());
  const Tensors outputs = input.numel() == 0 ? Tensors(static_cast<std::size_t>(size()), out) : Tensors(blocks);
  const OperationPtr gathered = gather(outputs, input, root, seconds);
  if (out.is_same(output)) return gathered;
  return std::make_shared<Operation>(
      Operation::Parts{.job = job_, .tensors = {out}, .finish = copy_back({output}, {out}), .operations = {gathered}});
}

OperationPtr Collectives::scatter(const at::Tensor& output, const Tensors& inputs, int root, double seconds) {
  check_tensor(output, "scatter");
  const at::Tensor out = contiguous(output);
  const kolo::ScatterOptions options{
      .root = root, .group = group_, .ready = job_->ready(out), .timeout_seconds = seconds};
  Joined in{.view = elements(out), .each = 1};
  in.view.shape = kolo::Shape{in.view.shape[0] * size()};
  in.view.data = nullptr;
  Tensors kept{out};
  if (rank() == root) {
    check_blocks(inputs, output, size(), "scatter");
    TORCH_CHECK(equal_sizes(inputs) && inputs[0].numel() == output.numel(),
                "scatter: tensors of different sizes; all must be like the output");
    in = joined(inputs, true);
    for (const at::Tensor& tensor : in.kept(inputs)) kept.push_back(tensor);
  }
  return start(session()->scatter_async(in.view, elements(out), options), std::move(kept), copy_back({output}, {out}));
}

OperationPtr Collectives::reduce_scatter(const at::Tensor& output, const Tensors& inputs, Reduction reduction,
                                         double seconds) {
  check_tensor(output, "reduce_scatter");
  check_blocks(inputs, output, size(), "reduce_scatter");
  const at::Tensor& mine = inputs[static_cast<std::size_t>(rank())];
  TORCH_CHECK(mine.numel() == output.numel(), "reduce_scatter: output of ", output.numel(), " elements for a block of ",
              mine.numel());
  reduction = suited(reduction, output.scalar_type(), "reduce_scatter");
  if (!equal_sizes(inputs)) return reduce_blocks(output, inputs, reduction, seconds);
  const at::Tensor out = contiguous(output);
  const Joined in = joined(inputs, true);
  Tensors kept = in.kept(inputs);
  kept.push_back(out);
  return start(session()->reduce_scatter_async(in.view, elements(out),
                                               {.op = reduction.op,
                                                .group = group_,
                                                .prescale = reduction.prescale,
                                                .ready = job_->ready(out),
                                                .timeout_seconds = seconds}),
               std::move(kept), copy_back({output}, {out}));
}

/// Blocks of different sizes: one operation for each, whose root is the rank that gets it.
OperationPtr Collectives::reduce_blocks(const at::Tensor& output, const Tensors& inputs, Reduction reduction,
                                        double seconds) {
  const at::Tensor out = contiguous(output);
  Operation::Parts parts{.job = job_, .tensors = {out}, .finish = copy_back({output}, {out})};
  for (int root = 0; root < size(); ++root) {
    const at::Tensor in = contiguous(inputs[static_cast<std::size_t>(root)]);
    parts.tensors.push_back(in);
    parts.handles.push_back(session()->reduce_async(elements(in), root == rank() ? elements(out) : kolo::Tensor{},
                                                    {.op = reduction.op,
                                                     .root = root,
                                                     .group = group_,
                                                     .prescale = reduction.prescale,
                                                     .ready = job_->ready(in),
                                                     .timeout_seconds = seconds}));
  }
  return std::make_shared<Operation>(std::move(parts));
}

OperationPtr Collectives::reduce_scatter_joined(const Tensors& outputs, const Tensors& inputs, Reduction reduction,
                                                double seconds, bool waits) {
  TORCH_CHECK(outputs.size() == inputs.size(), "reduce_scatter: ", outputs.size(), " outputs of ", inputs.size(),
              " inputs");
  if (inputs.empty()) return together({});
  if (const Kinds in = kinds_of(inputs), out = kinds_of(outputs); in.are_mixed()) {
    OperationPtr others = reduce_scatter_joined(out.others, in.others, reduction, seconds);
    return together({std::move(others), reduce_scatter_joined(out.bools, in.bools, reduction, seconds)});
  }
  Tensors ins, outs;
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    check_tensor(inputs[i], "reduce_scatter");
    check_tensor(outputs[i], "reduce_scatter");
    TORCH_CHECK(inputs[i].numel() == outputs[i].numel() * size() && outputs[i].scalar_type() == inputs[i].scalar_type(),
                "reduce_scatter: input ", inputs[i].toString(), inputs[i].sizes(), " for outputs ",
                outputs[i].toString(), outputs[i].sizes(), " of ", size(),
                " ranks: the one must have all elements of the others, of their type");
    reduction = suited(reduction, inputs[i].scalar_type(), "reduce_scatter");
    ins.push_back(contiguous(inputs[i]));
    outs.push_back(contiguous(outputs[i]));
  }
  const kolo::ReduceScatterOptions options{.op = reduction.op,
                                           .group = group_,
                                           .prescale = reduction.prescale,
                                           .ready = job_->ready(ins[0]),
                                           .timeout_seconds = seconds};
  if (waits && can_be_called(ins))
    return run([&] { session()->reduce_scatter(elements(ins[0]), elements(outs[0]), options); },
               copy_back(outputs, outs));
  kolo::Handle handle = ins.size() == 1 ? session()->reduce_scatter_async(elements(ins[0]), elements(outs[0]), options)
                                        : session()->grouped_reduce_scatter_async(pairs(ins, outs), options);
  Tensors kept = ins;
  kept.insert(kept.end(), outs.begin(), outs.end());
  return start(std::move(handle), std::move(kept), copy_back(outputs, outs));
}

OperationPtr Collectives::all_to_all(const Tensors& outputs, const Tensors& inputs, double seconds) {
  TORCH_CHECK(!inputs.empty(), "all_to_all: no tensors");
  check_blocks(inputs, inputs[0], size(), "all_to_all");
  check_blocks(outputs, inputs[0], size(), "all_to_all");
  const Joined in = joined(inputs, true), out = joined(outputs, false);
  const auto rows = std::make_shared<kolo::BlockRows>();
  kolo::Handle handle = session()->all_to_all_async(in.view, out.view,
                                                    {.group = group_,
                                                     .splits = in.rows(inputs),
                                                     .rows = rows.get(),
                                                     .ready = job_->ready(inputs[0]),
                                                     .timeout_seconds = seconds});
  Tensors kept = in.kept(inputs);
  for (const at::Tensor& tensor : out.kept(outputs)) kept.push_back(tensor);
  return start(std::move(handle), std::move(kept),
               both(check_rows(rows, out.rows(outputs), "all_to_all"), out.copy_to(outputs)));
}

OperationPtr Collectives::all_to_all_joined(const at::Tensor& output, const at::Tensor& input,
                                            std::span<const std::int64_t> from, std::span<const std::int64_t> to,
                                            double seconds) {
  const auto ranks = static_cast<std::int64_t>(size());
  const auto splits = [&](const at::Tensor& tensor, std::span<const std::int64_t> rows, const char* of) {
    check_tensor(tensor, "all_to_all");
    const std::int64_t length = tensor.dim() == 0 ? 1 : tensor.size(0);
    std::vector<std::int64_t> all(rows.begin(), rows.end());
    if (all.empty()) {
      TORCH_CHECK(length % ranks == 0, "all_to_all: ", length, " rows of the ", of, " for ", ranks,
                  " ranks: Tensor's dim 0 does not divide equally across group size");
      all.assign(static_cast<std::size_t>(ranks), length / ranks);
    }
    std::int64_t sum = 0;
    for (const std::int64_t one : all) sum += one;
    TORCH_CHECK(all.size() == static_cast<std::size_t>(ranks) && sum == length, "all_to_all: ", all.size(), " splits, ",
                sum, " rows in all, of the ", of, " with ", length, " rows, in a group of ", ranks,
                " ranks: Split sizes doesn't match total dim 0 size");
    const std::int64_t row = length == 0 ? 0 : tensor.numel() / length * elements_each(tensor.scalar_type());
    for (std::int64_t& one : all) one *= row;
    return all;
  };
  const auto sent = splits(input, to, "input"), received = splits(output, from, "output");
  TORCH_CHECK_TYPE(input.scalar_type() == output.scalar_type(), "all_to_all: tensors of types ", input.scalar_type(),
                   " and ", output.scalar_type());
  const at::Tensor in = contiguous(input), out = contiguous(output);
  const auto rows = std::make_shared<kolo::BlockRows>();
  kolo::Handle handle = session()->all_to_all_async(
      elements(in), elements(out),
      {.group = group_, .splits = sent, .rows = rows.get(), .ready = job_->ready(in), .timeout_seconds = seconds});
  return start(std::move(handle), {in, out},
               both(check_rows(rows, received, "all_to_all"), copy_back({output}, {out})));
}

}  // namespace kolo_torch
