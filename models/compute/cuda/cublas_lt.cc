// The only file that knows cuBLASLt. The library is opened when it is needed: a program starts without it.

#include <cublasLt.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <compare>
#include <cstdint>
#include <string>

#include "models/compute/cuda/opened_library.h"
#include "models/compute/cuda/products.h"
#include "models/compute/kept_few.h"
#include "models/util/error.h"

namespace kolo::models::cuda {
namespace {

/// Its functions; `complete` unless one was not found.
struct Functions {
  explicit Functions(const OpenedLibrary& library)
      : complete(library.find(create, "cublasLtCreate") && library.find(destroy, "cublasLtDestroy") &&
                 library.find(create_matmul, "cublasLtMatmulDescCreate") &&
                 library.find(destroy_matmul, "cublasLtMatmulDescDestroy") &&
                 library.find(set_matmul, "cublasLtMatmulDescSetAttribute") &&
                 library.find(create_layout, "cublasLtMatrixLayoutCreate") &&
                 library.find(destroy_layout, "cublasLtMatrixLayoutDestroy") &&
                 library.find(create_preference, "cublasLtMatmulPreferenceCreate") &&
                 library.find(destroy_preference, "cublasLtMatmulPreferenceDestroy") &&
                 library.find(set_preference, "cublasLtMatmulPreferenceSetAttribute") &&
                 library.find(heuristic, "cublasLtMatmulAlgoGetHeuristic") && library.find(matmul, "cublasLtMatmul")) {}

  decltype(&cublasLtCreate) create = nullptr;
  decltype(&cublasLtDestroy) destroy = nullptr;
  decltype(&cublasLtMatmulDescCreate) create_matmul = nullptr;
  decltype(&cublasLtMatmulDescDestroy) destroy_matmul = nullptr;
  decltype(&cublasLtMatmulDescSetAttribute) set_matmul = nullptr;
  decltype(&cublasLtMatrixLayoutCreate) create_layout = nullptr;
  decltype(&cublasLtMatrixLayoutDestroy) destroy_layout = nullptr;
  decltype(&cublasLtMatmulPreferenceCreate) create_preference = nullptr;
  decltype(&cublasLtMatmulPreferenceDestroy) destroy_preference = nullptr;
  decltype(&cublasLtMatmulPreferenceSetAttribute) set_preference = nullptr;
  decltype(&cublasLtMatmulAlgoGetHeuristic) heuristic = nullptr;
  decltype(&cublasLtMatmul) matmul = nullptr;
  bool complete;
};

void check(cublasStatus_t status, const char* call) {
  if (status == CUBLAS_STATUS_SUCCESS) return;
  throw ModelError(
      fmt::format("{} failed (cuBLAS's status {}); see cublas_api.h for what that is", call, static_cast<int>(status)));
}

using LtHandle = Unique<HandleTraits<Functions, cublasLtHandle_t, &Functions::destroy>>;
using Matmul = Unique<HandleTraits<Functions, cublasLtMatmulDesc_t, &Functions::destroy_matmul>>;
using Layout = Unique<HandleTraits<Functions, cublasLtMatrixLayout_t, &Functions::destroy_layout>>;
using Preference = Unique<HandleTraits<Functions, cublasLtMatmulPreference_t, &Functions::destroy_preference>>;

/// What an algorithm is chosen by.
struct Key {
  Index m, n, k;
  DType items, result;
  bool transpose_a, transpose_b, add, bias, relu, sums, tf32;
  unsigned align_a, align_b, align_c;

