#include "tests/runtime/property/property_program.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <limits>

#include <kolo/detail/hash.h>

namespace kolo::testing {
namespace {

/// Another type that the operation works on, too.
DType other_type(const PropertyOp& op, DType dtype) {
  for (DType other : {DType::f64, DType::i32, DType::u8, DType::f32, DType::boolean}) {
    if (other != dtype && (!reduces(kind_of(op.call)) || suits(op.op, other))) return other;
  }
  return dtype;
}

}  // namespace

bool suits(ReduceOp op, DType dtype) {
  return op == ReduceOp::adasum ? is_floating_point(dtype) : reducible(op, dtype);
}
bool moves_tensors(Call call) {
  return call <= Call::send_recv;
}
bool call_has_root(Call call) {
  return call == Call::broadcast_object || (moves_tensors(call) && has_root(kind_of(call)));
}
bool call_reduces(Call call) {
  return moves_tensors(call) && reduces(kind_of(call));
}

bool PropertyOp::is_absent(int rank) const {
  return std::binary_search(absent.begin(), absent.end(), rank);
}
bool PropertyOp::is_odd(int rank) const {
  return std::binary_search(odd.begin(), odd.end(), rank);
}

bool PropertyOp::by_tag() const {
  if (call != Call::send_recv || in_order) return call == Call::send_recv;
  const bool fits = absent.empty() && (trouble == Trouble::none || trouble == Trouble::withdrawn);
  return fits && mix(seed, 0, 9) % 2 == 0;
}

bool PropertyOp::takes_part(int rank) const {
  if (call == Call::join) return rank == root;
  if (call == Call::abandon_group) return is_odd(rank);
  if (call == Call::send_recv) return (rank == root || rank == peer) && !is_absent(rank);
  return !is_absent(rank);
}

bool blocks(Call call) {
  return call > Call::barrier;
}

bool matches_in_order(Call call) {
  return call == Call::barrier || call == Call::monitored_barrier || call == Call::join || call == Call::new_group ||
         call == Call::split || call == Call::remove_group;
}

OpKind kind_of(Call call) {
  switch (call) {
    case Call::all_reduce: return OpKind::all_reduce;
    case Call::reduce: return OpKind::reduce;
    case Call::all_gather: return OpKind::all_gather;
    case Call::reduce_scatter: return OpKind::reduce_scatter;
    case Call::all_to_all: return OpKind::all_to_all;
    case Call::gather: return OpKind::gather;
    case Call::scatter: return OpKind::scatter;
    case Call::send_recv: return OpKind::send_recv;
    default: return OpKind::broadcast;
  }
}

int PropertyProgram::operations() const {
  std::size_t sum = 0;
  for (const PropertyStep& step : steps) sum += step.ops.size();
  return static_cast<int>(sum);
}

PropertyOp odd_version(const PropertyOp& op) {
  PropertyOp odd = op;
  const bool has_blocks_of_rows = !op.tensors.empty() && has_blocks(kind_of(op.call));
  switch (op.trouble) {
    case Trouble::other_shape:
      if (!odd.tensors[0].inner.empty())
        odd.tensors[0].inner[0] += 1;
      else if (has_blocks_of_rows && op.tensors[0].rows.size() == 1 && op.call != Call::all_gather &&
               op.call != Call::gather)
        odd.tensors[0].rows[0] += 1;
      else
        odd.tensors[0].inner = {2};
      break;
    case Trouble::other_dims:
      if (odd.tensors[0].inner.size() + (has_blocks_of_rows ? 1 : 0) < Shape::max_dims)
        odd.tensors[0].inner.push_back(1);
      else
        odd.tensors[0].inner.pop_back();
      break;
    case Trouble::other_dtype: odd.tensors[0].dtype = other_type(op, odd.tensors[0].dtype); break;
    case Trouble::other_call:
      odd.call = op.call == Call::broadcast ? Call::all_reduce : Call::broadcast;
      odd.op = op.call == Call::broadcast ? ReduceOp::max : ReduceOp::sum;
      odd.root = 0;
      odd.prescale = odd.postscale = 1;
      odd.divide_by_group = false;
      break;
    case Trouble::other_op: odd.op = op.op == ReduceOp::max ? ReduceOp::min : ReduceOp::max; break;
    case Trouble::other_root: odd.root = (op.root + 1) % op.ranks; break;
    case Trouble::other_scale: (op.seed % 2 == 0 ? odd.prescale : odd.postscale) += 1; break;
    case Trouble::other_divisor: odd.divide_by_group = !op.divide_by_group; break;
    case Trouble::other_priority: odd.priority += 1; break;
    case Trouble::other_members:
      if (op.seed % 3 == 0) odd.tensors.push_back(odd.tensors.back());
      if (op.seed % 3 == 0) odd.tensors.back().name += "x";
      if (op.seed % 3 == 1) odd.tensors.back().name += "y";
      if (op.seed % 3 == 2) odd.tensors.back().dtype = other_type(op, odd.tensors.back().dtype);
      if (op.seed % 3 == 2 && odd.tensors.back().dtype == op.tensors.back().dtype) odd.tensors.back().name += "z";
      break;
    case Trouble::root_out_of_range: odd.root = op.seed % 2 == 0 ? op.ranks : -1; break;
    case Trouble::unfit_op: {
      const DType dtype = op.tensors[0].dtype;
      if (op.call != Call::all_reduce || !is_floating_point(dtype))
        odd.op = dtype == DType::boolean ? ReduceOp::sum : ReduceOp::adasum;
      else if (op.seed % 2 == 0)
        odd.op = ReduceOp::bit_and;
      else
        odd.prescale = std::numeric_limits<double>::infinity();
      break;
    }
    default: break;
  }
  return odd;
}

Failure refusal_of(const PropertyOp& op) {
  return {ErrorCode::backend, fmt::format("there is no way to do operation {} (as planned)", op.id)};
}

std::string to_string(const PropertyOp& op) {
  static constexpr std::array calls{
      "all_reduce", "broadcast", "reduce",       "all_gather",        "reduce_scatter",   "all_to_all",        "gather",
      "scatter",    "send_recv", "barrier",      "monitored_barrier", "broadcast_object", "all_gather_object", "join",
      "new_group",  "split",     "remove_group", "abandon_group"};
  static constexpr std::array troubles{
      "none",         "withdrawn",         "raced",          "duplicate",     "other_shape",
      "other_dims",   "other_dtype",       "other_call",     "other_op",      "other_root",
      "other_scale",  "other_divisor",     "other_priority", "other_members", "wrong_rows",
      "null_pointer", "root_out_of_range", "wrong_output",   "bad_splits",    "unfit_op",
      "joined_root",  "joined_peer",       "no_memory",      "refuses",       "late"};
  std::string text =
      fmt::format("{}: {}{}{} '{}' in group {}", op.id, op.in_order || op.makes_ordered ? "ordered " : "",
                  op.grouped ? "grouped " : "", calls[static_cast<std::size_t>(op.call)], op.name, op.group);
  if (call_reduces(op.call))
    text += fmt::format(", {} x {} x {}{}", to_string(op.op), op.prescale, op.postscale,
                        op.divide_by_group ? " / group" : "");
  if (op.priority != 0) text += fmt::format(", priority {}", op.priority);
  if (call_has_root(op.call) || op.call == Call::join) text += fmt::format(", root {}", op.root);
  if (op.call == Call::send_recv) text += fmt::format(" to {}{}", op.peer, op.by_tag() ? " by tag" : "");
  if (!op.any.empty()) text += fmt::format(" of any {}", op.any);
  for (const PropertyTensor& tensor : op.tensors) {
    text += fmt::format(", {}[{}]", to_string(tensor.dtype), fmt::join(tensor.inner, ","));
    if (!tensor.rows.empty()) text += fmt::format(" rows {}", tensor.rows);
  }
  if (!op.members.empty()) text += fmt::format(", of {} making {}", op.members, op.made);
  if (!op.absent.empty()) text += fmt::format(", without {}", op.absent);
  if (!op.abandoned_by.empty()) text += fmt::format(", abandoned by {}", op.abandoned_by);
  if (op.call == Call::abandon_group) text += fmt::format(", by {}", op.odd);
  if (op.trouble != Trouble::none)
    text += fmt::format(", odd {}: {}", op.odd, troubles[static_cast<std::size_t>(op.trouble)]);
  return text;
}

std::string to_string(const PropertyProgram& program) {
  std::string text =
      fmt::format("program {}: {} ranks on nodes \"{}\", fusion_bytes {}, spin_us {}, threads {}\n", program.seed,
                  program.ranks, program.fake_nodes, program.fusion_bytes, program.spin_us, program.threads);
  for (std::size_t i = 0; i < program.groups.size(); ++i) text += fmt::format("group {}: {}\n", i, program.groups[i]);
  for (const PropertyStep& step : program.steps) {
    text += step.joined_group >= 0 ? fmt::format("step: joining group {}\n", step.joined_group)
                                   : fmt::format("step: {}\n", step.ordered ? "in order" : "in any order");
    for (const PropertyOp& op : step.ops) text += "  " + to_string(op) + "\n";
  }
  return text;
}

std::uint64_t mix(std::uint64_t a, std::uint64_t b, std::uint64_t c, std::uint64_t d) {
  const std::uint64_t bits =
      a + b * 0x9e3779b97f4a7c15u + c * 0xbf58476d1ce4e5b9u + d * 0x94d049bb133111ebu + 0x2545f4914f6cdd1du;
  return detail::mixed(detail::mixed(bits));
}

}  // namespace kolo::testing
