// The cost of packing tensors into one buffer and unpacking them, with the kernels that buckets use, against one copy
// of the same bytes within the GPU. Launches follow one another without a pause: the GPU is timed, as long as the host
// is faster.

#include <fmt/format.h>
#include <sched.h>

#include <algorithm>
#include <functional>
#include <vector>

#include "bench/kolo_bench/measure/bucket_list.h"
#include "bench/kolo_bench/measure/context.h"
#include "ops/gpu/packer.h"

namespace kolo::bench {
namespace {

constexpr int launches_in_a_row = 20;
constexpr std::int64_t default_launches = 20;

/// The tensors of a list, one by one (as far apart as a GPU's allocations) and packed (as close as in a bucket).
struct Layout {
  explicit Layout(const BucketList& list) {
    for (const std::int64_t elements : list.elements) {
      items.push_back({apart, packed, elements});
      const auto bytes = static_cast<std::size_t>(elements) * sizeof(float);
      apart += (bytes + 255) / 256 * 256;
      packed += (bytes + 15) / 16 * 16;
      total += bytes;
    }
  }
  struct One {
    std::size_t apart, packed;
    std::int64_t elements;
  };
  std::vector<One> items;
  std::size_t apart = 0, packed = 0, total = 0;  // bytes
};

std::vector<PackItem> items_of(const Layout& layout, std::byte* apart, std::byte* packed, bool pack) {
  std::vector<PackItem> items;
  for (const Layout::One& one : layout.items) {
    std::byte* const tensor = apart + one.apart;
    std::byte* const slot = packed + one.packed;
    items.push_back({pack ? tensor : slot, pack ? slot : tensor, one.elements});
  }
  return items;
}

/// Launches that follow one another on a stream.
class Launches final : public Candidate {
 public:
  Launches(std::string_view name, Gpu& gpu, void* stream, std::function<void()> launch)
      : name_(name), gpu_(gpu), stream_(stream), launch_(std::move(launch)) {}
  std::string_view name() const override { return name_; }
  void run() override {
    for (int i = 0; i < launches_in_a_row; ++i) launch_();
    const auto end = gpu_.mark(stream_);
    while (!end->passed()) (void)::sched_yield();
  }

 private:
  std::string_view name_;
  Gpu& gpu_;
  void* stream_;
  std::function<void()> launch_;
};

/// One list, in memory of this rank's gpu.
class Packing {
 public:
  Packing(BenchContext& context, Gpu& gpu, const BucketList& list)
      : layout_(list),
        gpu_(gpu),
        stream_(gpu),
        packer_(gpu, stream_.get()),
        apart_(context.place().storage(layout_.apart)),
        packed_(context.place().storage(layout_.packed)),
        copied_(context.place().storage(layout_.total)),
        copy_("copy", gpu, stream_.get(),
              [this, &gpu] { gpu.copy(copied_.data(), apart_.data(), layout_.total, stream_.get()); }),
        pack_("pack", gpu, stream_.get(), [this] { move(true); }),
        unpack_("unpack", gpu, stream_.get(), [this] { move(false); }) {}

  std::vector<Candidate*> candidates() { return {&copy_, &pack_, &unpack_}; }

  /// Packs values, unpacks them where there was nothing, and counts the bytes that are not what they were.
  std::int64_t wrong_bytes() {
    std::vector<std::byte> values(layout_.apart), found(layout_.apart);
    for (std::size_t i = 0; i < values.size(); ++i) values[i] = static_cast<std::byte>(i * 31 + i / 251);
    gpu_.copy(apart_.data(), values.data(), values.size());
    pack_.run();
    gpu_.clear(apart_.data(), layout_.apart);
    unpack_.run();
    gpu_.copy(found.data(), apart_.data(), found.size());
    std::int64_t wrong = 0;
    for (const Layout::One& one : layout_.items) {
      for (std::size_t i = 0; i < static_cast<std::size_t>(one.elements) * sizeof(float); ++i)
        wrong += values[one.apart + i] != found[one.apart + i];
    }
    return wrong;
  }
  const Layout& layout() const { return layout_; }

 private:
  void move(bool pack) {
    packer_.run(items_of(layout_, apart_.data(), packed_.data(), pack),
                Conversion{.from = DType::f32, .to = DType::f32});
  }

  Layout layout_;
  Gpu& gpu_;
  GpuStream stream_;
  Packer packer_;
  Storage apart_, packed_, copied_;
  Launches copy_, pack_, unpack_;
};

std::vector<BucketList> lists_of(const Options& options) {
  if (!options.buckets.empty()) return {bucket_list(options.buckets)};
  constexpr std::size_t large = 64, small = 4000;
  BucketList few{"64 of 1 MiB", std::vector<std::int64_t>(large, (1 << 20) / sizeof(float))};
  BucketList many{"4000 small", {}};
  for (std::size_t i = 0; i < small; ++i) many.elements.push_back(static_cast<std::int64_t>(1 + i * 7919 % 2048));
  return {few, many};
}

}  // namespace

void run_pack(BenchContext& context) {
  const Options& options = context.options();
  const Ranks& ranks = context.ranks();
  std::vector<BucketList> lists;
  cli::collectively(ranks, [&] { lists = lists_of(options); });
  context.begin({});
  for (const BucketList& list : lists) {
    context.watch().begin(list.name);
    const Layout layout(list);
    context.place().check_room(ranks, layout.apart + layout.packed + layout.total,
                               "use a smaller list, or fewer ranks");
    std::unique_ptr<Packing> packing;
    cli::collectively(
        ranks, [&] { packing = std::make_unique<Packing>(context, cuda_gpu(context.place().device().index), list); });
    Schedule schedule = schedule_for(options, static_cast<std::int64_t>(layout.total), false);
    schedule.iterations = options.iterations.value_or(default_launches);
    schedule.warm_up = options.warm_up.value_or(2);
    schedule.per_iteration = launches_in_a_row;
    const auto candidates = packing->candidates();
    const auto series = measure(ranks, candidates, schedule);
    PackResult result{list.name, static_cast<std::int64_t>(list.elements.size()),
                      static_cast<std::int64_t>(layout.total)};
    result.copy_us = percentiles(series[0].us);
    result.pack_us = percentiles(series[1].us);
    result.unpack_us = percentiles(series[2].us);
    if (options.checks > 0) result.wrong = ranks.sum(packing->wrong_bytes());
    context.report().pack.push_back(std::move(result));
  }
}

}  // namespace kolo::bench
