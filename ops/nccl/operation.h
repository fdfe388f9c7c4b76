#pragma once

#include <memory>
#include <optional>

#include "ops/nccl/group.h"

namespace kolo {

/// A bucket on its way through NCCL. Per step() as far as it goes: the communicator is made; the bucket's turn comes;
/// round after round is put on the stream (pack, NCCL's calls, combine, unpack), each once NCCL says that the one
/// before is on it; the end is marked; the mark has passed.
class NcclOperation final : public Operation {
 public:
  NcclOperation(std::shared_ptr<NcclGroup> group, const Bucket& bucket);
  ~NcclOperation() override;
  NcclOperation(const NcclOperation&) = delete;
  NcclOperation& operator=(const NcclOperation&) = delete;

  bool step() override;
  bool needs_polling() const override { return true; }
  std::shared_ptr<const DevicePoint> result() const override { return result_; }
  std::optional<double> seconds() const override { return seconds_; }

 private:
  bool advance();
  bool launch();
  void begin_round(const NcclRound& round);
  void end_round(const NcclRound& round);

  std::shared_ptr<NcclGroup> group_;
  const Bucket& bucket_;
  std::uint64_t number_;
  NcclPlan plan_;
  std::optional<NcclGroup::Turn> turn_;
  std::size_t round_ = 0;
  bool in_round_ = false;
  bool ordered_ = false;                      // after what wrote the inputs
  std::shared_ptr<const DevicePoint> begin_;  // if that is measured
  std::shared_ptr<const DevicePoint> result_;
  std::optional<double> seconds_;
  GpuRange range_;
};

}  // namespace kolo
