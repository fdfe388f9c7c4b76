#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "bench/kolo_bench/measure/buffer_placement.h"
#include "bench/kolo_bench/measure/candidate.h"
#include "bench/kolo_bench/options.h"
#include "bench/kolo_bench/ranks.h"

namespace kolo::bench {

/// Whom kolo is compared with, on the same buffers. Making and destroying one are collective.
class Peer {
 public:
  virtual ~Peer() = default;
  virtual std::string name() const = 0;
  /// Why it cannot do such work; nothing if it can.
  virtual std::optional<std::string> refuses(const Work& work) const = 0;
  /// Requires that it can. Lives no longer than this. `one_group`: NCCL launches all lanes as one; else one by one.
  virtual std::unique_ptr<Asynchronous> candidate(const Work& work, const std::string& name, bool one_group = true) = 0;
  /// Whether it leaves the result of such work where kolo does.
  virtual bool checkable(const Work& work) const = 0;
};

/// The one that the options name; null if none is. Errors: Stopped.
std::unique_ptr<Peer> rival_of(const Options& options, const Ranks& ranks, const BufferPlacement& place);

}  // namespace kolo::bench
