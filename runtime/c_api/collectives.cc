#include <string_view>

#include "runtime/c_api/operations.h"

// The operations of the C API on one tensor.

namespace kolo::c_api {
namespace {

// One struct for each operation: start() ends with a name, a TensorId, or, where the order decides, nothing; run()
// blocks and takes no TensorId. `needs_out`: the output must not be null.

struct AllReduce {
  using Options = AllReduceOptions;
  static constexpr bool needs_out = true;
  static Handle start(Session& session, const Tensor& in, const Tensor& out, const Options& options,
                      std::string_view name) {
    return same(in, out) ? session.all_reduce_async(name, in, options)
                         : start(session, in, out, options, session.declare(name));
  }
  static Handle start(Session& session, const Tensor& in, const Tensor& out, const Options& options, auto... key) {
    return session.all_reduce_async(key..., in, out, options);
  }
  static void run(Session& session, const Tensor& in, const Tensor& out, const Options& options, auto... name) {
    same(in, out) ? session.all_reduce(name..., in, options) : start(session, in, out, options, name...).wait();
  }
};

struct Reduce {
  using Options = ReduceOptions;
  static constexpr bool needs_out = false;
  static Handle start(Session& session, const Tensor& in, const Tensor& out, const Options& options,
                      std::string_view name) {
    return same(in, out) ? session.reduce_async(name, in, options)
                         : start(session, in, out, options, session.declare(name));
  }
  static Handle start(Session& session, const Tensor& in, const Tensor& out, const Options& options, auto... key) {
    return session.reduce_async(key..., in, out, options);
  }
  static void run(Session& session, const Tensor& in, const Tensor& out, const Options& options, auto... name) {
    same(in, out) ? session.reduce(name..., in, options) : start(session, in, out, options, name...).wait();
  }
};

struct ReduceScatter {
  using Options = ReduceScatterOptions;
  static constexpr bool needs_out = true;
  static Handle start(Session& session, const Tensor& in, const Tensor& out, const Options& options, auto... key) {
    return session.reduce_scatter_async(key..., in, out, options);
  }
  static void run(Session& session, const Tensor& in, const Tensor& out, const Options& options, auto... name) {
    session.reduce_scatter(name..., in, out, options);
  }
};

struct Broadcast {
  using Options = BroadcastOptions;
  static constexpr bool needs_out = false;
  static Handle start(Session& session, const Tensor& in_out, const Tensor&, const Options& options, auto... key) {
    return session.broadcast_async(key..., in_out, options);
  }
  static void run(Session& session, const Tensor& in_out, const Tensor&, const Options& options, auto... name) {
    session.broadcast(name..., in_out, options);
  }
};

struct AllGather {
  using Options = AllGatherOptions;
  static constexpr bool needs_out = false;
  static Handle start(Session& session, const Tensor& in, const Tensor& out, const Options& options, auto... key) {
    return session.all_gather_async(key..., in, out, options);
  }
  static void run(Session& session, const Tensor& in, const Tensor& out, const Options& options, auto... name) {
    session.all_gather(name..., in, out, options);
  }
};

struct Gather {
  using Options = GatherOptions;
  static constexpr bool needs_out = false;
  static Handle start(Session& session, const Tensor& in, const Tensor& out, const Options& options, auto... key) {
    return session.gather_async(key..., in, out, options);
  }
  static void run(Session& session, const Tensor& in, const Tensor& out, const Options& options, auto... name) {
    session.gather(name..., in, out, options);
  }
};

struct Scatter {
  using Options = ScatterOptions;
  static constexpr bool needs_out = true;
  static Handle start(Session& session, const Tensor& in, const Tensor& out, const Options& options, auto... key) {
    return session.scatter_async(key..., in, out, options);
  }
  static void run(Session& session, const Tensor& in, const Tensor& out, const Options& options, auto... name) {
    session.scatter(name..., in, out, options);
  }
};

struct AllToAll {
  using Options = AllToAllOptions;
  static constexpr bool needs_out = false;
  static Handle start(Session& session, const Tensor& in, const Tensor& out, const Options& options, auto... key) {
    return session.all_to_all_async(key..., in, out, options);
  }
  static void run(Session& session, const Tensor& in, const Tensor& out, const Options& options, auto... name) {
    session.all_to_all(name..., in, out, options);
  }
};

}  // namespace
}  // namespace kolo::c_api

