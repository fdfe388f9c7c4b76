#include <kolo/data_parallel.h>

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <numeric>
#include <set>
#include <utility>

#include <kolo/error.h>
#include <kolo/session.h>

#include "runtime/session/gradient_priorities.h"
#include "runtime/session/parts.h"
#include "runtime/session/step_count.h"
#include "runtime/session/wire.h"

namespace kolo {
namespace {

[[noreturn]] void misused(const std::string& problem) {
  throw Error(ErrorCode::invalid_argument, problem);
}

Tensor flat(Tensor tensor) {
  tensor.shape = Shape{tensor.shape.elements()};
  return tensor;
}

/// This rank's elements, as a tensor of one dimension.
Tensor part_of(const Tensor& tensor, const TensorShard& shard) {
  return {.data = static_cast<std::byte*>(tensor.data) + shard.first * size_of(tensor.dtype),
          .shape = Shape{static_cast<std::int64_t>(shard.count)},
          .dtype = tensor.dtype,
          .device = tensor.device};
}

constexpr std::size_t wire_alignment = 64;  // bytes

std::size_t wire_bytes(const Tensor& gradient) {
  const std::size_t bytes = static_cast<std::size_t>(gradient.elements()) * size_of(DType::f16);
  return (bytes + wire_alignment - 1) / wire_alignment * wire_alignment;
}

}  // namespace

class DataParallel::Parts {
 public:
  Parts(Session& session, std::vector<TrainedTensor> tensors, DataParallelOptions options)
      : session_(&session), options_(std::move(options)) {
    const Group group = options_.group.info() ? options_.group : session.world();
    check_options(*group.info());
    ranks_ = group.info()->size();
    std::set<std::string> names;
    for (TrainedTensor& tensor : tensors) {
      check(tensor);
      if (!names.insert(tensor.name).second)
        misused(fmt::format("two tensors are called '{}'; give each a name of its own", tensor.name));
      add(std::move(tensor), group.info()->rank);
    }
    set_priorities();
    if (options_.wire) make_wires();
    for (std::size_t i = 0; options_.adopts && i < entries_.size(); ++i) {
      if (!options_.wire) try_to_adopt(session, entries_[i].tensor.gradient);
      if (shards_[i].split) try_to_adopt(session, entries_[i].tensor.value);
    }
    count_.emplace(session, StepCount::Options{.counts = options_.counts,
                                               .divides = options_.wire.has_value(),
                                               .ranks = ranks_,
                                               .prefix = options_.prefix,
                                               .group = options_.group,
                                               .timeout_seconds = options_.timeout_seconds});
  }

  void broadcast(int root, void* stream) {
    std::vector<Handle> handles;
    for (const Entry& entry : entries_) {
      handles.push_back(session_->broadcast_async(
          entry.value_name, entry.tensor.value,
          {.root = root, .group = options_.group, .ready = stream, .timeout_seconds = options_.timeout_seconds}));
    }
    timed([&] { wait_all(handles); });
  }

  void count(double mine, double expected) { count_->set(mine, expected); }

  void ready(std::size_t i, void* stream) {
    Entry& entry = at(i);
    if (skips) return;
    if (entry.without_gradient()) misused(fmt::format("'{}' has no gradient that could be ready", entry.tensor.name));
    if (entry.state != State::idle)
      misused(fmt::format("the gradient of '{}' was ready twice in one step; call finish() between steps",
                          entry.tensor.name));
    count_->send();
    submit(entry, stream);
    submitted_.push_back(i);
  }

  void ready_rest(void* stream) {
    if (skips) misused("a step ends while its gradients are skipped; call skip_sync(false) before its last pass");
    count_->send();
    for (std::size_t i = 0; i < entries_.size(); ++i) {
      if (entries_[i].state == State::idle && !entries_[i].without_gradient()) ready(i, stream);
    }
  }

  void wait(std::size_t i, const std::optional<void*>& stream) {
    Entry& entry = at(i);
    if (entry.state == State::idle)
      misused(fmt::format("wait() for the gradient of '{}' before its ready(); call that first", entry.tensor.name));
    if (entry.state == State::summed) return;
    entry.state = State::summed;  // also if it fails
    wait_for(entry.sum, stream);
    if (!options_.wire) return;
    void* const on = stream.value_or(entry.stream);
    widen_from_wire(part_of(entry.wire, shards_[i]), part_of(entry.tensor.gradient, shards_[i]), on);
    if (!stream) await_stream(entry.wire, on);
  }

  void finish(const std::optional<void*>& stream) {
    ready_rest(stream.value_or(nullptr));
    std::optional<Error> failure;
    const auto attempt = [&](auto&& call) {
      try {
        call();
      } catch (const Error& error) {
        if (!failure) failure = error;
      }
    };
    for (const std::size_t i : submitted_) attempt([&] { wait(i, stream); });
    attempt([&] { counted(); });
    for (Entry& entry : entries_) entry.state = State::idle;
    submitted_.clear();
    count_->finish();
    if (failure) throw Error(*failure);
  }

  double counted() {
    double total = 0;
    timed([&] { total = count_->total(); });
    return total;
  }

