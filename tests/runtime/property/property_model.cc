#include "tests/runtime/property/property_model.h"

#include <algorithm>
#include <cstring>
#include <numeric>

#include "tests/ops/adasum/reference_adasum.h"
#include "tests/ops/kernels/element_types.h"
#include "tests/ops/kernels/reference_reduce.h"

namespace kolo::testing {
namespace {

Shape with_rows(std::int64_t rows, const std::vector<std::int64_t>& inner) {
  std::vector<std::int64_t> extents{rows};
  extents.insert(extents.end(), inner.begin(), inner.end());
  return Shape(extents);
}

template <class T>
T element(std::int64_t value) {
  if constexpr (is_half<T>)
    return from_double<T>(static_cast<double>(value));
  else
    return static_cast<T>(value);
}

std::int64_t value_at(const PropertyOp& op, std::size_t tensor, int rank, std::size_t i) {
  const std::uint64_t bits = mix(op.seed, tensor, static_cast<std::uint64_t>(rank), i);
  return static_cast<std::int64_t>(op.op == ReduceOp::product ? 1 + bits % 2 : bits % 4);
}

/// Elements of T, which may be bool, side by side.
template <class T>
Bytes to_bytes(const PropertyOp& op, std::size_t tensor, int rank) {
  const auto count = static_cast<std::size_t>(shape_in(op, op.tensors[tensor], rank).elements());
  Bytes bytes(count * sizeof(T));
  for (std::size_t i = 0; i < count; ++i) {
    const T value = element<T>(value_at(op, tensor, rank, i));
    std::memcpy(bytes.data() + i * sizeof(T), &value, sizeof(T));
  }
  return bytes;
}

template <class T>
T at(const Bytes& bytes, std::size_t i) {
  T value;
  std::memcpy(&value, bytes.data() + i * sizeof(T), sizeof(T));
  return value;
}

std::vector<int> active_ranks(const PropertyOp& op) {
  std::vector<int> ranks;
  for (int rank = 0; rank < op.ranks; ++rank) {
    if (!op.is_absent(rank)) ranks.push_back(rank);
  }
  return ranks;
}

/// Elements [begin, end) of what the ranks' tensors are reduced to.
template <class T>
Bytes reduced(const PropertyOp& op, std::size_t tensor, std::size_t begin, std::size_t end) {
  const auto ranks = active_ranks(op);
  std::vector<Bytes> inputs;
  for (int rank : ranks) inputs.push_back(input(op, tensor, rank));
  const Reduction how{op.tensors[tensor].dtype, op.op, op.prescale, op.postscale,
                      op.divide_by_group ? op.ranks : static_cast<int>(ranks.size())};
  Bytes result((end - begin) * sizeof(T));
  T column[16];
  for (std::size_t i = begin; i < end; ++i) {
    for (std::size_t rank = 0; rank < ranks.size(); ++rank) column[rank] = at<T>(inputs[rank], i);
    const T value = reference_reduce<T>(how, std::span<const T>(column, ranks.size()));
    std::memcpy(result.data() + (i - begin) * sizeof(T), &value, sizeof(T));
  }
  return result;
}

/// Of floats; both scales multiply the result.
template <class T>
bool is_adasum(const PropertyOp& op, std::size_t tensor, const std::byte* result) {
  std::vector<LongVector> vectors;
  for (int rank = 0; rank < op.ranks; ++rank) {
    const Bytes bytes = input(op, tensor, rank);
    LongVector vector(bytes.size() / sizeof(T));
    for (std::size_t i = 0; i < vector.size() && !op.is_absent(rank); ++i) vector[i] = to_long(at<T>(bytes, i));
    vectors.push_back(std::move(vector));
  }
  LongVector exact = reference_adasum(vectors);
  for (long double& value : exact)
    value *= static_cast<long double>(op.prescale) * static_cast<long double>(op.postscale);
  const long double largest = std::max(largest_of(exact), 64.0L);
  for (std::size_t i = 0; i < exact.size(); ++i) {
    T value;
    std::memcpy(&value, result + i * sizeof(T), sizeof(T));
    if (!(std::abs(to_long(value) - exact[i]) <= tolerance<T>(exact[i], largest))) return false;
  }
  return true;
}

template <class Body>
bool with_float_type(DType dtype, Body body) {
  switch (dtype) {
    case DType::f64: return body.template operator()<double>();
    case DType::f32: return body.template operator()<float>();
    case DType::f16: return body.template operator()<Float16>();
    default: return body.template operator()<BFloat16>();
  }
}

template <class T>
bool are_close(const PropertyOp& op, const Bytes& wanted, const std::byte* result) {
  const int divide_by = op.op != ReduceOp::average ? 1
                        : op.divide_by_group       ? op.ranks
                                                   : op.ranks - static_cast<int>(op.absent.size());
  const Reduction how{DTypeOf<T>::value, op.op, op.prescale, op.postscale, divide_by};
  const double largest =
      op.op == ReduceOp::product ? 0 : 3 * op.ranks * std::abs(op.prescale * op.postscale) / divide_by;
  for (std::size_t i = 0; i < wanted.size() / sizeof(T); ++i) {
    T value;
    std::memcpy(&value, result + i * sizeof(T), sizeof(T));
    const auto exact = static_cast<double>(to_long(at<T>(wanted, i))), found = static_cast<double>(to_long(value));
    const double error = rounding_of<T>(how, static_cast<std::size_t>(op.ranks), std::abs(exact) + largest);
    if (!(std::abs(found - exact) <= error)) return false;
  }
  return true;
}

/// Rows [begin, begin + count) of a rank's input.
Bytes rows_of_input(const PropertyOp& op, std::size_t tensor, int rank, std::int64_t begin, std::int64_t count) {
  const Bytes all = input(op, tensor, rank);
  const std::int64_t rows = rows_in(op, op.tensors[tensor], rank);
  const auto row = static_cast<std::ptrdiff_t>(rows == 0 ? 0 : all.size() / static_cast<std::size_t>(rows));
  return {all.begin() + begin * row, all.begin() + (begin + count) * row};
}

Bytes gathered(const PropertyOp& op, std::size_t tensor) {
  Bytes result;
  for (int rank : active_ranks(op)) {
    const Bytes block = input(op, tensor, rank);
    result.insert(result.end(), block.begin(), block.end());
  }
  return result;
}

Bytes exchanged(const PropertyOp& op, std::size_t tensor, int rank) {
  const auto& rows = op.tensors[tensor].rows;
  Bytes result;
  for (int from : active_ranks(op)) {
    const auto first = rows.begin() + from * op.ranks;
    const Bytes block =
        rows_of_input(op, tensor, from, std::accumulate(first, first + rank, std::int64_t{0}), first[rank]);
    result.insert(result.end(), block.begin(), block.end());
  }
  return result;
}

Bytes expected(const PropertyOp& op, std::size_t tensor, int rank) {
  const PropertyTensor& what = op.tensors[tensor];
  const auto share = [&] { return rows_of_rank(what.rows[0], op.ranks, rank); };
  switch (op.call) {
    case Call::all_reduce:
    case Call::reduce:
    case Call::reduce_scatter: {
      const Shape in = shape_in(op, what, rank);
      std::int64_t begin = 0, end = in.elements();
      if (op.call == Call::reduce_scatter) {
        const std::int64_t row = what.rows[0] == 0 ? 0 : in.elements() / what.rows[0];
        begin = share().begin * row;
        end = share().end * row;
      }
      return with_type(what.dtype, [&]<class T>() {
        return reduced<T>(op, tensor, static_cast<std::size_t>(begin), static_cast<std::size_t>(end));
      });
    }
    case Call::all_gather:
    case Call::gather: return gathered(op, tensor);
    case Call::all_to_all: return exchanged(op, tensor, rank);
    case Call::scatter: return rows_of_input(op, tensor, op.root, share().begin, share().count());
    default: return input(op, tensor, op.root);  // broadcast, send_recv
  }
}

}  // namespace

bool reads(const PropertyOp& op, int rank) {
  return (op.call != Call::scatter && op.call != Call::send_recv) || rank == op.root;
}

bool writes(const PropertyOp& op, int rank) {
  if (op.call == Call::send_recv) return rank == op.peer;
  return (op.call != Call::reduce && op.call != Call::gather) || rank == op.root;
}

std::int64_t rows_in(const PropertyOp& op, const PropertyTensor& tensor, int rank) {
  if (op.call == Call::reduce_scatter || op.call == Call::scatter) return tensor.rows[0];
  if (op.call != Call::all_to_all) return tensor.rows[static_cast<std::size_t>(rank)];
  const auto first = tensor.rows.begin() + rank * op.ranks;
  return std::accumulate(first, first + op.ranks, std::int64_t{0});
}

BlockRows rows_received(const PropertyOp& op, const PropertyTensor& tensor, int rank) {
  BlockRows rows;
  for (int from = 0; from < op.ranks; ++from) {
    const int place = op.call == Call::all_to_all ? from * op.ranks + rank : from;
    rows.push_back(op.is_absent(from) ? 0 : tensor.rows[static_cast<std::size_t>(place)]);
  }
  return rows;
}

std::int64_t rows_out(const PropertyOp& op, const PropertyTensor& tensor, int rank) {
  if (op.call == Call::reduce_scatter || op.call == Call::scatter)
    return rows_of_rank(tensor.rows[0], op.ranks, rank).count();
  const BlockRows rows = rows_received(op, tensor, rank);
  return std::accumulate(rows.begin(), rows.end(), std::int64_t{0});
}

Shape shape_in(const PropertyOp& op, const PropertyTensor& tensor, int rank) {
  return has_blocks(kind_of(op.call)) ? with_rows(rows_in(op, tensor, rank), tensor.inner) : Shape(tensor.inner);
}

Shape shape_out(const PropertyOp& op, const PropertyTensor& tensor, int rank) {
  return has_blocks(kind_of(op.call)) ? with_rows(rows_out(op, tensor, rank), tensor.inner) : Shape(tensor.inner);
}

std::int64_t row_in_place(const PropertyOp& op, const PropertyTensor& tensor, int rank) {
  if (op.call == Call::reduce_scatter || op.call == Call::scatter)
    return rows_of_rank(tensor.rows[0], op.ranks, rank).begin;
  if (op.call == Call::all_to_all) return 0;
  const BlockRows rows = rows_received(op, tensor, rank);
  return std::accumulate(rows.begin(), rows.begin() + rank, std::int64_t{0});
}

Bytes input(const PropertyOp& op, std::size_t tensor, int rank) {
  return with_type(op.tensors[tensor].dtype, [&]<class T>() { return to_bytes<T>(op, tensor, rank); });
}

bool is_result(const PropertyOp& op, std::size_t tensor, int rank, const std::byte* result, bool exact) {
  const DType dtype = op.tensors[tensor].dtype;
  if (op.op == ReduceOp::adasum)
    return with_float_type(dtype, [&]<class T>() { return is_adasum<T>(op, tensor, result); });
  const Bytes wanted = expected(op, tensor, rank);
  if (wanted.empty() || std::memcmp(wanted.data(), result, wanted.size()) == 0) return true;
  if (exact || !call_reduces(op.call) || !is_floating_point(dtype)) return false;
  return with_float_type(dtype, [&]<class T>() { return are_close<T>(op, wanted, result); });
}

std::string object(const PropertyOp& op, int rank) {
  const std::uint64_t bits = mix(op.seed, 77, static_cast<std::uint64_t>(rank));
  return std::string(bits % 40, static_cast<char>('a' + bits / 64 % 26));
}

}  // namespace kolo::testing
