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
      : pipeline_(std::move(pipeline)), job_{.bucket = &bucket, .claim = pipeline_->reserve()} {
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
  bool moved() const override { return !complete_ && pipeline_->moved(); }
  std::shared_ptr<const DevicePoint> result() const override { return job_.result; }

 private:
  std::shared_ptr<StagedPipeline> pipeline_;
  StagedJob job_;
  bool complete_ = false;
};

class StagedBackend final : public Backend {
 public:
  StagedBackend(Gpu& gpu, std::shared_ptr<ChunkPool> pool, BackendList hosts, const GroupInfo& group,
                std::int64_t chunk_bytes)
      : gpu_(gpu),
        chunk_bytes_(chunk_bytes),
        pipeline_(std::make_shared<StagedPipeline>(gpu, std::move(pool), std::move(hosts), group.size(), group.rank,
                                                   chunk_bytes)) {}

  std::string_view name() const override { return "staged"; }
  bool supports(const Signature& signature) const override {
    return signature.device == DeviceKind::cuda && moves_data(signature.kind) && pipeline_->host_for(signature);
  }
  /// That of its hosts.
  std::string refusal(const Signature& signature) const override {
    Signature on_host = signature;
    on_host.device = DeviceKind::cpu;
    for (const auto& host : pipeline_->hosts()) {
      if (auto why = host->refusal(on_host); signature.device == DeviceKind::cuda && !why.empty()) return why;
    }
    return "";
  }
  std::shared_ptr<const void> reserve(const Signature& /*signature*/) override { return pipeline_->reserve(); }
  std::unique_ptr<Operation> start(const Bucket& bucket) override {
    return std::make_unique<StagedOperation>(pipeline_, bucket);
  }
  std::unique_ptr<Backend> for_group(const GroupInfo& group) override {
    BackendList hosts;
    for (const auto& host : pipeline_->hosts()) {
      if (auto mine = host->for_group(group)) hosts.push_back(std::move(mine));
    }
    if (hosts.empty()) return nullptr;
    return std::make_unique<StagedBackend>(gpu_, pipeline_->pool(), std::move(hosts), group, chunk_bytes_);
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
  std::int64_t chunk_bytes_;
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
  const auto chunk = static_cast<std::size_t>(tuning.chunk_bytes) +
                     64 * static_cast<std::size_t>(group.size());  // an element of each rank's block at least
  auto pool = std::make_shared<ChunkPool>(gpu, chunk, tuning.chunks);
  return std::make_unique<StagedBackend>(gpu, std::move(pool), std::move(hosts), group, tuning.chunk_bytes);
}

}  // namespace kolo