  double gradient_scale() {
    const double total = counted();
    if (total == 0) return 0;
    if (options_.wire) return count_->expected() / total;
    return (options_.op == ReduceOp::average ? ranks_ : 1) / total;
  }

  void updated(std::size_t i, void* stream) {
    Entry& entry = at(i);
    if (!shards_[i].split) return;
    if (entry.gather)
      misused(fmt::format("'{}' was updated twice; call use() before the next update", entry.tensor.name));
    const Tensor value = flat(entry.tensor.value);
    entry.gather = session_->all_gather_async(entry.shard_name, part_of(value, shards_[i]), value,
                                              {.group = options_.group,
                                               .ready = stream,
                                               .timeout_seconds = options_.timeout_seconds,
                                               .priority = entry.priority});
  }

  void use(std::size_t i, const std::optional<void*>& stream) {
    if (Handle& gather = at(i).gather) wait_for(gather, stream);
  }

  void use_all() {
    std::vector<Handle> handles;
    for (Entry& entry : entries_) {
      if (entry.gather) handles.push_back(std::move(entry.gather));
    }
    timed([&] { wait_all(handles); });
  }

  bool skips = false;
  std::span<const std::size_t> submitted() const { return submitted_; }
  const std::vector<TensorShard>& shards() const { return shards_; }
  double wait_seconds() const { return wait_seconds_; }

 private:
  enum class State : unsigned char { idle, travelling, summed };

  struct Entry {
    bool without_gradient() const { return tensor.gradient.data == nullptr; }

    TrainedTensor tensor;
    TensorId value_name, gradient_name, shard_name;
    int priority = 0;
    Tensor wire;  // of the gradient's shape; the gradient itself if that travels
    State state = State::idle;
    void* stream = nullptr;  // of ready()
    Handle sum, gather;
  };

  void check_options(const GroupInfo& group) const {
    if (!group.member()) misused("this rank is no member of the group; only members train in it");
    if (group.order != Order::names)
      misused(
          fmt::format("group {} matches operations by their order, and gradients need names; make a group without "
                      "Order::program",
                      group.name));
    if (options_.op != ReduceOp::sum && options_.op != ReduceOp::average)
      misused(fmt::format("gradients cannot be combined by {}; use sum or average", to_string(options_.op)));
    if (options_.wire && *options_.wire != DType::f16 && *options_.wire != DType::bf16)
      misused(fmt::format("gradients cannot travel as {}; use bf16 or f16", to_string(*options_.wire)));
  }

  void check(const TrainedTensor& tensor) const {
    const auto bad = [&](std::string_view why) {
      misused(fmt::format("'{}' cannot be trained ({}); see TrainedTensor", tensor.name, why));
    };
    const Tensor &value = tensor.value, &gradient = tensor.gradient;
    if (!value.shape.valid() || !gradient.shape.valid()) bad("a shape is not valid");
    if (gradient.data == nullptr) return;
    if (value.elements() != gradient.elements()) bad("value and gradient have different numbers of elements");
    if (value.device != gradient.device) bad("value and gradient are on different devices");
    if (!is_floating_point(gradient.dtype)) bad("its gradient has no floats");
    if (options_.wire && gradient.dtype != DType::f32) bad("gradients that travel in 16 bits are f32");
  }

  void add(TrainedTensor tensor, int rank) {
    const auto declare = [&](std::string_view kind) {
      return session_->declare(options_.prefix + std::string(kind) + "/" + tensor.name);
    };
    const auto elements = static_cast<std::size_t>(tensor.value.elements());
    const bool split = tensor.gradient.data != nullptr && ranks_ > 1 && elements >= options_.shards_from;
    const RowRange mine = rows_of_rank(tensor.value.elements(), ranks_, rank);
    shards_.push_back(
        split ? TensorShard{static_cast<std::size_t>(mine.begin), static_cast<std::size_t>(mine.count()), true}
              : TensorShard{.count = elements});
    Entry entry{.value_name = declare("value"), .gradient_name = declare("gradient"), .shard_name = declare("shard")};
    entry.wire = tensor.gradient;
    entry.tensor = std::move(tensor);
    entries_.push_back(std::move(entry));
  }

  void set_priorities() {
    std::vector<std::size_t> order = options_.order;
    if (order.empty()) {
      order.resize(entries_.size());
      std::iota(order.rbegin(), order.rend(), std::size_t{0});
    }
    std::vector<GradientSize> sizes;
    for (std::size_t i = 0; i < entries_.size(); ++i) {
      const Tensor& gradient = entries_[i].tensor.gradient;
      const std::size_t each = size_of(options_.wire.value_or(gradient.dtype));
      sizes.push_back({gradient.elements() * static_cast<std::int64_t>(each), shards_[i].split});
    }
    std::set<std::size_t> once(order.begin(), order.end());
    if (once.size() != order.size() || (!once.empty() && *once.rbegin() >= entries_.size()))
      misused("the order of gradients has a number twice, or one that is no tensor's; list each tensor once");
    const auto priorities = gradient_priorities(order, sizes, session_->config().fusion_bytes);
    for (std::size_t i = 0; i < entries_.size(); ++i) entries_[i].priority = priorities[i];
  }

