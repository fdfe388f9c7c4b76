// The first program to run on an unknown card: it tells within seconds what works there, a line for each.
//
// usage: gpu_smoke [NUMBER...]    only these checks

#include <fmt/format.h>

#include <chrono>
#include <exception>
#include <string>

#include "ops/nccl/table.h"
#include "tests/gpu/calls.h"
#include "tests/gpu/smoke.h"

namespace kolo::smoke {
namespace {

int run(const Selection& selection) {
  const bool on_card = !pretended();
  if (const std::string why = why_no_gpu(); !why.empty()) {
    fmt::print("skipped: there is no GPU here ({})\n", why);
    return 0;
  }
  Checks checks(selection, std::chrono::seconds(on_card ? 10 : 100), [] { return cuda_gpu(0).wait_for_all(); });
  const auto tell_facts = [&checks] {
    for (const std::string& line : card_facts(0)) checks.tell(line);
    std::string why;
    const NcclTable* const nccl = nccl_table(&why);
    checks.tell(nccl ? "NCCL " + nccl_version_text(nccl->version) : why);
  };
  if (selection.after == 0) checks.prepare("the card's facts, and CUDA's libraries", tell_facts, 3);
  Gpu& gpu = cuda_gpu(0);
  const auto load = [&gpu](Line& line) { line.time_once([&gpu] { gpu.load_kernels(); }); };
  const auto load_first = [&gpu] { gpu.load_kernels(); };  // all others count on that
  if (!selection.contains(1)) checks.prepare("kernels", load_first, 3);
  checks.run("a context, and all kernels of ops/gpu", load, 3);
  check_kernels(checks, gpu);
  check_streams(checks, gpu);
  check_products(checks);
  check_attention(checks);
  check_sequences(checks);
  check_images(checks);
  check_models(checks);
  check_nccl(checks, gpu);
  const int code = checks.finish();
  if (complained()) checks.tell("the fakes have complained");
  return complained() ? 1 : code;
}

}  // namespace
}  // namespace kolo::smoke

int main(int argc, char** argv) {
  try {
    return kolo::smoke::run(kolo::smoke::Selection::of(argc, argv));
  } catch (const std::exception& error) {
    fmt::print("FAILED: {}\n", error.what());
    return 1;
  }
}
