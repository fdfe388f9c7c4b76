#include <omp.h>

#include <map>
#include <string>
#include <tuple>

#include <dnnl.hpp>

#include "models/error.h"
#include "models/gemm.h"

namespace kolo::models {
namespace {

/// One OpenMP thread for the caller while it lives: ranks share the cores, and sums must not depend on their number.
class OneThread {
 public:
  OneThread() : before_(omp_get_max_threads()) {
    if (before_ != 1) omp_set_num_threads(1);
  }
  ~OneThread() {
    if (before_ != 1) omp_set_num_threads(before_);
  }
  OneThread(const OneThread&) = delete;
  OneThread& operator=(const OneThread&) = delete;

 private:
  int before_;
};

dnnl::memory::desc matrix(std::int64_t rows, std::int64_t columns, bool transposed) {
  using dnnl::memory;
  return {{rows, columns},
          memory::data_type::f32,
          transposed ? memory::dims{1, rows} : memory::dims{columns, 1}};  // strides
}

/// The matmul primitive of one shape, with the arguments it is run on. dnnl_sgemm would be less code, but loses a third
/// of its speed where B is transposed and rows are 4096 bytes apart, which is what a layer of 1024 units does.
class Product {
 public:
  explicit Product(const GemmShape& shape)
      : stream_(engine()),
        a_(matrix(shape.m, shape.k, shape.transpose_a), engine(), nullptr),
        b_(matrix(shape.k, shape.n, shape.transpose_b), engine(), nullptr),
        c_(matrix(shape.m, shape.n, false), engine(), nullptr) {
    dnnl::post_ops after;
    if (shape.beta != 0) after.append_sum(shape.beta);
    dnnl::primitive_attr attributes;
    attributes.set_post_ops(after);
    const dnnl::matmul::desc description(a_.get_desc(), b_.get_desc(), c_.get_desc());
    matmul_ = dnnl::matmul({description, attributes, engine()});
  }

  void run(const float* a, const float* b, float* c) {
    a_.set_data_handle(const_cast<float*>(a));
    b_.set_data_handle(const_cast<float*>(b));
    c_.set_data_handle(c);
    matmul_.execute(stream_, {{DNNL_ARG_SRC, a_}, {DNNL_ARG_WEIGHTS, b_}, {DNNL_ARG_DST, c_}});
    stream_.wait();
  }

 private:
  static const dnnl::engine& engine() {
    static const dnnl::engine cpu(dnnl::engine::kind::cpu, 0);
    return cpu;
  }

  dnnl::stream stream_;
  dnnl::memory a_, b_, c_;
  dnnl::matmul matmul_;
};

/// Primitives are kept per thread: one must not run on two threads at a time.
Product& product_for(const GemmShape& shape) {
  using Key = std::tuple<std::int64_t, std::int64_t, std::int64_t, bool, bool, float>;
  thread_local std::map<Key, Product> products;
  const Key key{shape.m, shape.n, shape.k, shape.transpose_a, shape.transpose_b, shape.beta};
  return products.try_emplace(key, shape).first->second;
}

}  // namespace

void gemm(const GemmShape& shape, const float* a, const float* b, float* c) {
  const OneThread one_thread;
  try {
    product_for(shape).run(a, b, c);
  } catch (const dnnl::error& error) {
    throw ModelError(std::string("a matrix product failed (oneDNN: ") + error.what() +
                     "); build with -DKOLO_GEMM=openblas or plain");
  }
}

std::string_view gemm_backend() {
  return "onednn";
}

}  // namespace kolo::models
