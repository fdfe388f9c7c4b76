// Copies with stores that go past the caches: each byte is then read and written once, where an ordinary copy reads the
// destination, too.

#include "bench/kolo_bench/measure/candidate.h"
#include "bench/kolo_bench/measure/storage.h"
#include "ops/kernels/copy.h"

namespace kolo::bench {
namespace {

class Copies final : public Candidate {
 public:
  Copies(std::size_t bytes, bool huge)
      : bytes_(bytes), from_(Storage::private_pages(bytes, huge)), to_(Storage::private_pages(bytes, huge)) {}

  std::string_view name() const override { return "copy"; }
  void run() override {
    copy(to_.data(), from_.data(), bytes_, CopyTo::memory);
    finish_copies();
  }

 private:
  std::size_t bytes_;
  Storage from_, to_;
};

}  // namespace

std::unique_ptr<Candidate> copies(std::size_t bytes, bool huge) {
  return std::make_unique<Copies>(bytes, huge);
}

}  // namespace kolo::bench
