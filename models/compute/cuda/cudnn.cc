// cuDNN, which is opened when it is needed: attention, by the kernels that it has for a graph of operations.

#include <cstddef>
#include <limits>
#include <span>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "models/compute/cuda/attentions.h"
#include "models/compute/cuda/cudnn_attention.h"
#include "models/compute/cuda/cudnn_descriptors.h"
#include "models/compute/cuda/opened_library.h"
#include "models/compute/cuda/products.h"
#include "models/compute/kept_few.h"
#include "models/util/error.h"

namespace kolo::models::cuda {
namespace {

using namespace cudnn;  // NOLINT(google-build-using-namespace)

constexpr const char* file = "libcudnn.so.9";
constexpr std::size_t oldest = 91200;  // 9.12: those before have had defects in the pass back

/// What is given for a tensor.
struct Argument {
  Given which;
  const void* data;
};

/// The kernels that the library has for a graph, and their memory.
class Plan {
 public:
  Plan(const Functions& functions, cudnnHandle_t handle, Graph graph)
      : functions_(&functions), descriptors_(std::move(graph.descriptors())) {
    const Node whole = descriptors_.make(CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR);
    descriptors_.set(whole, CUDNN_ATTR_OPERATIONGRAPH_HANDLE, CUDNN_TYPE_HANDLE, handle);
    descriptors_.set(whole, CUDNN_ATTR_OPERATIONGRAPH_OPS, CUDNN_TYPE_BACKEND_DESCRIPTOR,
                     std::span<const Node>(graph.operations()));
    descriptors_.finished(whole);
    const Node heuristic = descriptors_.make(CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR);
    descriptors_.set(heuristic, CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH, whole);
    descriptors_.set(heuristic, CUDNN_ATTR_ENGINEHEUR_MODE, CUDNN_TYPE_HEUR_MODE, CUDNN_HEUR_MODE_A);
    descriptors_.finished(heuristic);
    const auto results = [&](std::span<Node> to) {
      return descriptors_.get(heuristic, CUDNN_ATTR_ENGINEHEUR_RESULTS, CUDNN_TYPE_BACKEND_DESCRIPTOR, to);
    };
    std::vector<Node> choices(static_cast<std::size_t>(results({})));
    for (Node& choice : choices) choice = descriptors_.make(CUDNN_BACKEND_ENGINECFG_DESCRIPTOR);
    if (!choices.empty()) choices.resize(static_cast<std::size_t>(results(choices)));
    for (const Node choice : choices) {
      const Node plan = descriptors_.make(CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR);
      descriptors_.set(plan, CUDNN_ATTR_EXECUTION_PLAN_HANDLE, CUDNN_TYPE_HANDLE, handle);
      descriptors_.set(plan, CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG, choice);
      if (!descriptors_.try_finish(plan)) continue;
      std::int64_t bytes = 0;
      descriptors_.get(plan, CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE, CUDNN_TYPE_INT64, std::span(&bytes, 1));
      workspace_bytes_ = static_cast<std::size_t>(bytes);
      plan_ = plan;
      break;
    }
  }

  /// Whether the library has any.
  explicit operator bool() const { return plan_ != nullptr && !descriptors_.refused(); }
  std::size_t workspace_bytes() const { return workspace_bytes_; }

  void run(cudnnHandle_t handle, std::span<const Argument> arguments, void* workspace) const {
    std::vector<std::int64_t> ids;
    std::vector<const void*> addresses;
    for (const Argument& argument : arguments) {
      ids.push_back(static_cast<std::int64_t>(argument.which));
      addresses.push_back(argument.data);
    }
    Descriptors own(*functions_);
    const Node pack = own.make(CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR);
    own.set(pack, CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS, CUDNN_TYPE_INT64, std::span<const std::int64_t>(ids));
    own.set(pack, CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS, CUDNN_TYPE_VOID_PTR, std::span<const void* const>(addresses));
    own.set(pack, CUDNN_ATTR_VARIANT_PACK_WORKSPACE, CUDNN_TYPE_VOID_PTR, workspace);
    own.finished(pack);
    if (own.refused()) throw ModelError("cuDNN takes no arguments for attention; run without libcudnn");
    if (const cudnnStatus_t status = functions_->execute(handle, plan_, pack); status != CUDNN_STATUS_SUCCESS) {
      throw ModelError(fmt::format("cudnnBackendExecute failed (cuDNN's status {}); see cudnn_graph.h for what that is",
                                   static_cast<int>(status)));
    }
  }

