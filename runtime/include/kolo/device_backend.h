#pragma once

#include <kolo/backend.h>
#include <kolo/error.h>

namespace kolo {

/// A point in the work of a device's streams, such as a CUDA event. Thread-safe.
class DevicePoint {
 public:
  virtual ~DevicePoint() = default;

  /// Makes work that is enqueued on `stream` from now on wait for this point; the calling thread does not wait.
  /// `stream`: a cudaStream_t of that device; null: the default stream. Throws Error{backend}.
  virtual void order(void* stream) const = 0;

  /// Whether all work before this point has run. Throws Error{backend} if the device failed.
  virtual bool passed() const = 0;
};

/// A backend whose operations communicate on a device after step() has returned, where they may fail later or wait for
/// a peer that left. An Error from step() is a fault: the operation has failed, and the backend is usable again
/// once every rank of the group has called recover(), at the same position of the agreed order.
class DeviceBackend : public Backend {
 public:
  /// Called after a fault on any rank of the group. Every bucket agreed on before was started here, and its operation
  /// destroyed. Buckets agreed on later run normally.
  virtual void recover() = 0;

  /// Called after recover() until it is true: whether nothing of what has failed touches the tensors any more. Never
  /// waits.
  virtual bool recovered() { return true; }

  /// Ends the work on the device because the process is about to end. Only abandon() and the destructor are called
  /// afterwards.
  virtual void abort_device_work() noexcept = 0;
};

}  // namespace kolo
