// Streams, points, memory and captures of ops/gpu.

#include <fmt/format.h>

#include <cstring>
#include <optional>
#include <string>
#include <vector>

#include "tests/gpu/calls.h"
#include "tests/gpu/smoke.h"

namespace kolo::smoke {
namespace {

std::size_t large() {
  return pretended() ? 1 << 18 : 64 << 20;
}

/// Copies from one half of a buffer to the other, which take some milliseconds.
class Load {
 public:
  explicit Load(Gpu& gpu) : gpu_(gpu), memory_(gpu, 2 * large()), stream_(gpu) {
    gpu.clear(memory_.data(), memory_.size());
  }
  /// The point behind it.
  std::shared_ptr<const DevicePoint> put() {
    for (int i = 0; i < 200; ++i) gpu_.copy(memory_.data() + large(), memory_.data(), large(), stream_.get());
    return gpu_.mark(stream_.get());
  }
  void* stream() const { return stream_.get(); }

 private:
  Gpu& gpu_;
  GpuBuffer memory_;
  GpuStream stream_;
};

void check_pinned(Line& line, Gpu& gpu) {
  const GpuStream stream(gpu);
  const GpuBuffer memory(gpu, large()), from(gpu, large(), GpuBuffer::Kind::pinned),
      to(gpu, large(), GpuBuffer::Kind::pinned);
  for (std::size_t i = 0; i < large(); ++i) from.data()[i] = static_cast<std::byte>(i * 7 + i / 251);
  std::memset(to.data(), 0, large());
  gpu.clear(memory.data(), large());
  const auto rate = [&](void* target, const void* source) {
    const double seconds = line.time([&] {
      gpu.copy(target, source, large(), stream.get());
      wait(gpu, stream.get());
    });
    return static_cast<double>(large()) / seconds / 1e9;
  };
  const double there = rate(memory.data(), from.data()), back = rate(to.data(), memory.data());
  require(std::memcmp(from.data(), to.data(), large()) == 0, "what came back is not what went there");
  line.note(fmt::format("to the GPU {:.1f} GB/s, back {:.1f}", there, back));
  std::vector<std::byte> plain(large());
  const double seconds = line.time([&] { gpu.copy(plain.data(), memory.data(), large()); });
  require(std::memcmp(from.data(), plain.data(), large()) == 0,
          "what came back to plain memory is not what went there");
  line.note(fmt::format("to plain memory {:.1f}", static_cast<double>(large()) / seconds / 1e9));
}

/// A value goes through three streams, each of which waits for the one before, again and again.
void check_order(Line& line, Gpu& gpu) {
  const GpuStream low(gpu), high(gpu, StreamPriority::high), highest(gpu, StreamPriority::highest);
  const auto a = stream_priority(low.get()), b = stream_priority(high.get()), c = stream_priority(highest.get());
  if (a && b && c) {
    line.note(fmt::format("priorities {}, {}, {}", *a, *b, *c));
    require(*a > *b && *b > *c, "they are not three priorities");
  }
  const std::size_t bytes = large() / 4;
  constexpr std::size_t turns = 8;
  const GpuBuffer from(gpu, turns * bytes, GpuBuffer::Kind::pinned), to(gpu, turns * bytes, GpuBuffer::Kind::pinned);
  const GpuBuffer first(gpu, bytes), second(gpu, bytes);
  for (std::size_t turn = 0; turn < turns; ++turn) {
    std::memset(from.data() + turn * bytes, static_cast<int>(turn) + 1, bytes);
  }
  const auto go = [&] {
    std::shared_ptr<const DevicePoint> copied, read;
    for (std::size_t turn = 0; turn < turns; ++turn) {
      if (copied) copied->order(low.get());
      gpu.copy(first.data(), from.data() + turn * bytes, bytes, low.get());
      gpu.mark(low.get())->order(highest.get());
      if (read) read->order(highest.get());
      gpu.copy(second.data(), first.data(), bytes, highest.get());
      copied = gpu.mark(highest.get());
      copied->order(high.get());
      gpu.copy(to.data() + turn * bytes, second.data(), bytes, high.get());
      read = gpu.mark(high.get());
    }
    wait(*read);
  };
  for (int again = 0; again < 3; ++again) {
    std::memset(to.data(), 0, to.size());
    go();
    require(std::memcmp(from.data(), to.data(), to.size()) == 0, "a stream did not wait for another");
  }
  line.time(go);
}

void check_clock(Line& line, Gpu& gpu) {
  Load load(gpu);
  const GpuRange range(gpu, "a range that profilers show");
  double by_points = 0;
  const double by_host = line.time([&] {
    const auto begin = gpu.mark(load.stream(), true);
    (void)load.put();
    const auto end = gpu.mark(load.stream(), true);
    wait(*end);
    by_points = gpu.seconds_between(*begin, *end);
  });
  line.note(fmt::format("{:.1f} us by the GPU's clock, {:.1f} by the host's: {:.1f} GB/s within its memory",
                        by_points * 1e6, by_host * 1e6, 400 * static_cast<double>(large()) / by_points / 1e9));
  require(by_points > 0 && by_points <= by_host * 1.01 + 1e-5, "the clocks differ" + line.notes());
}

void check_release(Line& line, Gpu& gpu) {
  Load load(gpu);
  std::optional<GpuBuffer> buffer;
  std::shared_ptr<const DevicePoint> end;
  line.time([&] {
    buffer.emplace(gpu, 1 << 20);
    gpu.clear(buffer->data(), buffer->size(), load.stream());
    end = load.put();
    buffer.reset();
    require(end->passed(), "release() has not waited for what ran");
  });
  end = load.put();
  require(gpu.wait_for_all(), "wait_for_all() says that it could not");
  require(end->passed(), "wait_for_all() has not waited for what ran");
  const double allocated = static_cast<double>(gpu.memory_use().used) / (1 << 20);
  line.note(fmt::format("{:.0f} MiB of the GPU are in use", allocated));
}

void check_scratch(Line& line, Gpu& gpu) {
  Load load(gpu);
  gpu.release_scratch(gpu.allocate_scratch(1 << 20));
  const double whole = line.time([&] { wait(*load.put()); });
  const auto end = load.put();
  void* memory = nullptr;
  std::string took;
  const auto step = [&](const char* name, const auto& body) {
    took +=
        fmt::format("{} {:.0f} us{}", name, line.time_once(body) * 1e6, end->passed() ? " (and all is over), " : ", ");
  };
  step("taken", [&] { memory = gpu.allocate_scratch(1 << 20); });
  step("cleared", [&] { gpu.clear(memory, 1 << 20); });
  step("released", [&] { gpu.release_scratch(memory); });
  const bool waited = end->passed();
  wait(*end);
  line.note(fmt::format("{}beside what takes {:.0f} us", took, whole * 1e6));
  require(pretended() || !waited, "it has waited for what ran");
}

/// `allocates`: memory is taken and released beside the capture, too.
void check_capture(Line& line, Gpu& gpu, bool waits_for_default, bool allocates) {
  constexpr std::size_t bytes = 1 << 20;
  const GpuBuffer from(gpu, bytes), to(gpu, bytes), other(gpu, bytes), pinned(gpu, bytes, GpuBuffer::Kind::pinned);
  const GpuStream stream(gpu, StreamPriority::high);
  std::vector<std::byte> values(bytes, std::byte{42});
  gpu.copy(from.data(), values.data(), bytes);
  gpu.clear(to.data(), bytes);
  std::vector<PackItem> items{{from.data(), to.data(), bytes}}, others{{from.data(), other.data(), bytes}};
  const Conversion how{DType::u8, DType::u8};
  const std::int64_t tiles = lay_tiles(items, how);
  (void)lay_tiles(others, how);  // as many
  const auto go = [&] {
    capture(
        gpu, waits_for_default, [&](void* captured) { gpu.pack(items.data(), items.size(), tiles, how, captured); },
        [&](void* captured) {
          require(gpu.is_capturing(captured), "nobody sees that it is captured");
          require(!gpu.is_capturing(stream.get()), "another stream counts as captured");
          for (int turn = 0; turn < 5; ++turn) {
            gpu.pack(others.data(), others.size(), tiles, how, stream.get());
            gpu.copy(other.data(), pinned.data(), bytes, stream.get());
            gpu.clear(other.data(), bytes);
            const auto point = gpu.mark(stream.get(), true);
            point->order(stream.get());
            wait(*point);
            (void)gpu.memory_use();
            if (!allocates) continue;
            const GpuStream made(gpu, StreamPriority::highest);
            const GpuBuffer taken(gpu, 1 << 20), taken_pinned(gpu, 1 << 20, GpuBuffer::Kind::pinned);
            gpu.release_scratch(gpu.allocate_scratch(1 << 20));
            require(gpu.wait_for_all(), "wait_for_all() could not");
          }
        });
  };
  try {
    line.time(go);
  } catch (const std::exception& error) {
    throw Wrong(fmt::format("{}: {}", waits_for_default ? "a stream that waits for the default one" : "a stream alone",
                            error.what()));
  }
  require(bytes_of(gpu, to.data(), bytes) == values, "what was captured did not run");
}

}  // namespace

void check_streams(Checks& checks, Gpu& gpu) {
  checks.run("copies from pinned memory and back", [&](Line& line) { check_pinned(line, gpu); });
  checks.run("three priorities of streams, in order by points", [&](Line& line) { check_order(line, gpu); });
  checks.run("seconds between points, and a range", [&](Line& line) { check_clock(line, gpu); });
  checks.run("memory that is released while work runs", [&](Line& line) { check_release(line, gpu); });
  checks.run("scratch memory, which waits for nothing", [&](Line& line) { check_scratch(line, gpu); });
  checks.run("a capture beside polling and copies", [&](Line& line) {
    check_capture(line, gpu, false, false);
    check_capture(line, gpu, true, false);
  });
  checks.run("a capture beside memory that comes and goes", [&](Line& line) {
    check_capture(line, gpu, false, true);
    check_capture(line, gpu, true, true);
  });
}

}  // namespace kolo::smoke
