// The backend of a group, and that of a pair: of what goes from one rank to another.

#include "ops/mpi/backend.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "ops/bucket.h"
#include "ops/mpi/lane.h"
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
    moved_ = !job_.complete && pipeline_->advance(round_);
    return job_.complete;
  }
  bool needs_polling() const override { return true; }
  bool moved() const override { return moved_; }

 private:
  std::shared_ptr<MpiPipeline> pipeline_;
  MpiJob job_;
  std::uint64_t round_ = 0;
  bool moved_ = false;  // at the last step
};

/// A tensor travels in pieces that an int can count, all under way at once.
class PairOperation final : public Operation {
 public:
  PairOperation(MPI_Comm comm, int peer, bool sends, Bucket bucket) : bucket_(std::move(bucket)) {
    for (const BucketTensor& tensor : bucket_.tensors) {
      const Tensor& side = sends ? tensor.in : tensor.out;
      for (std::size_t begin = 0; begin < side.bytes(); begin += largest_piece) {
        std::byte* const piece = static_cast<std::byte*>(side.data) + begin;
        const std::size_t bytes = std::min(largest_piece, side.bytes() - begin);
        if (sends) messages_.send(comm, peer, MpiChannel::pair_tag, piece, bytes);
        if (!sends) messages_.receive(comm, peer, MpiChannel::pair_tag, piece, bytes);
      }
    }
  }
  PairOperation(const PairOperation&) = delete;
  PairOperation& operator=(const PairOperation&) = delete;
  ~PairOperation() override {
    if (complete_) return;
    messages_.cancel();
    (void)messages_.finished_by(MpiMessages::deadline());
  }

  bool step() override { return complete_ = complete_ || messages_.arrived(); }
  bool needs_polling() const override { return true; }

 private:
  static constexpr std::size_t largest_piece = std::size_t{1} << 30;

  Bucket bucket_;
  bool complete_ = false;
  MpiMessages messages_;
};

/// MPI matches the messages of a pair in the order in which both ranks start them, so of two ranks there is at most one
/// such backend in use for each direction.
class PairBackend final : public Backend {
 public:
  PairBackend(std::shared_ptr<MpiChannel> channel, int peer) : channel_(std::move(channel)), peer_(peer) {}

  std::string_view name() const override { return "mpi"; }
  bool supports(const Signature& signature) const override {
    return signature.kind == OpKind::send_recv && signature.device == DeviceKind::cpu;
  }
  std::unique_ptr<Operation> start(const Bucket& bucket) override {
    const int root = bucket.signature.root;  // ranks of the pair are in ascending order
    const bool sends = (root == 0) == (channel_->rank() < peer_);
    return std::make_unique<PairOperation>(channel_->comm(), peer_, sends, bucket);
  }
  std::unique_ptr<Backend> for_group(const GroupInfo&) override { return nullptr; }
  bool must_be_called() const override { return true; }
  void abandon() noexcept override {}

 private:
  std::shared_ptr<MpiChannel> channel_;
  int peer_;
};

int thread_level() {
  int level = MPI_THREAD_SINGLE;
  check_mpi(MPI_Query_thread(&level), "MPI_Query_thread");
  return level;
}

class MpiBackend : public Backend {
 public:
  template <class... Group>
  explicit MpiBackend(Group&&... group) : pipeline_(std::make_shared<MpiPipeline>(std::forward<Group>(group)...)) {}

  std::string_view name() const override { return "mpi"; }
  bool supports(const Signature& signature) const override {
    return signature.device == DeviceKind::cpu && mpi_method(signature.kind) && reducible(signature);
  }
  std::unique_ptr<Operation> start(const Bucket& bucket) override {
    return std::make_unique<MpiOperation>(pipeline_, bucket);
  }
  std::unique_ptr<ByteLane> lane(int peer) override {
    return std::make_unique<MpiLane>(pipeline_->group().shared_channel(), pipeline_->group().channel_rank(peer));
  }
  std::unique_ptr<Backend> for_group(const GroupInfo& group) override {
    std::vector<int> members;
    for (const int rank : group.ranks) members.push_back(pipeline_->group().channel_rank(rank));
    const auto& channel = pipeline_->group().shared_channel();
    if (group.is_pair()) return std::make_unique<PairBackend>(channel, members[group.rank == 0 ? 1 : 0]);
    return std::make_unique<MpiBackend>(channel, group, std::move(members));
  }
  Introduction introduction() override { return pipeline_->group().introduction(); }
  bool introduce(std::span<const Introduction> members) override {
    pipeline_->group().introduce(members);
    return true;
  }
  std::uint64_t staged_bytes() const override { return pipeline_->staged_bytes(); }
  /// MPI may say that something is sent, and keep the last word about it until it is called again.
  bool must_be_called() const override { return true; }
  void abandon() noexcept override { pipeline_->abandon(); }

 protected:
  std::shared_ptr<MpiPipeline> pipeline_;
};

/// That of all ranks of a channel.
class MpiWorldBackend final : public MpiBackend {
 public:
  explicit MpiWorldBackend(std::shared_ptr<MpiChannel> channel) : MpiBackend(channel), channel_(std::move(channel)) {}
  ~MpiWorldBackend() override {
    if (pipeline_->failed() || (leaving_ && *leaving_ != MPI_REQUEST_NULL)) abandon();
  }
  MpiWorldBackend(const MpiWorldBackend&) = delete;
  MpiWorldBackend& operator=(const MpiWorldBackend&) = delete;

  void progress(bool in_flight) override {
    int ignored = 0;
    if (in_flight || any_time_)
      check_mpi(MPI_Iprobe(MPI_ANY_SOURCE, no_tag, MPI_COMM_SELF, &ignored, MPI_STATUS_IGNORE), "MPI_Iprobe");
  }
  /// A barrier at the end: who is through has nothing left that others need.
  bool settled() override {
    if (!leaving_) check_mpi(MPI_Ibarrier(channel_->comm(), &leaving_.emplace(MPI_REQUEST_NULL)), "MPI_Ibarrier");
    int done = 0;
    check_mpi(MPI_Test(&*leaving_, &done, MPI_STATUS_IGNORE), "MPI_Test");
    return done != 0;
  }
  void abandon() noexcept override {
    channel_->abandon();
    MpiBackend::abandon();
  }

 private:
  static constexpr int no_tag = 2;  // of no message

  std::shared_ptr<MpiChannel> channel_;
  const bool any_time_ = thread_level() == MPI_THREAD_MULTIPLE;
  std::optional<MPI_Request> leaving_;
};

}  // namespace

std::unique_ptr<Backend> mpi_backend(std::shared_ptr<MpiChannel> channel) {
  return std::make_unique<MpiWorldBackend>(std::move(channel));
}

std::unique_ptr<Backend> mpi_backend(MPI_Comm comm, const MpiTuning& tuning, RankPlaces places) {
  return mpi_backend(std::make_shared<MpiChannel>(comm, tuning, std::move(places)));
}

}  // namespace kolo