 private:
  const Functions* functions_;
  Descriptors descriptors_;
  Node plan_ = nullptr;
  std::size_t workspace_bytes_ = 0;
};

class Cudnn final : public AttentionLibrary {
 public:
  Cudnn(OpenedLibrary library, void* workspace)
      : library_(std::move(library)), functions_(library_), workspace_(workspace) {}

  /// False where the library does not fit the driver, or the GPU has no memory for it.
  bool begins() {
    DnnHandle::Raw raw{&functions_, nullptr};
    if (functions_.create(&raw.handle) != CUDNN_STATUS_SUCCESS) return false;
    handle_ = DnnHandle(raw);
    return true;
  }

  bool attend(const LibraryAttention& of) override {
    const Plan* const plan = plan_of(false, of.shape);
    if (plan == nullptr || plan->workspace_bytes() > workspace_bytes) return false;
    plan->run(handle_.get().handle,
              std::to_array<Argument>({{Given::q, of.q},
                                       {Given::k, of.k},
                                       {Given::v, of.v},
                                       {Given::out, of.out},
                                       {Given::log_sums, of.log_sums},
                                       {Given::scale, &one},
                                       {Given::hidden, &hidden}}),
              workspace_);
    return true;
  }
  std::size_t attend_backward_bytes(const AttentionShape& shape) override {
    const Plan* const plan = plan_of(true, shape);
    return plan == nullptr ? 0 : inner_bytes(shape) + plan->workspace_bytes();
  }
  void attend_backward(const LibraryAttentionBack& of) override {
    plan_of(true, of.shape)
        ->run(handle_.get().handle,
              std::to_array<Argument>({{Given::q, of.q},
                                       {Given::k, of.k},
                                       {Given::v, of.v},
                                       {Given::out, of.out},
                                       {Given::log_sums, of.log_sums},
                                       {Given::d_out, of.d_out},
                                       {Given::d_q, of.d_q},
                                       {Given::d_k, of.d_k},
                                       {Given::d_v, of.d_v},
                                       {Given::inner, of.scratch},
                                       {Given::scale, &one},
                                       {Given::unit, &one},
                                       {Given::hidden, &hidden}}),
              static_cast<std::byte*>(of.scratch) + inner_bytes(of.shape));
  }

 private:
  static constexpr float one = 1, hidden = -std::numeric_limits<float>::infinity();

  struct Key {
    bool back;
    AttentionShape shape;
    auto operator<=>(const Key&) const = default;
  };

  static std::size_t inner_bytes(const AttentionShape& shape) {
    const Index bytes = shape.sequences * shape.heads * shape.positions * static_cast<Index>(sizeof(float));
    return static_cast<std::size_t>(divided_up(bytes, 256) * 256);
  }
  const Plan* plan_of(bool back, const AttentionShape& shape) {
    const Plan& plan = plans_.at({back, shape}, [&] {
      Graph graph(functions_, shape);
      back ? graph.backward() : graph.forward();
      return Plan(functions_, handle_.get().handle, std::move(graph));
    });
    return plan ? &plan : nullptr;
  }

  OpenedLibrary library_;
  Functions functions_;
  void* workspace_;
  DnnHandle handle_;
  KeptFew<Key, Plan> plans_{16};
};

}  // namespace

bool cudnn_installed() {
  const OpenedLibrary library(file);
  if (!library) return false;
  const Functions functions(library);
  return functions.complete && functions.version() >= oldest;
}

std::unique_ptr<AttentionLibrary> open_cudnn(void* workspace) {
  if (!cudnn_installed()) return nullptr;
  auto cudnn = std::make_unique<Cudnn>(OpenedLibrary(file), workspace);
  return cudnn->begins() ? std::move(cudnn) : nullptr;
}

}  // namespace kolo::models::cuda
