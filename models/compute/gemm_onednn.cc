#include <fmt/format.h>

#include <string>
#include <tuple>

#include "models/compute/gemm.h"
#include "models/compute/kept_few.h"
#include "models/compute/onednn.h"
#include "models/util/error.h"
#include "models/util/headroom.h"

namespace kolo::models {
namespace {

/// The bits that all instruction sets with bf16 products have.
constexpr auto bf16_instructions = static_cast<unsigned>(dnnl::cpu_isa::avx512_core_bf16);

using Type = dnnl::memory::data_type;

dnnl::memory::desc matrix(std::int64_t rows, std::int64_t columns, Type type, bool transposed) {
  using dnnl::memory;
  return {{rows, columns}, type, transposed ? memory::dims{1, rows} : memory::dims{columns, 1}};  // strides
}

/// The matmul primitive of one shape, with the arguments it is run on. dnnl_sgemm would be less code, but loses a third
/// of its speed where B is transposed and rows are 4096 bytes apart, which is what a layer of 1024 units does.
class Matmul {
 public:
  Matmul(const GemmShape& shape, Type type)
      : stream_(onednn_cpu()),
        a_(matrix(shape.m, shape.k, type, shape.transpose_a), onednn_cpu(), nullptr),
        b_(matrix(shape.k, shape.n, type, shape.transpose_b), onednn_cpu(), nullptr),
        c_(matrix(shape.m, shape.n, Type::f32, false), onednn_cpu(), nullptr) {
    check_headroom("the code of a matrix product");  // oneDNN 2.6 crashes without it
    dnnl::post_ops after;
    if (shape.beta != 0) after.append_sum(shape.beta);
    dnnl::primitive_attr attributes;
    attributes.set_post_ops(after);
    const dnnl::matmul::desc description(a_.get_desc(), b_.get_desc(), c_.get_desc());
    matmul_ = dnnl::matmul({description, attributes, onednn_cpu()});
  }

  void run(const void* a, const void* b, float* c) {
    a_.set_data_handle(const_cast<void*>(a));
    b_.set_data_handle(const_cast<void*>(b));
    c_.set_data_handle(c);
    matmul_.execute(stream_, {{DNNL_ARG_SRC, a_}, {DNNL_ARG_WEIGHTS, b_}, {DNNL_ARG_DST, c_}});
    stream_.wait();
  }

 private:
  dnnl::stream stream_;
  dnnl::memory a_, b_, c_;
  dnnl::matmul matmul_;
};

/// Primitives are kept per thread: one must not run on two threads at a time.
Matmul& matmul_for(const GemmShape& shape, Type type) {
  using Key = std::tuple<std::int64_t, std::int64_t, std::int64_t, bool, bool, float, Type>;
  thread_local KeptFew<Key, Matmul> products(256);
  const Key key{shape.m, shape.n, shape.k, shape.transpose_a, shape.transpose_b, shape.beta, type};
  return products.at(key, [&] { return Matmul(shape, type); });
}

constexpr std::int64_t long_sum = 1024;

/// With AVX-512 the primitive takes a way that transposes A block by block; oneDNN's other one, which it takes without,
/// is faster there: gradients of weights take 3 to 10 % less time. It has a few megabytes of its own meanwhile, so it
/// is for long sums only, whose operands have more.
void with_transposed_a(const GemmShape& shape, const float* a, const float* b, float* c) {
  [[maybe_unused]] static const bool room = (check_headroom("the code of a matrix product"), true);
  dnnl::error::wrap_c_api(
      dnnl_sgemm('T', 'N', shape.m, shape.n, shape.k, 1, a, shape.m, b, shape.n, shape.beta, c, shape.n), "dnnl_sgemm");
}

void run(const GemmShape& shape, Type type, const void* a, const void* b, float* c) {
  const OneThread one_thread;
  try {
    if (type == Type::f32 && shape.transpose_a && !shape.transpose_b && shape.k >= long_sum) {
      return with_transposed_a(shape, static_cast<const float*>(a), static_cast<const float*>(b), c);
    }
    matmul_for(shape, type).run(a, b, c);
  } catch (const dnnl::error& error) {
    if (error.status == dnnl_out_of_memory) {
      refuse_memory(fmt::format("a matrix product of {} x {} x {}", shape.m, shape.k, shape.n));
    }
    throw ModelError(std::string("a matrix product failed (oneDNN: ") + error.what() +
                     "); build with -DKOLO_GEMM=openblas or plain");
  }
}

}  // namespace

void gemm(const GemmShape& shape, const float* a, const float* b, float* c) {
  run(shape, Type::f32, a, b, c);
}

bool gemm_bf16(const GemmShape& shape, const std::uint16_t* a, const std::uint16_t* b, float* c) {
  static const bool fast =
      (static_cast<unsigned>(dnnl::get_effective_cpu_isa()) & bf16_instructions) == bf16_instructions;
  if (fast) run(shape, Type::bf16, a, b, c);
  return fast;
}

std::string_view gemm_backend() {
  return "onednn";
}

}  // namespace kolo::models
