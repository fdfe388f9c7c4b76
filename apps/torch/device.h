#pragma once

#include <ATen/ATen.h>
#include <c10/core/Event.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

namespace kolo_torch {

// Streams of GPUs by torch's own interface to them, which needs no CUDA Toolkit. A device is never the host.

/// The stream that the calling thread works on.
inline c10::Stream current_stream(const c10::Device& device) {
  return c10::impl::VirtualGuardImpl(device.type()).getStream(device);
}

/// A stream as CUDA knows it: a cudaStream_t.
inline void* native(const c10::Stream& stream) {
  return c10::impl::VirtualGuardImpl(stream.device_type()).getStreamNativeHandle(stream);
}

/// A moment on the calling thread's stream, that others can wait for.
inline c10::Event mark(const c10::Device& device) {
  c10::Event event(device.type());
  event.record(current_stream(device));
  return event;
}

/// Waits for all that is on the calling thread's stream now.
inline void synchronize(const c10::Device& device) {
  c10::impl::VirtualGuardImpl(device.type()).synchronizeStream(current_stream(device));
}

/// The memory of a tensor is not given to others before what is on the calling thread's stream now has run.
inline void keep_until_here(const at::Tensor& tensor) {
  c10::impl::VirtualGuardImpl(tensor.device().type())
      .recordDataPtrOnStream(tensor.storage().data_ptr(), current_stream(tensor.device()));
}

/// While it lives, the calling thread, one of kolo's own, works on a stream out of torch's pool. The device stays its
/// current one, so that none is made to serve the thread that has nothing to do for it.
class SideStream {
 public:
  explicit SideStream(const c10::Device& device) : guard_(take(c10::impl::VirtualGuardImpl(device.type()), device)) {}

 private:
  static c10::Stream take(const c10::impl::VirtualGuardImpl& streams, const c10::Device& device) {
    streams.setDevice(device);
    return streams.getStreamFromGlobalPool(device);
  }

  c10::StreamGuard guard_;
};

}  // namespace kolo_torch