  /// One allocation for each device.
  void make_wires() {
    std::vector<Entry*> left;
    for (Entry& entry : entries_) {
      if (!entry.without_gradient()) left.push_back(&entry);
    }
    while (!left.empty()) {
      const Device device = left.front()->tensor.gradient.device;
      std::size_t bytes = 0;
      for (const Entry* entry : left) {
        if (entry->tensor.gradient.device == device) bytes += wire_bytes(entry->tensor.gradient);
      }
      wires_.push_back(options_.allocate ? options_.allocate(bytes, device) : session_->allocate(bytes, device));
      std::byte* next = wires_.back().data();
      std::erase_if(left, [&](Entry* entry) {
        if (entry->tensor.gradient.device != device) return false;
        entry->wire.data = next;
        entry->wire.dtype = *options_.wire;
        next += wire_bytes(entry->tensor.gradient);
        return true;
      });
    }
  }

  Entry& at(std::size_t i) {
    if (i >= entries_.size())
      misused(fmt::format("there is no tensor {} (they go from 0 to {})", i, std::ssize(entries_) - 1));
    return entries_[i];
  }

  void submit(Entry& entry, void* stream) {
    const std::size_t i = static_cast<std::size_t>(&entry - entries_.data());
    if (options_.wire) {
      const double each = options_.op == ReduceOp::average ? ranks_ : 1;
      round_to_wire(entry.tensor.gradient, each / count_->expected(), entry.wire, stream);
    }
    entry.stream = stream;
    if (shards_[i].split) {
      entry.sum = session_->reduce_scatter_async(entry.gradient_name, flat(entry.wire), part_of(entry.wire, shards_[i]),
                                                 {.op = options_.op,
                                                  .group = options_.group,
                                                  .ready = stream,
                                                  .timeout_seconds = options_.timeout_seconds,
                                                  .priority = entry.priority});
    } else {
      entry.sum = session_->all_reduce_async(entry.gradient_name, entry.wire, entry.wire,
                                             {.op = options_.op,
                                              .group = options_.group,
                                              .ready = stream,
                                              .timeout_seconds = options_.timeout_seconds,
                                              .priority = entry.priority});
    }
    entry.state = State::travelling;
  }

  template <class Call>
  void timed(Call&& call) {
    using Clock = std::chrono::steady_clock;
    struct Timer {
      double& seconds;
      Clock::time_point start = Clock::now();
      ~Timer() { seconds += std::chrono::duration<double>(Clock::now() - start).count(); }
    } timer{wait_seconds_};
    call();
  }

  void wait_for(Handle& handle, const std::optional<void*>& stream) {
    timed([&] { stream ? handle.wait(*stream) : handle.wait(); });
  }

  Session* session_;
  DataParallelOptions options_;
  int ranks_ = 1;
  std::vector<TensorShard> shards_;
  std::vector<Memory> wires_;
  std::vector<std::size_t> submitted_;
  double wait_seconds_ = 0;
  std::optional<StepCount> count_;
  std::vector<Entry> entries_;  // last, so that operations end before their memory does
};

DataParallel::DataParallel(Session& session, std::vector<TrainedTensor> tensors, DataParallelOptions options)
    : parts_(std::make_unique<Parts>(session, std::move(tensors), std::move(options))) {}
DataParallel::DataParallel(DataParallel&&) noexcept = default;
DataParallel& DataParallel::operator=(DataParallel&&) noexcept = default;
DataParallel::~DataParallel() = default;

void DataParallel::broadcast(int root, void* stream) {
  parts_->broadcast(root, stream);
}
void DataParallel::skip_sync(bool skip) {
  parts_->skips = skip;
}
void DataParallel::count(double mine, double expected) {
  parts_->count(mine, expected);
}
void DataParallel::ready(std::size_t i, void* stream) {
  parts_->ready(i, stream);
}
void DataParallel::ready_rest(void* stream) {
  parts_->ready_rest(stream);
}
void DataParallel::wait(std::size_t i) {
  parts_->wait(i, std::nullopt);
}
void DataParallel::wait(std::size_t i, void* stream) {
  parts_->wait(i, stream);
}
void DataParallel::finish() {
  parts_->finish(std::nullopt);
}
void DataParallel::finish(void* stream) {
  parts_->finish(stream);
}
std::span<const std::size_t> DataParallel::submitted() const {
  return parts_->submitted();
}
double DataParallel::counted() {
  return parts_->counted();
}
double DataParallel::gradient_scale() {
  return parts_->gradient_scale();
}
const std::vector<TensorShard>& DataParallel::shards() const {
  return parts_->shards();
}
void DataParallel::updated(std::size_t i, void* stream) {
  parts_->updated(i, stream);
}
void DataParallel::use(std::size_t i) {
  parts_->use(i, std::nullopt);
}
void DataParallel::use(std::size_t i, void* stream) {
  parts_->use(i, stream);
}
void DataParallel::use_all() {
  parts_->use_all();
}
double DataParallel::wait_seconds() const {
  return parts_->wait_seconds();
}

}  // namespace kolo