  auto operator<=>(const Key&) const = default;
};

/// Bytes that divide an address, at most 256.
unsigned alignment_of(const void* address) {
  const auto number = reinterpret_cast<std::uintptr_t>(address) | 256;
  return static_cast<unsigned>(number & (~number + 1));
}

cudaDataType type_of(DType dtype) {
  if (dtype == DType::f32) return CUDA_R_32F;
  return dtype == DType::bf16 ? CUDA_R_16BF : CUDA_R_16F;
}

/// A product's descriptors, and the algorithm that has worked for it.
///
/// Our matrices are stored by rows, the library's by columns: c [m, n] is its [n, m], the product of b and a, in this
/// order. What we store as it is multiplied is not transposed there.
class Plan {
 public:
  Plan(const Functions& functions, cublasLtHandle_t handle, const Key& key, const PlainProduct& of)
      : functions_(&functions) {
    matmul_ = made<Matmul>(functions.create_matmul, "cublasLtMatmulDescCreate",
                           key.tf32 ? CUBLAS_COMPUTE_32F_FAST_TF32 : CUBLAS_COMPUTE_32F, CUDA_R_32F);
    set(CUBLASLT_MATMUL_DESC_TRANSA, key.transpose_b ? CUBLAS_OP_T : CUBLAS_OP_N);
    set(CUBLASLT_MATMUL_DESC_TRANSB, key.transpose_a ? CUBLAS_OP_T : CUBLAS_OP_N);
    set(CUBLASLT_MATMUL_DESC_EPILOGUE, epilogue(key));
    set_pointer(of);
    left_ = layout(key.items, key.transpose_b ? key.k : key.n, key.transpose_b ? key.n : key.k);
    right_ = layout(key.items, key.transpose_a ? key.m : key.k, key.transpose_a ? key.k : key.m);
    result_ = layout(key.result, key.n, key.m);

    const auto preference = made<Preference>(functions.create_preference, "cublasLtMatmulPreferenceCreate");
    const auto prefer = [&](cublasLtMatmulPreferenceAttributes_t what, const auto& value) {
      check(functions.set_preference(preference.get().handle, what, &value, sizeof(value)),
            "cublasLtMatmulPreferenceSetAttribute");
    };
    prefer(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, static_cast<std::uint64_t>(workspace_bytes));
    prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, static_cast<std::uint32_t>(key.align_b));
    prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, static_cast<std::uint32_t>(key.align_a));
    prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, static_cast<std::uint32_t>(key.align_c));
    prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, static_cast<std::uint32_t>(key.align_c));
    const cublasStatus_t status =
        functions.heuristic(handle, matmul_.get().handle, left_.get().handle, right_.get().handle, result_.get().handle,
                            result_.get().handle, preference.get().handle, static_cast<int>(algorithms_.size()),
                            algorithms_.data(), &count_);
    if (status == CUBLAS_STATUS_NOT_SUPPORTED || (key.sums && status == CUBLAS_STATUS_INVALID_VALUE))
      count_ = 0;
    else
      check(status, "cublasLtMatmulAlgoGetHeuristic");
  }

  /// Runs the first algorithm that the library does not refuse, then always that one.
  bool run(cublasLtHandle_t handle, const PlainProduct& of, void* workspace) {
    set_pointer(of);
    const float one = 1, beta = of.add ? 1 : 0;
    for (; next_ < count_; ++next_) {
      const cublasLtMatmulHeuristicResult_t& algorithm = algorithms_[static_cast<std::size_t>(next_)];
      if (algorithm.state != CUBLAS_STATUS_SUCCESS) continue;
      const cublasStatus_t status =
          functions_->matmul(handle, matmul_.get().handle, &one, of.b.data, left_.get().handle, of.a.data,
                             right_.get().handle, &beta, of.c.data, result_.get().handle, of.c.data,
                             result_.get().handle, &algorithm.algo, workspace, algorithm.workspaceSize, nullptr);
      if (status == CUBLAS_STATUS_NOT_SUPPORTED || status == CUBLAS_STATUS_INVALID_VALUE) continue;
      check(status, "cublasLtMatmul");
      return true;
    }
    return false;
  }

 private:
  template <class Handle, class Function, class... Arguments>
  Handle made(Function function, const char* call, Arguments... arguments) {
    typename Handle::Raw raw{functions_, nullptr};
    check(function(&raw.handle, arguments...), call);
    return Handle(raw);
  }
  template <class Value>
  void set(cublasLtMatmulDescAttributes_t what, Value value) {
    check(functions_->set_matmul(matmul_.get().handle, what, &value, sizeof(value)), "cublasLtMatmulDescSetAttribute");
  }
  /// Of what the epilogue reads or writes.
  void set_pointer(const PlainProduct& of) {
    const void* const data = of.sums != nullptr ? of.sums : of.bias.data;
    if (data != nullptr) set(CUBLASLT_MATMUL_DESC_BIAS_POINTER, data);
  }
  /// Of a matrix whose columns lie one behind the other.
  Layout layout(DType dtype, Index rows, Index columns) {
    return made<Layout>(functions_->create_layout, "cublasLtMatrixLayoutCreate", type_of(dtype),
                        static_cast<std::uint64_t>(rows), static_cast<std::uint64_t>(columns), rows);
  }
  static cublasLtEpilogue_t epilogue(const Key& key) {
    if (key.sums) return CUBLASLT_EPILOGUE_BGRADB;  // of what is our a
    if (key.bias) return key.relu ? CUBLASLT_EPILOGUE_RELU_BIAS : CUBLASLT_EPILOGUE_BIAS;
    return key.relu ? CUBLASLT_EPILOGUE_RELU : CUBLASLT_EPILOGUE_DEFAULT;
  }

  const Functions* functions_;
  Matmul matmul_;
  Layout left_, right_, result_;
  std::array<cublasLtMatmulHeuristicResult_t, 8> algorithms_{};
  int count_ = 0, next_ = 0;
};

class CublasLt final : public ProductLibrary {
 public:
  CublasLt(OpenedLibrary library, void* workspace)
      : library_(std::move(library)), functions_(library_), workspace_(workspace) {
    if (!functions_.complete) throw ModelError("libcublasLt lacks a function that kolo calls; install CUDA's own");
    LtHandle::Raw raw{&functions_, nullptr};
    check(functions_.create(&raw.handle), "cublasLtCreate");
    handle_ = LtHandle(raw);
  }

  bool multiply(const PlainProduct& of) override {
    const Key key{of.m, of.n, of.k, of.a.dtype, of.c.dtype, of.transpose_a, of.transpose_b, of.add,
                  of.bias.data != nullptr, of.relu, of.sums != nullptr, of.tf32 && of.a.dtype == DType::f32,
                  alignment_of(of.a.data), alignment_of(of.b.data),
                  // there is no other word for theirs
                  std::min({alignment_of(of.c.data), alignment_of(of.bias.data), alignment_of(of.sums)})};
    const cublasLtHandle_t handle = handle_.get().handle;
    return plans_.at(key, [&] { return Plan(functions_, handle, key, of); }).run(handle, of, workspace_);
  }

 private:
  OpenedLibrary library_;
  Functions functions_;
  void* workspace_;
  LtHandle handle_;
  KeptFew<Key, Plan> plans_{256};
};

}  // namespace

std::unique_ptr<ProductLibrary> open_cublas_lt(void* workspace) {
  const std::string name = fmt::format("libcublasLt.so.{}", CUBLAS_VER_MAJOR);
  OpenedLibrary library(name.c_str());
  if (!library) return nullptr;
  return std::make_unique<CublasLt>(std::move(library), workspace);
}

}  // namespace kolo::models::cuda
