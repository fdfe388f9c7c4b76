#pragma once

#include <deque>
#include <memory>

#include <kolo/backend.h>

#include "ops/two_level/flight.h"

namespace kolo {

/// One bucket in flight, chunk by chunk: collectives within the node, then between the holders of each stripe, then
/// within the node again.
///
/// Both levels run collectives of their own, which all their ranks must start in one order. Between nodes that is the
/// order of the chunks. Within a node some chunks begin ahead of the one that is spread: while one is on the network,
/// the next ones are gathered. The operation holds its backend until it has started everything.
class TwoLevelOperation final : public Operation {
 public:
  TwoLevelOperation(std::shared_ptr<TwoLevels> levels, Bucket bucket);
  TwoLevelOperation(const TwoLevelOperation&) = delete;
  TwoLevelOperation& operator=(const TwoLevelOperation&) = delete;

  bool step() override;
  bool needs_polling() const override;
  bool moved() const override { return moved_; }
  bool holds_backend() const override { return spread_ < chunks_.size(); }
  const char* method() const override;

 private:
  bool start_next();

  std::shared_ptr<TwoLevels> levels_;
  Bucket bucket_;
  std::deque<TwoLevelFlight> chunks_;
  std::uint64_t round_ = 0;
  std::size_t gathered_ = 0;   // chunks whose first stage has been started
  std::size_t exchanged_ = 0;  // …second…
  std::size_t spread_ = 0;     // …third…
  std::size_t complete_ = 0;
  bool moved_ = false;  // at the last step
};

}  // namespace kolo
