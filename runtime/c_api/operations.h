#pragma once

#include <algorithm>
#include <optional>

#include "runtime/c_api/parts.h"

namespace kolo::c_api {

/// An Allocate that calls a C function; outputs have the type and device of `in`.
Allocate allocate_of(kolo_allocate allocate, void* user, const Tensor& in);

inline int ranks_of(const Session& session, const kolo_group* group) {
  return group ? group->group.info()->size() : session.size();
}

/// Whether two tensors are the same view.
inline bool same(const Tensor& a, const Tensor& b) {
  return a.data == b.data && a.shape == b.shape && a.dtype == b.dtype && a.device == b.device;
}

/// 0 is the session's time-out there, and none in C++.
inline std::optional<double> timeout_of(double seconds) {
  return seconds == 0 ? std::nullopt : std::optional(std::max(seconds, 0.0));
}

/// The C++ options with the values of the members that both structs have. `rows` receives the rows if they are asked
/// for.
template <class Options, class Given>
Options options_of(const Given* given, const Session& session, const Tensor& in, BlockRows* rows) {
  Options options;
  if (!given) return options;
  options.group = group_of(given->group);
  options.ready = given->ready;
  options.timeout_seconds = timeout_of(given->timeout_seconds);
  options.priority = given->priority;
  if constexpr (requires { given->root; }) options.root = given->root;
  if constexpr (requires { given->op; }) {
    options.op = enumerator<ReduceOp>(given->op, reduce_op_count, "kolo_reduce_op");
    options.prescale = given->prescale ? *given->prescale : 1;
    options.postscale = given->postscale ? *given->postscale : 1;
    options.divide_by_group = given->divide_by_group != 0;
  }
  if constexpr (requires { given->allocate; }) {
    options.allocate = allocate_of(given->allocate, given->allocate_user, in);
    if (given->rows) options.rows = rows;
  }
  if constexpr (requires { given->splits; }) {
    if (given->splits) options.splits.assign(given->splits, given->splits + ranks_of(session, given->group));
  }
  return options;
}

/// The arguments of operation Op, checked for mistakes that only C allows. `handle` receives its rows.
template <class Op, class Given>
struct Arguments {
  Arguments(kolo_session* given_session, const char* given_name, const kolo_tensor* input, const kolo_tensor* output,
            const Given* given, kolo_handle& handle)
      : session(at(given_session, "session").session),
        name(given_name),
        id(given ? given->tensor : 0),
        in(tensor_of(at(input, "the tensor"))),
        out(output ? tensor_of(*output) : Tensor{}),
        options(options_of<typename Op::Options>(given, session, in, &handle.rows)) {
    if (Op::needs_out) at(output, "out");
    if (name && id != 0) throw std::invalid_argument("both a name and options->tensor were passed; pass one of them");
    if constexpr (requires { given->rows; }) handle.rows_out = given ? given->rows : nullptr;
  }

  Handle start() const {
    if (name) return Op::start(session, in, out, options, std::string_view(name));
    if (id != 0) return Op::start(session, in, out, options, TensorId{id - 1});
    return Op::start(session, in, out, options);
  }
  /// The form that blocks.
  void run() const {
    if (name) return Op::run(session, in, out, options, std::string_view(name));
    if (id != 0) return start().wait();
    Op::run(session, in, out, options);
  }

  Session& session;
  const char* name;
  kolo_tensor_id id;
  Tensor in;
  Tensor out;
  typename Op::Options options;
};

/// The form of an operation that returns at once.
template <class Op, class Given>
int start(kolo_session* session, const char* name, const kolo_tensor* in, const kolo_tensor* out, const Given* options,
          kolo_handle** handle, const char* function = __builtin_FUNCTION()) {
  const auto call = [&] {
    kolo_handle*& made = result(handle, "handle");
    auto started = std::make_unique<kolo_handle>();
    started->handle = Arguments<Op, Given>(session, name, in, out, options, *started).start();
    made = started.release();
  };
  return guarded(call, function);
}

/// The form that blocks.
template <class Op, class Given>
int run(kolo_session* session, const char* name, const kolo_tensor* in, const kolo_tensor* out, const Given* options,
        const char* function = __builtin_FUNCTION()) {
  const auto call = [&] {
    kolo_handle handle;
    Arguments<Op, Given>(session, name, in, out, options, handle).run();
    give_rows(handle);
  };
  return guarded(call, function);
}

}  // namespace kolo::c_api
