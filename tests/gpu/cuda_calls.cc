// The only file of the tests that knows CUDA's headers.

#include <cublasLt.h>
#include <cuda_runtime.h>
#include <dlfcn.h>
#include <fmt/format.h>

#include <exception>
#include <thread>

#include <kolo/detail/unique.h>

#include "tests/gpu/calls.h"
#include "tests/gpu/checks.h"

namespace kolo::smoke {
namespace {

void check(cudaError_t rc, const char* call) {
  if (rc == cudaSuccess) return;
  (void)cudaGetLastError();
  throw Wrong(fmt::format("{} failed ({})", call, cudaGetErrorString(rc)));
}

struct StreamTraits {
  using Raw = cudaStream_t;
  static Raw null() noexcept { return nullptr; }
  static void destroy(Raw stream) noexcept { (void)cudaStreamDestroy(stream); }
};
struct GraphTraits {
  using Raw = cudaGraph_t;
  static Raw null() noexcept { return nullptr; }
  static void destroy(Raw graph) noexcept { (void)cudaGraphDestroy(graph); }
};
struct GraphExecTraits {
  using Raw = cudaGraphExec_t;
  static Raw null() noexcept { return nullptr; }
  static void destroy(Raw graph) noexcept { (void)cudaGraphExecDestroy(graph); }
};

std::string version_text(int version) {
  return fmt::format("{}.{}", version / 1000, version % 1000 / 10);
}

std::string cublas_lt_version() {
  const std::string name = fmt::format("libcublasLt.so.{}", CUBLAS_VER_MAJOR);
  void* const library = dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) return fmt::format("{} cannot be opened ({}): products will be slow", name, dlerror());
  const auto get = reinterpret_cast<decltype(&cublasLtGetVersion)>(dlsym(library, "cublasLtGetVersion"));
  return get == nullptr ? name + " has no version" : fmt::format("cuBLASLt {}", get());
}

}  // namespace

bool pretended() {
  return false;
}

std::string why_no_gpu() {
  int found = 0;
  const cudaError_t rc = cudaGetDeviceCount(&found);
  (void)cudaGetLastError();
  if (rc != cudaSuccess) return fmt::format("cudaGetDeviceCount says: {}", cudaGetErrorString(rc));
  return found == 0 ? "CUDA sees no GPU" : "";
}

std::vector<std::string> card_facts(int gpu) {
  cudaDeviceProp card{};
  check(cudaGetDeviceProperties(&card, gpu), "cudaGetDeviceProperties");
  int driver = 0, runtime = 0;
  check(cudaDriverGetVersion(&driver), "cudaDriverGetVersion");
  check(cudaRuntimeGetVersion(&runtime), "cudaRuntimeGetVersion");
  return {fmt::format("{}, compute capability {}.{}, {} multiprocessors, {:.1f} GiB, {} KiB of shared memory a block",
                      card.name, card.major, card.minor, card.multiProcessorCount,
                      static_cast<double>(card.totalGlobalMem) / (1 << 30), card.sharedMemPerBlockOptin >> 10),
          fmt::format("the driver knows CUDA {}, the runtime is CUDA {}, {}", version_text(driver),
                      version_text(runtime), cublas_lt_version())};
}

std::optional<int> stream_priority(void* stream) {
  int priority = 0;
  check(cudaStreamGetPriority(static_cast<cudaStream_t>(stream), &priority), "cudaStreamGetPriority");
  return priority;
}

void capture(Gpu& gpu, bool waits_for_default, const std::function<void(void* stream)>& put,
             const std::function<void(void* captured)>& meanwhile) {
  check(cudaSetDevice(gpu.index()), "cudaSetDevice");
  Unique<StreamTraits> stream;
  cudaStream_t raw = nullptr;
  check(cudaStreamCreateWithFlags(&raw, waits_for_default ? cudaStreamDefault : cudaStreamNonBlocking),
        "cudaStreamCreateWithFlags");
  stream.reset(raw);
  check(cudaStreamBeginCapture(raw, cudaStreamCaptureModeGlobal), "cudaStreamBeginCapture");
  std::exception_ptr failure;
  const auto attempt = [&failure](const auto& body) {
    try {
      body();
    } catch (...) {
      if (!failure) failure = std::current_exception();
    }
  };
  attempt([&] { put(raw); });
  std::thread([&] { attempt([&] { meanwhile(raw); }); }).join();
  attempt([&] { meanwhile(raw); });
  if (waits_for_default) attempt([&] { require(gpu.is_capturing(nullptr), "the default stream counts as free"); });
  cudaGraph_t raw_graph = nullptr;
  const cudaError_t ended = cudaStreamEndCapture(raw, &raw_graph);
  const Unique<GraphTraits> graph(raw_graph);
  if (failure) std::rethrow_exception(failure);
  check(ended, "cudaStreamEndCapture");
  cudaGraphExec_t raw_exec = nullptr;
  check(cudaGraphInstantiate(&raw_exec, raw_graph, 0), "cudaGraphInstantiate");
  const Unique<GraphExecTraits> exec(raw_exec);
  check(cudaGraphLaunch(raw_exec, raw), "cudaGraphLaunch");
  check(cudaStreamSynchronize(raw), "cudaStreamSynchronize");
}

bool complained() {
  return false;
}

}  // namespace kolo::smoke
