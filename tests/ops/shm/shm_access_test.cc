// Tensors in memory that ranks share, of which one rank cannot map the others'.

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "ops/host/region.h"
#include "ops/shm/backend.h"
#include "tests/support/thread_ranks.h"

namespace kolo {
namespace {

constexpr std::int64_t elements = 30'000;
constexpr std::size_t tensor_bytes = elements * sizeof(float);

/// Memory of ranks in one thread. `refuses`: pieces of a tensor's size cannot be mapped.
class MemoryForTensors final : public ShmMemory {
 public:
  explicit MemoryForTensors(bool refuses) : refuses_(refuses) {}
  std::shared_ptr<std::byte> map(int, const PeerAddress& address) override {
    if (address.piece_bytes == tensor_bytes) ++maps;
    if (address.piece_bytes == 2 * tensor_bytes) ++maps_of_gathered;
    if (refuses_ && address.piece_bytes == tensor_bytes) throw Error(ErrorCode::backend, "there is no room");
    return {std::shared_ptr<void>(), reinterpret_cast<std::byte*>(address.piece) + address.offset};
  }
  int maps = 0, maps_of_gathered = 0;

 private:
  Piece make_piece(std::size_t bytes, std::uint64_t) override {
    auto region = heap_region(bytes);
    std::byte* const data = region->data();
    return {{std::move(region), data}, reinterpret_cast<std::uintptr_t>(data), bytes};
  }
  Piece adopt_piece(std::byte*, std::size_t, std::uint64_t) override { return {}; }
  const bool refuses_;
};

float value_of(std::size_t rank, std::int64_t i) {
  return static_cast<float>(i + 1) * (rank == 0 ? 1.0F : -1.0F);
}

/// Two ranks that add tensors in such memory.
struct Adders {
  explicit Adders(bool second_refuses) {
    std::vector<Introduction> members;
    for (int rank = 0; rank < 2; ++rank) {
      memory.push_back(std::make_shared<MemoryForTensors>(second_refuses && rank == 1));
      const auto report = [this, rank](const std::string& line) { lines.push_back(fmt::format("{}: {}", rank, line)); };
      backends.push_back(
          shm_backend({memory.back(), {}, testing::small_memory, {}, report}, {0, "world", {0, 1}, rank}));
      members.push_back(backends.back()->introduction());
      tensors.push_back(memory.back()->reserve(tensor_bytes));
    }
    for (const auto& backend : backends) EXPECT_TRUE(backend->introduce(members));
  }
  /// Returns how the bytes travelled.
  std::string add() {
    std::vector<Bucket> buckets;
    for (int rank = 0; rank < 2; ++rank) {
      auto* const values = reinterpret_cast<float*>(tensors[static_cast<std::size_t>(rank)].get());
      std::fill_n(values, elements, static_cast<float>(rank + 1));
      const Tensor tensor{values, Shape{elements}, DType::f32, {}};
      buckets.push_back({{.kind = OpKind::all_reduce, .dtype = DType::f32, .shape = tensor.shape}, {{tensor, tensor}}});
    }
    const std::string way = run(buckets);
    for (const auto& tensor : tensors)
      EXPECT_EQ(
          std::count(reinterpret_cast<float*>(tensor.get()), reinterpret_cast<float*>(tensor.get()) + elements, 3.0F),
          elements);
    return way;
  }
  std::string run(const std::vector<Bucket>& buckets) {
    const auto one = backends[0]->start(buckets[0]), other = backends[1]->start(buckets[1]);
    bool complete = false;
    for (int step = 0; step < 100'000 && !complete; ++step) complete = one->step() & other->step();
    EXPECT_TRUE(complete);
    EXPECT_STREQ(one->method(), other->method());
    return one->method();
  }

  /// Each rank gathers both ranks' rows.
  struct Gather {
    std::vector<std::shared_ptr<std::byte>> inputs, outputs;
    std::vector<Bucket> buckets;

    float* result(std::size_t rank) const { return reinterpret_cast<float*>(outputs[rank].get()); }
  };
  /// shared_inputs, shared_outputs  whether the peer reaches that side
  Gather gather(bool shared_inputs, bool shared_outputs) {
    const auto memory_of = [&](std::size_t rank, bool shared, std::size_t bytes) {
      return shared ? memory[rank]->reserve(bytes)
                    : std::shared_ptr<std::byte>(new std::byte[bytes], std::default_delete<std::byte[]>());
    };
    Gather made;
    for (std::size_t rank = 0; rank < 2; ++rank) {
      made.inputs.push_back(memory_of(rank, shared_inputs, tensor_bytes));
      made.outputs.push_back(memory_of(rank, shared_outputs, 2 * tensor_bytes));
      auto* const values = reinterpret_cast<float*>(made.inputs.back().get());
      for (std::int64_t i = 0; i < elements; ++i) values[i] = value_of(rank, i);
      const Tensor in{values, Shape{elements}, DType::f32, {}};
      const Tensor out{made.result(rank), Shape{2 * elements}, DType::f32, {}};
      made.buckets.push_back({{.kind = OpKind::all_gather, .dtype = DType::f32, .shape = in.shape}, {{in, out}}});
    }
    return made;
  }
  /// Returns how the bytes travelled.
  std::string run(const Gather& gather) {
    const std::string way = run(gather.buckets);
    for (std::size_t rank = 0; rank < 2; ++rank) {
      std::int64_t wrong = 0;
      for (std::int64_t i = 0; i < 2 * elements; ++i)
        wrong += gather.result(rank)[i] != value_of(static_cast<std::size_t>(i / elements), i % elements);
      EXPECT_EQ(wrong, 0);
    }
    return way;
  }

  std::vector<std::string> lines;
  std::vector<std::shared_ptr<MemoryForTensors>> memory;
  std::vector<std::unique_ptr<Backend>> backends;
  std::vector<std::shared_ptr<std::byte>> tensors;
};

TEST(ShmAccess, TensorsThatCanBeMappedAre) {
  Adders adders(false);
  EXPECT_NE(adders.add().find("mapped"), std::string::npos);
  adders.tensors[0] = adders.memory[0]->reserve(tensor_bytes);  // another piece; the old one is gone
  EXPECT_NO_FATAL_FAILURE(adders.add());
  EXPECT_TRUE(adders.lines.empty());
}

TEST(ShmAccess, WhatIsGatheredIsWrittenWhereItIsWanted) {
  Adders adders(false);
  EXPECT_NE(adders.run(adders.gather(false, true)).find("mapped"), std::string::npos);
  EXPECT_GT(adders.memory[0]->maps_of_gathered, 0);
  for (int i = 0; i < 40; ++i) EXPECT_EQ(adders.run(adders.gather(true, false)).find("mapped"), std::string::npos);
  EXPECT_EQ(adders.memory[0]->maps + adders.memory[1]->maps, 0) << "no input";
}

/// Its program may use the memory for something else by then.
TEST(ShmAccess, NothingIsWrittenForARankThatHasGivenUp) {
  Adders adders(false);
  const Adders::Gather gather = adders.gather(false, true);
  adders.run(gather);
  const auto late = adders.backends[0]->start(gather.buckets[0]),
             given_up = adders.backends[1]->start(gather.buckets[1]);
  for (int step = 0; step < 100; ++step) EXPECT_FALSE(given_up->step());
  adders.backends[1]->abandon();
  std::fill_n(gather.result(1), 2 * elements, 7.0F);
  for (int step = 0; step < 100; ++step) {
    try {
      EXPECT_FALSE(late->step());
    } catch (const Error&) {
    }
  }
  EXPECT_EQ(std::count(gather.result(1), gather.result(1) + 2 * elements, 7.0F), 2 * elements);
}

TEST(ShmAccess, WhereOneRankCannotMapTheOthersAllCopy) {
  Adders adders(true);
  EXPECT_NE(adders.add().find("ring"), std::string::npos);
  EXPECT_EQ(adders.lines, std::vector<std::string>{"1: no more shared memory for group world: there is no room; the "
                                                   "tensors of its ranks are copied"});
  EXPECT_EQ(adders.memory[1]->maps, 1);
  for (int i = 0; i < 40; ++i) EXPECT_NE(adders.add().find("ring"), std::string::npos);
  EXPECT_EQ(adders.memory[0]->maps, 2) << "input and output, and never again";
  EXPECT_EQ(adders.memory[1]->maps, 1);
  EXPECT_EQ(adders.lines.size(), 1u);
}

}  // namespace
}  // namespace kolo
