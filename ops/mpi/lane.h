#pragma once

#include <mpi.h>

#include <array>
#include <chrono>
#include <memory>
#include <span>
#include <vector>

#include <kolo/backend.h>

#include "ops/mpi/channel.h"

namespace kolo {

/// Bytes between this rank and one other, in messages of at most `largest` bytes, of which a few are on their way.
class MpiLane final : public ByteLane {
 public:
  MpiLane(std::shared_ptr<MpiChannel> channel, int peer);
  ~MpiLane() override;
  MpiLane(const MpiLane&) = delete;
  MpiLane& operator=(const MpiLane&) = delete;

  std::size_t write(std::span<const std::byte> bytes) override;
  std::size_t read(std::span<std::byte> bytes) override;
  bool pending() const override { return true; }
  bool needs_polling() const override { return true; }

 private:
  static constexpr std::size_t largest = 32 << 10, sends = 4;
  struct Message {
    MPI_Request request = MPI_REQUEST_NULL;
    std::unique_ptr<std::vector<std::byte>> bytes;
  };

  static bool done(MPI_Request& request, MPI_Status* status);
  static void give_up(Message& message, std::chrono::steady_clock::time_point deadline) noexcept;

  const std::shared_ptr<MpiChannel> channel_;
  const int peer_;
  std::array<Message, sends> out_;
  Message in_;
  std::size_t begin_ = 0, end_ = 0;  // what has come and was not read
};

}  // namespace kolo
