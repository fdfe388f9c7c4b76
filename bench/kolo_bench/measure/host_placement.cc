#include "bench/kolo_bench/measure/buffer_placement.h"

namespace kolo::bench {
namespace {

class HostPlace final : public BufferPlacement {
 public:
  explicit HostPlace(bool huge) : huge_(huge) {}

  Device device() const override { return {}; }
  void* stream() const override { return nullptr; }
  Storage storage(std::size_t bytes) const override { return Storage::private_pages(bytes, huge_); }
  void check_room(const Ranks& ranks, std::size_t bytes, const std::string& advice) const override {
    check_memory(ranks, bytes, advice);
  }
  void fill(const Checker& checker, const Work& work) const override { checker.fill(work); }
  std::int64_t wrong(const Checker& checker, const Work& work, std::optional<WrongElement>* first) const override {
    return checker.wrong(work, first);
  }

 private:
  bool huge_;
};

}  // namespace

std::unique_ptr<BufferPlacement> host_placement(bool huge) {
  return std::make_unique<HostPlace>(huge);
}

}  // namespace kolo::bench
