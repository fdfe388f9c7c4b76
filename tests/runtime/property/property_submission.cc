#include "tests/runtime/property/property_submission.h"

#include <fmt/format.h>

#include <algorithm>
#include <new>

namespace kolo::testing {

namespace {

/// The same for all operations that one receive may take.
std::uint64_t common_seed(const PropertyOp& op) {
  return op.any.empty() ? op.seed : static_cast<std::uint64_t>(op.any.front());
}

/// Tensors that lie in `bytes` lie at the same place in a copy, on `device`.
void move_tensors(NamedTensor& tensors, const Bytes& bytes, std::byte* copy, Device device) {
  for (Tensor* tensor : {&tensors.in, &tensors.out}) {
    const auto* const data = static_cast<const std::byte*>(tensor->data);
    const bool inside = data && data >= bytes.data() && data + tensor->bytes() <= bytes.data() + bytes.size();
    if (!inside) continue;
    tensor->data = copy + (data - bytes.data());
    tensor->device = device;
  }
}

}  // namespace

bool on_gpus(const PropertyOp& op) {
  return op.call <= Call::send_recv && mix(common_seed(op), 10) % 2 == 0;
}

std::optional<double> timeout_of(const PropertyOp& op, int rank) {
  constexpr double short_time = 0.002, long_time = 1000;
  if (op.trouble == Trouble::late && !op.is_odd(rank)) return short_time;
  const bool needs_one = op.call == Call::monitored_barrier;
  const int who = op.call == Call::send_recv ? 0 : rank;  // what only one of the two withdraws, the other waits for
  return needs_one || mix(common_seed(op), static_cast<std::uint64_t>(who), 8) % 4 == 0 ? std::optional(long_time)
                                                                                        : std::nullopt;
}

bool PropertySubmission::can_be_in_place() const {
  if (called_.call == Call::broadcast) return true;
  if (odd_ || !writes(op_, rank_) || !reads(op_, rank_)) return false;
  if (op_.call != Call::all_to_all) return chance(40, 1);
  const auto& rows = op_.tensors[0].rows;
  return op_.absent.empty() &&
         std::all_of(rows.begin(), rows.end(), [&](std::int64_t count) { return count == rows[0]; }) && chance(40, 1);
}

void PropertySubmission::make_buffers() {
  if (called_.call > Call::send_recv) return;
  const PropertyOp& op = called_;
  const Device device = session_.device();
  if (device.kind == DeviceKind::cuda && on_gpus(op_)) gpu_ = &cuda_gpu(device.index);
  const bool gathers = has_rows(kind_of(op.call));
  const bool in_place = can_be_in_place();
  const bool no_memory = odd_ && op_.trouble == Trouble::no_memory;
  allocates_ =
      gathers && !op.grouped && !in_place && writes(op, rank_) &&
      (no_memory || (op_.trouble != Trouble::wrong_output && op_.trouble != Trouble::wrong_rows && chance(30, 2)));
  wants_rows_ = gathers && !op.grouped && !odd_ && writes(op, rank_) && chance(30, 3);
  buffers_.resize(op.tensors.size());
  for (std::size_t i = 0; i < op.tensors.size(); ++i) {
    const PropertyTensor& tensor = op.tensors[i];
    Buffers& buffers = buffers_[i];
    buffers.tensor = {tensor.name,
                      {nullptr, shape_in(op, tensor, rank_), tensor.dtype, {}},
                      {nullptr, shape_out(op, tensor, rank_), tensor.dtype, {}}};
    Tensor& in = buffers.tensor.in;
    Tensor& out = buffers.tensor.out;
    if (gathers && !op.absent.empty() && chance(30, 4)) {  // nobody need know how many have joined
      std::vector<std::int64_t> extents(out.shape.extents().begin(), out.shape.extents().end());
      ++extents[0];
      out.shape = Shape(extents);
    }
    const Bytes values = reads(op, rank_) ? input(op, i, rank_) : Bytes(in.bytes(), untouched);
    buffers.before = values;
    buffers.in_place = in_place;
    const std::int64_t rows = has_blocks(kind_of(op.call)) ? std::max(in.shape[0], out.shape[0]) : 1;
    const std::size_t row = rows == 0 ? 0 : std::max(in.bytes(), out.bytes()) / static_cast<std::size_t>(rows);
    const std::size_t offset =
        in_place && has_blocks(kind_of(op.call)) ? static_cast<std::size_t>(row_in_place(op, tensor, rank_)) * row : 0;
    if (in_place && out.bytes() > in.bytes()) {
      buffers.out.assign(out.bytes(), untouched);
      std::copy(values.begin(), values.end(), buffers.out.begin() + static_cast<std::ptrdiff_t>(offset));
      out.data = buffers.out.data();
      in.data = buffers.out.data() + offset;
    } else {
      buffers.in = values;
      in.data = buffers.in.data();
      if (!in_place) buffers.out.assign(allocates_ ? 0 : out.bytes(), untouched);
      out.data = in_place ? buffers.in.data() + offset : buffers.out.data();
    }
    const bool has_output = !allocates_ && (writes(op, rank_) || !chance(70, 5));
    if (!has_output) out = {};
    if (!reads(op, rank_) && op.call == Call::scatter && chance(50, 6)) in.data = nullptr;
    if (!op_.any.empty() && rank_ == op_.peer) {
      out.shape = Shape{static_cast<std::int64_t>(most_received() / size_of(out.dtype))};
      buffers.out.assign(out.bytes(), untouched);
      out.data = buffers.out.data();
    }
    if (op_.call == Call::send_recv && !gpu_ && chance(30, 9)) use_session_memory(buffers);
    if (odd_ && i == 0) spoil(buffers);
    buffers.result = static_cast<const std::byte*>(out.data);
    if (gpu_) use_gpu(buffers, has_output);
    if (shared_.adopted && !gpu_ && !buffers.session.data()) use_adopted_memory(buffers);
  }
}

std::size_t PropertySubmission::most_received() const {
  std::size_t most = 0;
  for (const PropertyOp& one : step_.ops) {
    if (std::ranges::find(op_.any, one.id) != op_.any.end()) most = std::max(most, input(one, 0, one.root).size());
  }
  return most;
}

/// What is sent or received lies where the other rank may reach it.
void PropertySubmission::use_session_memory(Buffers& buffers) {
  const bool sends = rank_ == called_.root;
  const Bytes& copied = sends ? buffers.in : buffers.out;
  buffers.session = session_.allocate(copied.size());
  std::ranges::copy(copied, buffers.session.data());
  (sends ? buffers.tensor.in : buffers.tensor.out).data = buffers.session.data();
}

/// Copies what there is to memory of the program that the session has adopted, and the tensors with it.
void PropertySubmission::use_adopted_memory(Buffers& buffers) {
  const auto move = [&](const Bytes& bytes, std::shared_ptr<std::byte>& copy) {
    if (bytes.empty()) return;
    copy = shared_.adopted->allocate(bytes.size(), {});
    std::ranges::copy(bytes, copy.get());
    move_tensors(buffers.tensor, bytes, copy.get(), {});
  };
  move(buffers.in, buffers.adopted_in);
  move(buffers.out, buffers.adopted_out);
}

/// `copy` is empty, and stays so for no bytes: what is freed waits for the GPU.
void PropertySubmission::copy_to_gpu(const Bytes& bytes, GpuBuffer& copy) {
  if (bytes.empty()) return;
  copy = GpuBuffer(*gpu_, bytes.size());
  gpu_->copy(copy.data(), bytes.data(), bytes.size());
}

/// Copies what the host has to the GPU, and the tensors with it.
void PropertySubmission::use_gpu(Buffers& buffers, bool has_output) {
  Tensor &in = buffers.tensor.in, &out = buffers.tensor.out;
  const auto move = [&](const Bytes& bytes, GpuBuffer& copy) {
    copy_to_gpu(bytes, copy);
    move_tensors(buffers.tensor, bytes, copy.data(), session_.device());
  };
  move(buffers.in, buffers.gpu_in);
  move(buffers.out, buffers.gpu_out);
  in.device = session_.device();
  if (has_output) out.device = session_.device();
}

/// What lies on the GPU, or in adopted memory, to where it is checked.
void PropertySubmission::fetch() {
  for (Buffers& buffers : buffers_) {
    if (buffers.adopted_in) std::copy_n(buffers.adopted_in.get(), buffers.in.size(), buffers.in.data());
    if (buffers.adopted_out) std::copy_n(buffers.adopted_out.get(), buffers.out.size(), buffers.out.data());
    if (buffers.gpu_in.size() > 0) gpu_->copy(buffers.in.data(), buffers.gpu_in.data(), buffers.in.size());
    if (buffers.gpu_out.size() > 0) gpu_->copy(buffers.out.data(), buffers.gpu_out.data(), buffers.out.size());
  }
}

/// Arguments that cannot work.
void PropertySubmission::spoil(Buffers& buffers) {
  Tensor& out = buffers.tensor.out;
  if (op_.trouble == Trouble::null_pointer)
    (op_.call == Call::send_recv && rank_ == op_.peer ? out : buffers.tensor.in).data = nullptr;
  if (op_.trouble == Trouble::wrong_output) out.dtype = out.dtype == DType::u8 ? DType::f32 : DType::u8;
  if (op_.trouble == Trouble::wrong_rows) {
    std::vector<std::int64_t> extents(out.shape.extents().begin(), out.shape.extents().end());
    ++extents[0];
    out.shape = Shape(extents);
    buffers.out.assign(out.bytes() + 1, untouched);
    out.data = buffers.out.data();
  }
}

std::vector<std::int64_t> PropertySubmission::splits() const {
  const auto first = called_.tensors[0].rows.begin() + rank_ * called_.ranks;
  std::vector<std::int64_t> splits(first, first + called_.ranks);
  if (odd_ && op_.trouble == Trouble::bad_splits) {
    if (op_.seed % 3 == 0)
      splits.push_back(0);
    else if (op_.seed % 3 == 1)
      ++splits.back();
    else
      splits.front() = -1;
    return splits;
  }
  const bool equal = std::all_of(splits.begin(), splits.end(), [&](std::int64_t count) { return count == splits[0]; });
  if (equal && chance(50, 7)) splits.clear();
  return splits;
}

Allocate PropertySubmission::allocate() {
  if (odd_ && op_.trouble == Trouble::no_memory) {
    if (op_.seed % 2 == 0) return [](const Shape&) -> Tensor { throw std::bad_alloc(); };
    return [](const Shape&) { return Tensor{nullptr, Shape{3, 1, 4, 1, 5, 9, 2, 6}, DType::i8, {}}; };
  }
  return [this](const Shape& shape) {
    Buffers& buffers = buffers_[0];
    Tensor out{nullptr, shape, called_.tensors[0].dtype, {}};
    buffers.out.assign(out.bytes(), untouched);
    buffers.result = buffers.out.data();
    out.data = buffers.out.data();
    if (gpu_) {
      out.device = session_.device();
      copy_to_gpu(buffers.out, buffers.gpu_out);
      out.data = buffers.gpu_out.data();
    }
    buffers.tensor.out = out;
    return out;
  };
}

/// With a name, or, in a group that matches by order, without one.
template <class... Name>
Handle PropertySubmission::start_grouped(const Name&... name) {
  const auto timeout = timeout_of(op_, rank_);
  std::vector<NamedTensor> tensors;
  for (const Buffers& buffers : buffers_) tensors.push_back(buffers.tensor);
  switch (called_.call) {
    case Call::all_reduce: return session_.grouped_all_reduce_async(name..., tensors, reducing<AllReduceOptions>());
    case Call::reduce_scatter:
      return session_.grouped_reduce_scatter_async(name..., tensors, reducing<ReduceScatterOptions>());
    case Call::all_gather: return session_.grouped_all_gather_async(name..., tensors, gathering<AllGatherOptions>());
    default:
      return session_.grouped_broadcast_async(
          name..., tensors,
          {.root = called_.root, .group = group_, .timeout_seconds = timeout, .priority = called_.priority});
  }
}

template <class... Name>
Handle PropertySubmission::start_collective(const Name&... name) {
  const auto timeout = timeout_of(op_, rank_);
  const auto& [text, in, out] = buffers_[0].tensor;
  switch (called_.call) {
    case Call::all_reduce: return session_.all_reduce_async(name..., in, out, reducing<AllReduceOptions>());
    case Call::reduce: return session_.reduce_async(name..., in, out, reducing<ReduceOptions>());
    case Call::reduce_scatter: return session_.reduce_scatter_async(name..., in, out, reducing<ReduceScatterOptions>());
    case Call::all_gather: return session_.all_gather_async(name..., in, out, gathering<AllGatherOptions>());
    case Call::gather: return session_.gather_async(name..., in, out, gathering<GatherOptions>());
    case Call::all_to_all: return session_.all_to_all_async(name..., in, out, gathering<AllToAllOptions>());
    case Call::scatter:
      return session_.scatter_async(
          name..., in, out,
          {.root = called_.root, .group = group_, .timeout_seconds = timeout, .priority = called_.priority});
    default:
      return session_.broadcast_async(
          name..., in,
          {.root = called_.root, .group = group_, .timeout_seconds = timeout, .priority = called_.priority});
  }
}

Handle PropertySubmission::start() {
  const auto timeout = timeout_of(op_, rank_);
  if (odd_ && op_.trouble == Trouble::refuses)
    return session_.refuse_async(kind_of(op_.call), op_.name, refusal_of(op_), group_);
  if (called_.call == Call::barrier) return session_.barrier_async({.group = group_, .timeout_seconds = timeout});
  if (called_.grouped) return called_.in_order ? start_grouped() : start_grouped(called_.name);
  if (called_.call != Call::send_recv)
    return called_.in_order ? start_collective() : start_collective(session_.declare(called_.name));
  return start_send_recv();
}

Handle PropertySubmission::start_send_recv() {
  const auto [sends, tensor, peer, tag, name] = operation();
  const PairOptions options = pair_options();
  if (!op_.any.empty() && !sends) return session_.recv_any_async(tensor, op_.any, &received_, options);
  if (!op_.by_tag())
    return sends ? session_.send_async(name, tensor, peer, options) : session_.recv_async(name, tensor, peer, options);
  return sends ? session_.send_async(tensor, peer, options) : session_.recv_async(tensor, peer, options);
}

PairOperation PropertySubmission::operation() const {
  const bool sends = rank_ == called_.root;
  const Tensor& tensor = sends ? buffers_[0].tensor.in : buffers_[0].tensor.out;
  return {sends, tensor, ranked(sends ? called_.peer : called_.root), tag(), op_.by_tag() ? "" : called_.name};
}

PairOptions PropertySubmission::pair_options() const {
  return {.group = op_.by_tag() && !op_.in_order ? ordered_ : group_,
          .tag = tag(),
          .timeout_seconds = timeout_of(op_, rank_),
          .priority = called_.priority};
}

/// A rank of the operation's group in that which passes it on.
int PropertySubmission::ranked(int rank) const {
  return op_.by_tag() && !op_.in_order ? group_.info()->ranks[static_cast<std::size_t>(rank)] : rank;
}

/// That of all which are sent under one name; of an operation of its own where the n-th send may not meet the n-th
/// receive, since some of them fail, or are received in any order.
int PropertySubmission::tag() const {
  if (!op_.by_tag()) return 0;
  if (!op_.any.empty() || !shared_.knows_all()) return op_.id;
  const auto digits = op_.name.find_first_of("0123456789");
  return 1000 + (digits == std::string::npos ? 0 : std::stoi(op_.name.substr(digits)));
}

void PropertySubmission::check(std::size_t i) {
  Buffers& buffers = buffers_[i];
  const Memory& session = buffers.session;
  if (session.data())
    std::copy_n(session.data(), session.bytes(), (rank_ == op_.root ? buffers.in : buffers.out).begin());
  if (!op_.any.empty() && rank_ == op_.peer) return check_any();
  const PropertyTensor& tensor = op_.tensors[i];
  const auto name = [&] {
    return fmt::format("'{}' {}", tensor.name, to_string(tensor.dtype, shape_in(op_, tensor, rank_)));
  };
  if (reads(op_, rank_) && !buffers.in_place && buffers.in != buffers.before)
    wrong("the input " + name() + ", which was written to,");
  if (!writes(op_, rank_)) return;
  if (allocates_ && buffers.tensor.out.shape != shape_out(op_, tensor, rank_))
    return wrong("the shape of the output of " + name());
  if (!is_result(op_, i, rank_, buffers.result, gpu_ == nullptr)) wrong("the result of " + name());
  const auto written = static_cast<std::size_t>(shape_out(op_, tensor, rank_).elements()) * size_of(tensor.dtype);
  const bool overrun =
      std::any_of(buffers.out.begin() + static_cast<std::ptrdiff_t>(std::min(written, buffers.out.size())),
                  buffers.out.end(), [](std::byte value) { return value != untouched; });
  if (overrun) wrong("what follows the result of " + name());
}

/// What came is what one of those operations sends; no other receive has that, since each waits for one.
void PropertySubmission::check_any() {
  const auto& [source, tag, bytes] = received_;
  const auto sent = std::ranges::find(step_.ops, tag, &PropertyOp::id);
  if (std::ranges::find(op_.any, tag) == op_.any.end() || source != ranked(sent->root))
    return wrong(fmt::format("the origin, rank {} and tag {},", source, tag));
  const Bytes wanted = input(*sent, 0, sent->root);
  Bytes& got = buffers_[0].out;
  if (bytes != wanted.size() || !std::equal(wanted.begin(), wanted.end(), got.begin()))
    return wrong(fmt::format("what came of {}, {} bytes,", to_string(*sent), bytes));
  if (!std::all_of(got.begin() + static_cast<std::ptrdiff_t>(bytes), got.end(),
                   [](std::byte value) { return value == untouched; }))
    wrong("what follows what came");
}

}  // namespace kolo::testing
