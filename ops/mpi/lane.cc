#include "ops/mpi/lane.h"

#include <algorithm>
#include <chrono>
#include <cstring>

namespace kolo {

MpiLane::MpiLane(std::shared_ptr<MpiChannel> channel, int peer) : channel_(std::move(channel)), peer_(peer) {
  in_.bytes = std::make_unique<std::vector<std::byte>>(largest);
}

MpiLane::~MpiLane() {
  const auto deadline = MpiMessages::deadline();
  for (Message& message : out_) give_up(message, deadline);
  if (in_.request != MPI_REQUEST_NULL) (void)MPI_Cancel(&in_.request);
  give_up(in_, deadline);
}

/// Nobody waits for it any more: what MPI has not finished with after a while keeps its memory.
void MpiLane::give_up(Message& message, std::chrono::steady_clock::time_point deadline) noexcept {
  int is_done = message.request == MPI_REQUEST_NULL ? 1 : 0;
  while (is_done == 0 && MPI_Test(&message.request, &is_done, MPI_STATUS_IGNORE) == MPI_SUCCESS) {
    if (is_done == 0 && std::chrono::steady_clock::now() > deadline) break;
  }
  if (is_done == 0) (void)message.bytes.release();
}

bool MpiLane::done(MPI_Request& request, MPI_Status* status) {
  int is_done = 0;
  check_mpi(MPI_Test(&request, &is_done, status), "MPI_Test");
  return is_done != 0;
}

std::size_t MpiLane::write(std::span<const std::byte> bytes) {
  if (bytes.empty()) return 0;
  for (Message& message : out_) {
    if (message.request != MPI_REQUEST_NULL && !done(message.request, MPI_STATUS_IGNORE)) continue;
    const auto part = bytes.first(std::min(bytes.size(), largest));
    if (!message.bytes) message.bytes = std::make_unique<std::vector<std::byte>>();
    message.bytes->assign(part.begin(), part.end());
    check_mpi(MPI_Isend(message.bytes->data(), static_cast<int>(part.size()), MPI_BYTE, peer_, MpiChannel::lane_tag,
                        channel_->comm(), &message.request),
              "MPI_Isend");
    return part.size();
  }
  return 0;
}

std::size_t MpiLane::read(std::span<std::byte> bytes) {
  if (begin_ == end_) {
    if (in_.request == MPI_REQUEST_NULL)
      check_mpi(MPI_Irecv(in_.bytes->data(), static_cast<int>(largest), MPI_BYTE, peer_, MpiChannel::lane_tag,
                          channel_->comm(), &in_.request),
                "MPI_Irecv");
    MPI_Status status;
    if (!done(in_.request, &status)) return 0;
    int count = 0;
    check_mpi(MPI_Get_count(&status, MPI_BYTE, &count), "MPI_Get_count");
    begin_ = 0;
    end_ = static_cast<std::size_t>(count);
  }
  const std::size_t count = std::min(bytes.size(), end_ - begin_);
  std::memcpy(bytes.data(), in_.bytes->data() + begin_, count);
  begin_ += count;
  return count;
}

}  // namespace kolo
