#include "ops/mpi/backend.h"

#include <utility>

#include "ops/mpi/pair.h"
#include "ops/mpi/pipeline.h"
#include "ops/mpi_base/handles.h"

namespace kolo {
namespace {

class MpiOperation final : public Operation {
 public:
  MpiOperation(std::shared_ptr<MpiPipeline> pipeline, Bucket bucket)
      : pipeline_(std::move(pipeline)), job_{std::move(bucket), {}, false} {
    pipeline_->enqueue(job_);
  }
  MpiOperation(const MpiOperation&) = delete;
  MpiOperation& operator=(const MpiOperation&) = delete;
  ~MpiOperation() override {
    if (!job_.complete) pipeline_->abandon();
  }

  bool step() override {
    if (!job_.complete) pipeline_->advance();
    return job_.complete;
  }
  bool needs_polling() const override { return true; }

 private:
  std::shared_ptr<MpiPipeline> pipeline_;
  MpiJob job_;
};

class MpiBackend final : public Backend {
 public:
  MpiBackend(MPI_Comm comm, const MpiTuning& tuning)
      : comm_(duplicate(comm)), tuning_(tuning), pipeline_(std::make_shared<MpiPipeline>(comm, tuning)) {}

  std::string_view name() const override { return "mpi"; }
  bool supports(const Signature& signature) const override {
    return signature.device == DeviceKind::cpu && mpi_method(signature.kind) && reducible(signature);
  }
  std::unique_ptr<Operation> start(const Bucket& bucket) override {
    return std::make_unique<MpiOperation>(pipeline_, bucket);
  }
  std::unique_ptr<Backend> for_group(const GroupInfo& group) override {
    if (group.is_pair()) return mpi_pair_backend(comm_.get(), group.ranks[group.rank == 0 ? 1 : 0]);
    return std::make_unique<MpiBackend>(communicator_of(comm_.get(), group).get(), tuning_);
  }
  std::uint64_t staged_bytes() const override { return pipeline_->staged_bytes(); }
  void abandon() noexcept override {
    (void)comm_.release();  // freeing it is collective
    pipeline_->abandon();
  }

 private:
  MpiComm comm_;  // only to make groups of
  MpiTuning tuning_;
  std::shared_ptr<MpiPipeline> pipeline_;
};

}  // namespace

std::unique_ptr<Backend> mpi_backend(MPI_Comm comm, const MpiTuning& tuning) {
  return std::make_unique<MpiBackend>(comm, tuning);
}

}  // namespace kolo
