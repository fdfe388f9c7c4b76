// A tensor travels in pieces that an int can count, all under way at once.

#include "ops/mpi/backend.h"

#include <algorithm>
#include <chrono>
#include <utility>
#include <vector>

#include "ops/bucket.h"
#include "ops/mpi_base/handles.h"

namespace kolo {
namespace {

constexpr int pair_tag = 1;
constexpr std::size_t largest_piece = std::size_t{1} << 30;
constexpr auto arrival_time = std::chrono::milliseconds(100);  // of a message that nobody waits for any more

class PairOperation final : public Operation {
 public:
  PairOperation(MPI_Comm comm, int peer, bool sends, Bucket bucket) : bucket_(std::move(bucket)), sends_(sends) {
    for (const BucketTensor& tensor : bucket_.tensors) start(comm, peer, side(tensor));
  }
  PairOperation(const PairOperation&) = delete;
  PairOperation& operator=(const PairOperation&) = delete;
  /// The program may free a tensor next. What has not begun to arrive does not any more; what has is awaited for a
  /// while.
  ~PairOperation() override {
    if (complete_ || sends_) return;
    for (MPI_Request& request : requests_) {
      if (request != MPI_REQUEST_NULL) (void)MPI_Cancel(&request);
    }
    const auto deadline = std::chrono::steady_clock::now() + arrival_time;
    int done = 0;
    while (done == 0 && std::chrono::steady_clock::now() < deadline) {
      if (MPI_Testall(static_cast<int>(requests_.size()), requests_.data(), &done, MPI_STATUSES_IGNORE) != MPI_SUCCESS)
        return;
    }
  }

  bool step() override {
    if (complete_) return true;
    int done = 0;
    check_mpi(MPI_Testall(static_cast<int>(requests_.size()), requests_.data(), &done, MPI_STATUSES_IGNORE),
              "MPI_Testall");
    if (done == 0) return false;
    complete_ = true;
    return true;
  }
  bool needs_polling() const override { return true; }

 private:
  const Tensor& side(const BucketTensor& tensor) const { return sends_ ? tensor.in : tensor.out; }

  void start(MPI_Comm comm, int peer, const Tensor& tensor) {
    auto* const data = static_cast<std::byte*>(tensor.data);
    for (std::size_t begin = 0; begin < tensor.bytes(); begin += largest_piece) {
      const int bytes = static_cast<int>(std::min(largest_piece, tensor.bytes() - begin));
      requests_.push_back(MPI_REQUEST_NULL);
      if (sends_) {
        check_mpi(MPI_Isend(data + begin, bytes, MPI_BYTE, peer, pair_tag, comm, &requests_.back()), "MPI_Isend");
      } else {
        check_mpi(MPI_Irecv(data + begin, bytes, MPI_BYTE, peer, pair_tag, comm, &requests_.back()), "MPI_Irecv");
      }
    }
  }

  Bucket bucket_;
  bool sends_;
  bool complete_ = false;
  std::vector<MPI_Request> requests_;
};

class PairBackend final : public Backend {
 public:
  PairBackend(MPI_Comm comm, int peer) : comm_(comm), peer_(peer) {
    check_mpi(MPI_Comm_rank(comm_, &rank_), "MPI_Comm_rank");
  }

  std::string_view name() const override { return "mpi"; }
  bool supports(const Signature& signature) const override {
    return signature.kind == OpKind::send_recv && signature.device == DeviceKind::cpu;
  }
  std::unique_ptr<Operation> start(const Bucket& bucket) override {
    const int root = bucket.signature.root;  // ranks of the pair are in ascending order
    const bool sends = (root == 0) == (rank_ < peer_);
    return std::make_unique<PairOperation>(comm_, peer_, sends, bucket);
  }
  std::unique_ptr<Backend> for_group(const GroupInfo&) override { return nullptr; }
  bool must_be_called() const override { return true; }
  void abandon() noexcept override {}

 private:
  MPI_Comm comm_;
  int peer_;
  int rank_ = 0;
};

}  // namespace

std::unique_ptr<Backend> mpi_pair_backend(MPI_Comm comm, int peer) {
  return std::make_unique<PairBackend>(comm, peer);
}

}  // namespace kolo
