#include "ops/staged/backend.h"

#include <algorithm>
#include <utility>

#include "ops/introductions.h"
#include "ops/staged/pipeline.h"

namespace kolo {
namespace {

class StagedOperation final : public Operation {
 public:
  StagedOperation(std::shared_ptr<StagedPipeline> pipeline, const Bucket& bucket)
      : pipeline_(std::move(pipeline)), job_{.bucket = &bucket} {
    pipeline_->enqueue(job_);
  }
  StagedOperation(const StagedOperation&) = delete;
  StagedOperation& operator=(const StagedOperation&) = delete;
  ~StagedOperation() override {
    if (!complete_) pipeline_->abandon();
  }

  bool step() override {
    if (!complete_) pipeline_->advance();
    complete_ = complete_ || (job_.result && job_.under_way == 0);
    return complete_;
  }
  bool needs_polling() const override { return true; }
  std::shared_ptr<const DevicePoint> result() const override { return job_.result; }

 private:
  std::shared_ptr<StagedPipeline> pipeline_;
  StagedJob job_;
  bool complete_ = false;
};

class StagedBackend final : public Backend {
 public:
  StagedBackend(Gpu& gpu, BackendList hosts, const GroupInfo& group, const StagedTuning& tuning)
      : gpu_(gpu),
        tuning_(tuning),
        pipeline_(std::make_shared<StagedPipeline>(gpu, std::move(hosts), group.size(), group.rank, tuning)) {}

  std::string_view name() const override { return "staged"; }
  bool supports(const Signature& signature) const override {
    return signature.device == DeviceKind::cuda && moves_data(signature.kind) && pipeline_->host_for(signature);
  }
  std::unique_ptr<Operation> start(const Bucket& bucket) override {
    return std::make_unique<StagedOperation>(pipeline_, bucket);
  }
  std::unique_ptr<Backend> for_group(const GroupInfo& group) override {
    BackendList hosts;
    for (const auto& host : pipeline_->hosts()) {
      if (auto mine = host->for_group(group)) hosts.push_back(std::move(mine));
    }
    if (hosts.empty()) return nullptr;
    return std::make_unique<StagedBackend>(gpu_, std::move(hosts), group, tuning_);
  }
  Introduction introduction() override { return introduction_of(pipeline_->hosts()); }
  bool introduce(std::span<const Introduction> members) override {
    kolo::introduce(pipeline_->hosts(), members);
    return !pipeline_->hosts().empty();
  }
  bool must_be_called() const override {
    return std::ranges::any_of(pipeline_->hosts(), [](const auto& host) { return host->must_be_called(); });
  }
  void progress(bool in_flight) override {
    for (const auto& host : pipeline_->hosts()) host->progress(in_flight);
  }
  bool settled() override {
    return std::ranges::count_if(pipeline_->hosts(), [](const auto& host) { return !host->settled(); }) == 0;
  }
  std::uint64_t staged_bytes() const override { return pipeline_->staged_bytes(); }
  void abandon() noexcept override { pipeline_->abandon(); }

 private:
  Gpu& gpu_;
  StagedTuning tuning_;
  std::shared_ptr<StagedPipeline> pipeline_;
};

}  // namespace

StagedTuning staged_within(std::int64_t bytes) {
  StagedTuning tuning;
  const auto chunks = static_cast<std::int64_t>(tuning.chunks);
  tuning.chunk_bytes = std::clamp<std::int64_t>(bytes / chunks / 64 * 64, 4096, tuning.chunk_bytes);
  return tuning;
}

std::unique_ptr<Backend> staged_backend(Gpu& gpu, BackendList hosts, const GroupInfo& group,
                                        const StagedTuning& tuning) {
  return std::make_unique<StagedBackend>(gpu, std::move(hosts), group, tuning);
}

}  // namespace kolo
