#include "ops/mpi/backend.h"

#include <optional>
#include <utility>

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
    moved_ = !job_.complete && pipeline_->advance();
    return job_.complete;
  }
  bool needs_polling() const override { return true; }
  bool moved() const override { return moved_; }

 private:
  std::shared_ptr<MpiPipeline> pipeline_;
  MpiJob job_;
  bool moved_ = false;  // at the last step
};

int thread_level() {
  int level = MPI_THREAD_SINGLE;
  check_mpi(MPI_Query_thread(&level), "MPI_Query_thread");
  return level;
}

class MpiBackend final : public Backend {
 public:
  MpiBackend(MPI_Comm comm, const MpiTuning& tuning)
      : comm_(duplicate(comm)), tuning_(tuning), pipeline_(std::make_shared<MpiPipeline>(comm, tuning)) {}

  ~MpiBackend() override {
    if (leaving_ && *leaving_ != MPI_REQUEST_NULL) abandon();
  }
  MpiBackend(const MpiBackend&) = delete;
  MpiBackend& operator=(const MpiBackend&) = delete;

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
  /// MPI may say that something is sent, and keep the last word about it until it is called again.
  bool must_be_called() const override { return true; }
  void progress(bool in_flight) override {
    int ignored = 0;
    if (in_flight || any_time_)
      check_mpi(MPI_Iprobe(MPI_ANY_SOURCE, no_tag, MPI_COMM_SELF, &ignored, MPI_STATUS_IGNORE), "MPI_Iprobe");
  }
  /// A barrier at the end: who is through has nothing left that others need.
  bool settled() override {
    if (!leaving_) check_mpi(MPI_Ibarrier(comm_.get(), &leaving_.emplace(MPI_REQUEST_NULL)), "MPI_Ibarrier");
    int done = 0;
    check_mpi(MPI_Test(&*leaving_, &done, MPI_STATUS_IGNORE), "MPI_Test");
    return done != 0;
  }
  void abandon() noexcept override {
    (void)comm_.release();  // freeing it is collective
    pipeline_->abandon();
  }

 private:
  static constexpr int no_tag = 2;  // of no message

  MpiComm comm_;  // to make groups of
  MpiTuning tuning_;
  const bool any_time_ = thread_level() == MPI_THREAD_MULTIPLE;
  std::shared_ptr<MpiPipeline> pipeline_;
  std::optional<MPI_Request> leaving_;
};

}  // namespace

std::unique_ptr<Backend> mpi_backend(MPI_Comm comm, const MpiTuning& tuning) {
  return std::make_unique<MpiBackend>(comm, tuning);
}

}  // namespace kolo