using kolo::c_api::AllGather;
using kolo::c_api::AllReduce;
using kolo::c_api::AllToAll;
using kolo::c_api::Broadcast;
using kolo::c_api::Gather;
using kolo::c_api::Reduce;
using kolo::c_api::ReduceScatter;
using kolo::c_api::run;
using kolo::c_api::Scatter;
using kolo::c_api::start;

int kolo_all_reduce_async(kolo_session* session, const char* name, const kolo_tensor* in, const kolo_tensor* out,
                          const kolo_all_reduce_options* options, kolo_handle** handle) {
  return start<AllReduce>(session, name, in, out, options, handle);
}
int kolo_all_reduce(kolo_session* session, const char* name, const kolo_tensor* in, const kolo_tensor* out,
                    const kolo_all_reduce_options* options) {
  return run<AllReduce>(session, name, in, out, options);
}

int kolo_reduce_async(kolo_session* session, const char* name, const kolo_tensor* in, const kolo_tensor* out,
                      const kolo_reduce_options* options, kolo_handle** handle) {
  return start<Reduce>(session, name, in, out, options, handle);
}
int kolo_reduce(kolo_session* session, const char* name, const kolo_tensor* in, const kolo_tensor* out,
                const kolo_reduce_options* options) {
  return run<Reduce>(session, name, in, out, options);
}

int kolo_reduce_scatter_async(kolo_session* session, const char* name, const kolo_tensor* in, const kolo_tensor* out,
                              const kolo_reduce_scatter_options* options, kolo_handle** handle) {
  return start<ReduceScatter>(session, name, in, out, options, handle);
}
int kolo_reduce_scatter(kolo_session* session, const char* name, const kolo_tensor* in, const kolo_tensor* out,
                        const kolo_reduce_scatter_options* options) {
  return run<ReduceScatter>(session, name, in, out, options);
}

int kolo_broadcast_async(kolo_session* session, const char* name, const kolo_tensor* tensor,
                         const kolo_broadcast_options* options, kolo_handle** handle) {
  return start<Broadcast>(session, name, tensor, nullptr, options, handle);
}
int kolo_broadcast(kolo_session* session, const char* name, const kolo_tensor* tensor,
                   const kolo_broadcast_options* options) {
  return run<Broadcast>(session, name, tensor, nullptr, options);
}

int kolo_all_gather_async(kolo_session* session, const char* name, const kolo_tensor* in, const kolo_tensor* out,
                          const kolo_all_gather_options* options, kolo_handle** handle) {
  return start<AllGather>(session, name, in, out, options, handle);
}
int kolo_all_gather(kolo_session* session, const char* name, const kolo_tensor* in, const kolo_tensor* out,
                    const kolo_all_gather_options* options) {
  return run<AllGather>(session, name, in, out, options);
}

int kolo_gather_async(kolo_session* session, const char* name, const kolo_tensor* in, const kolo_tensor* out,
                      const kolo_gather_options* options, kolo_handle** handle) {
  return start<Gather>(session, name, in, out, options, handle);
}
int kolo_gather(kolo_session* session, const char* name, const kolo_tensor* in, const kolo_tensor* out,
                const kolo_gather_options* options) {
  return run<Gather>(session, name, in, out, options);
}

int kolo_scatter_async(kolo_session* session, const char* name, const kolo_tensor* in, const kolo_tensor* out,
                       const kolo_scatter_options* options, kolo_handle** handle) {
  return start<Scatter>(session, name, in, out, options, handle);
}
int kolo_scatter(kolo_session* session, const char* name, const kolo_tensor* in, const kolo_tensor* out,
                 const kolo_scatter_options* options) {
  return run<Scatter>(session, name, in, out, options);
}

int kolo_all_to_all_async(kolo_session* session, const char* name, const kolo_tensor* in, const kolo_tensor* out,
                          const kolo_all_to_all_options* options, kolo_handle** handle) {
  return start<AllToAll>(session, name, in, out, options, handle);
}
int kolo_all_to_all(kolo_session* session, const char* name, const kolo_tensor* in, const kolo_tensor* out,
                    const kolo_all_to_all_options* options) {
  return run<AllToAll>(session, name, in, out, options);
}
