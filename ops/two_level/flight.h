#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <vector>

#include <kolo/backend.h>

#include "ops/bucket.h"
#include "ops/chunk.h"
#include "ops/host/host_buffer.h"
#include "ops/kernels/reduce.h"
#include "ops/step_budget.h"
#include "ops/two_level/node_placement.h"

namespace kolo {

class TwoLevelFlight;

/// What the operations of a group use in turn: its two levels, and staging.
struct TwoLevels {
  /// Chunks of an operation that have begun and are not complete.
  static constexpr std::size_t most_in_flight = 4;
  /// Chunks that begin before an earlier one is spread: an operation has to have these and one more.
  static constexpr std::size_t ahead = 2;

  /// Of a buffer of staging: room for a chunk twice, and for what its parts are rounded up by.
  std::size_t staging_bytes() const {
    return 2 *
           (static_cast<std::size_t>(std::max<std::int64_t>(rule.largest, 64)) + std::size_t{64} * placement.cells());
  }

  NodePlacement placement;
  std::unique_ptr<Backend> intra_node;  ///< null if this rank is alone on its node
  std::unique_ptr<Backend> inter_node;  ///< among the holders of this rank's stripe; null if it holds none
  ChunkRule rule;                       ///< in bytes of the carried type
  std::shared_ptr<BufferPool> staging;  ///< of all groups of this rank
  StepBudget budget;                    ///< of bytes, counted at each level and in each pass over them
  std::size_t staged_chunks = 0;        ///< how many buffers chunks of this group use now
  std::uint64_t staged_bytes = 0;       ///< copied into and out of staging so far
};

/// How the chunks of one kind of operation travel: collectives within the node, between nodes, within the node again.
/// Each of the three may start any number of them, or none.
struct TwoLevelMethod {
  void (*gather)(TwoLevelFlight&);    ///< takes staging, and brings within the node together what leaves it
  void (*exchange)(TwoLevelFlight&);  ///< between nodes, on the holders of a stripe
  void (*arrived)(TwoLevelFlight&);   ///< that is complete
  void (*spread)(TwoLevelFlight&);    ///< hands out within the node what has come
  void (*finish)(TwoLevelFlight&);    ///< puts it in place
};

/// The method of a kind of operation; null if there is none.
const TwoLevelMethod* two_level_method(OpKind kind);

extern const TwoLevelMethod two_level_all_reduce, two_level_reduce, two_level_broadcast, two_level_reduce_scatter,
    two_level_all_gather, two_level_gather, two_level_scatter, two_level_all_to_all;

/// One chunk of a bucket on its way.
class TwoLevelFlight final {
 public:
  enum class Stage { waiting, gathering, gathered, exchanging, exchanged, spreading, complete };

  TwoLevelFlight(TwoLevels& levels, const Bucket& bucket, const Chunk& chunk)
      : levels_(levels), bucket_(bucket), chunk_(chunk), carried_(carried_by(bucket.signature)) {}
  TwoLevelFlight(const TwoLevelFlight&) = delete;
  TwoLevelFlight& operator=(const TwoLevelFlight&) = delete;
  ~TwoLevelFlight();

  /// The type in which values travel between nodes: of what is combined, carried_type().
  static DType carried_by(const Signature& signature) {
    return reduces(signature.kind) ? *carried_type(signature) : signature.dtype;
  }

  Stage stage() const { return stage_; }
  void gather();
  void exchange();
  void spread();
  /// Steps what runs; when all of that is complete, the chunk is a stage further. Returns whether it is; `moved`
  /// becomes true if anything has advanced.
  bool advance(bool& moved);
  bool needs_polling() const;
  bool staged() const;
  /// Of the collectives that are complete: the last one that says how it moved, but for one that was a trial.
  const char* moved_by() const { return moved_by_; }

  // ---- for methods: what travels

  const Signature& signature() const { return bucket_.signature; }
  const Bucket& bucket() const { return bucket_; }
  const NodePlacement& placement() const { return levels_.placement; }
  DType own() const { return signature().dtype; }
  DType carried() const { return carried_; }
  /// In elements; of a rank's block where ranks have blocks: of the longest.
  std::int64_t count() const { return chunk_.count; }
  bool is_single() const { return chunk_.single; }
  const Chunk& chunk() const { return chunk_; }
  int ranks() const { return placement().ranks_in_all(); }
  int rank() const { return placement().rank(); }
  bool is_root() const { return signature().root == rank(); }
  int root_node() const { return placement().node_of(signature().root); }
  int root_index() const { return placement().index_of(signature().root); }
  bool on_root_node() const { return root_node() == placement().node; }
  bool node_is_absent() const {
    return node_absent(placement(), bucket_.absent, static_cast<std::size_t>(placement().node));
  }
  /// Elements of the chunk in the block that `from` has for `to`.
  std::int64_t block_count(int from, int to) const;

  // ---- for methods: memory

  /// The same element of the only tensor's input or output.
  std::byte* in_tensor() const { return address(first_tensor().in, chunk_.position.offset); }
  std::byte* out_tensor() const { return address(first_tensor().out, chunk_.position.offset); }
  /// Takes a buffer, if this flight has none.
  std::byte* staging();
  std::byte* second_half() { return staging() + levels_.staging_bytes() / 2; }
  /// Copies the chunk's elements in this rank's block for `peer` to `to`, in type `type`; how many that are is
  /// block_count().
  void pack(int peer, std::byte* to, DType type);
  /// Copies what has come from `peer` to the output, from this rank's own type.
  void unpack(int peer, const std::byte* from);

  // ---- for methods: collectives

  void start_intra_node(const Signature& signature, const BucketTensor& tensor);
  void start_inter_node(const Signature& signature, const BucketTensor& tensor);

 private:
  /// An operation on one of the levels.
  struct Running {
    Running(Backend& level, Bucket of)
        : bucket(std::make_unique<const Bucket>(std::move(of))), operation(level.start(*bucket)) {}
    std::unique_ptr<const Bucket> bucket;
    std::unique_ptr<Operation> operation;
  };

  const BucketTensor& first_tensor() const { return bucket_.tensors[chunk_.position.tensor]; }
  void count_staged(std::int64_t elements);
  void note_method(const Operation& complete);
  const TwoLevelMethod& method() const { return *two_level_method(signature().kind); }

  TwoLevels& levels_;
  const Bucket& bucket_;
  const Chunk chunk_;
  const DType carried_;
  Stage stage_ = Stage::waiting;
  HostBuffer staging_;
  std::vector<Running> running_;
  const char* moved_by_ = "";
};

/// Of methods that need nothing done.
inline void nothing(TwoLevelFlight&) {}

/// `count` elements.
inline Tensor list_of(std::byte* begin, std::int64_t count, DType dtype) {
  return {begin, Shape{count}, dtype, {}};
}

/// `rows` if they differ.
inline std::shared_ptr<const BlockRows> rows_that_differ(BlockRows rows) {
  if (std::ranges::all_of(rows, [&](std::int64_t count) { return count == rows.front(); })) return nullptr;
  return std::make_shared<const BlockRows>(std::move(rows));
}

}  // namespace kolo
