#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include <kolo/backend.h>
#include <kolo/group.h>
#include <kolo/op.h>
#include <kolo/tensor.h>

namespace kolo {

/// Allocates an output once its shape is agreed. The program keeps track of the memory, which must live until the
/// operation is complete. Called on any thread; must not call the session, nor what waits for a device (cudaFree does):
/// that may run what waits for other ranks, and they for this one. If it throws, the operation fails on every rank.
using Allocate = std::function<Tensor(const Shape&)>;

/// One of several tensors that are submitted together.
struct NamedTensor {
  std::string name;
  Tensor in;
  Tensor out;
};

// Each operation's options have a time-out: when the operation has been in flight for so long on some rank, it fails
// with Error{stalled} on every rank, late ones included, and the text names the ranks that are missing. The session
// stays usable, or, if the ranks had agreed to run the operation, and one of them does not go on, what is not of its
// group. Unset: Config::timeout_seconds (KOLO_TIMEOUT_SECONDS); 0: none; a negative number is an error. Ranks that do
// not answer at all, stopped ones say, are waited for 0.4 s longer.

struct AllReduceOptions {
  ReduceOp op = ReduceOp::sum;
  Group group{};                 ///< default: the world; one of another session throws Error{invalid_argument}
  double prescale = 1;           ///< multiplies every input (in f32 for 16-bit floats)
  double postscale = 1;          ///< multiplies the result
  bool divide_by_group = false;  ///< average: divide by the size of the group, also while ranks have joined
  void* ready = nullptr;         ///< the CUDA stream that wrote `in`, not one being captured; ignored for host tensors
  std::optional<double> timeout_seconds{};
  int priority = 0;  ///< equal on all ranks: of what is ready the higher goes first; hosts overtake nothing begun
};

struct BroadcastOptions {
  int root = 0;  ///< the rank of the group whose values are copied
  Group group{};
  void* ready = nullptr;
  std::optional<double> timeout_seconds{};
  int priority = 0;
};

struct ReduceOptions {
  ReduceOp op = ReduceOp::sum;
  int root = 0;  ///< the rank of the group that gets the result
  Group group{};
  double prescale = 1;
  double postscale = 1;
  bool divide_by_group = false;
  void* ready = nullptr;
  std::optional<double> timeout_seconds{};
  int priority = 0;
};

struct AllGatherOptions {
  Group group{};
  Allocate allocate{};        ///< instead of an output, which is then `{}`
  BlockRows* rows = nullptr;  ///< receives the rows of each rank; must live until the operation is complete
  void* ready = nullptr;
  std::optional<double> timeout_seconds{};
  int priority = 0;
};

struct ReduceScatterOptions {
  ReduceOp op = ReduceOp::sum;
  Group group{};
  double prescale = 1;
  double postscale = 1;
  bool divide_by_group = false;
  void* ready = nullptr;
  std::optional<double> timeout_seconds{};
  int priority = 0;
};

struct AllToAllOptions {
  Group group{};
  std::vector<std::int64_t> splits{};  ///< rows of `in` for each rank of the group; empty: equal blocks
  Allocate allocate{};                 ///< instead of an output, which is then `{}`
  BlockRows* rows = nullptr;           ///< receives the rows from each rank; must live until the operation is complete
  void* ready = nullptr;
  std::optional<double> timeout_seconds{};
  int priority = 0;
};

struct GatherOptions {
  int root = 0;  ///< the rank of the group that gets all blocks
  Group group{};
  Allocate allocate{};        ///< on the root, instead of an output, which is then `{}`
  BlockRows* rows = nullptr;  ///< on the root; as of all_gather
  void* ready = nullptr;
  std::optional<double> timeout_seconds{};
  int priority = 0;
};

struct ScatterOptions {
  int root = 0;  ///< the rank of the group whose rows are scattered
  Group group{};
  void* ready = nullptr;
  std::optional<double> timeout_seconds{};
  int priority = 0;
};

struct PairOptions {
  Group group{};  ///< the group that numbers the other rank
  int tag = 0;    ///< in an ordered group, from 0: the n-th send of a tag meets the n-th receive of it
  void* ready = nullptr;
  std::optional<double> timeout_seconds{};
  int priority = 0;
};

/// One of several sends and receives that are submitted together.
struct PairOperation {
  bool sends = false;
  Tensor tensor;
  int peer = 0;        ///< rank of the group
  int tag = 0;         ///< in an ordered group
  std::string name{};  ///< in one that is not
};

struct BarrierOptions {
  Group group{};
  std::optional<double> timeout_seconds{};
  int priority = 0;
};

}  // namespace kolo
