#pragma once

#include <cudnn_graph.h>

#include <cstdint>
#include <deque>
#include <span>

#include <kolo/detail/unique.h>

#include "models/compute/cuda/opened_library.h"

// cuDNN's backend interface: all that it is told are descriptors with attributes.

namespace kolo::models::cuda::cudnn {

/// Its functions; `complete` unless one was not found.
struct Functions {
  explicit Functions(const OpenedLibrary& library)
      : complete(library.find(version, "cudnnGetVersion") && library.find(create, "cudnnCreate") &&
                 library.find(destroy, "cudnnDestroy") &&
                 library.find(create_descriptor, "cudnnBackendCreateDescriptor") &&
                 library.find(destroy_descriptor, "cudnnBackendDestroyDescriptor") &&
                 library.find(set, "cudnnBackendSetAttribute") && library.find(get, "cudnnBackendGetAttribute") &&
                 library.find(finalize, "cudnnBackendFinalize") && library.find(execute, "cudnnBackendExecute")) {}

  decltype(&cudnnGetVersion) version = nullptr;
  decltype(&cudnnCreate) create = nullptr;
  decltype(&cudnnDestroy) destroy = nullptr;
  decltype(&cudnnBackendCreateDescriptor) create_descriptor = nullptr;
  decltype(&cudnnBackendDestroyDescriptor) destroy_descriptor = nullptr;
  decltype(&cudnnBackendSetAttribute) set = nullptr;
  decltype(&cudnnBackendGetAttribute) get = nullptr;
  decltype(&cudnnBackendFinalize) finalize = nullptr;
  decltype(&cudnnBackendExecute) execute = nullptr;
  bool complete;
};

using DnnHandle = Unique<HandleTraits<Functions, cudnnHandle_t, &Functions::destroy>>;
using Descriptor = Unique<HandleTraits<Functions, cudnnBackendDescriptor_t, &Functions::destroy_descriptor>>;
using Node = cudnnBackendDescriptor_t;

/// Descriptors, which live as long as this. After the first call that the library refuses nothing more is asked of it.
class Descriptors {
 public:
  explicit Descriptors(const Functions& functions) : functions_(&functions) {}

  bool refused() const { return refused_; }

  Node make(cudnnBackendDescriptorType_t type) {
    Descriptor::Raw raw{functions_, nullptr};
    if (!refused_) note(functions_->create_descriptor(type, &raw.handle));
    if (refused_) return nullptr;
    return all_.emplace_back(raw).get().handle;
  }
  template <class T>
  void set(Node node, cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type, std::span<const T> values) {
    if (!refused_) note(functions_->set(node, name, type, static_cast<std::int64_t>(values.size()), values.data()));
  }
  template <class T>
  void set(Node node, cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type, const T& value) {
    set(node, name, type, std::span<const T>(&value, 1));
  }
  void set(Node node, cudnnBackendAttributeName_t name, const Node& other) {
    set(node, name, CUDNN_TYPE_BACKEND_DESCRIPTOR, other);
  }
  Node finished(Node node) {
    if (!refused_) note(functions_->finalize(node));
    return node;
  }
  /// Whether it could be finished; nothing is refused if not.
  bool try_finish(Node node) const { return !refused_ && functions_->finalize(node) == CUDNN_STATUS_SUCCESS; }
  template <class T>
  std::int64_t get(Node node, cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type, std::span<T> values) {
    std::int64_t count = 0;
    if (!refused_) {
      note(functions_->get(node, name, type, static_cast<std::int64_t>(values.size()), &count,
                           values.empty() ? nullptr : values.data()));
    }
    return count;
  }

 private:
  void note(cudnnStatus_t status) { refused_ = refused_ || status != CUDNN_STATUS_SUCCESS; }

  const Functions* functions_;
  std::deque<Descriptor> all_;
  bool refused_ = false;
};

}  // namespace kolo::models::cuda::cudnn
