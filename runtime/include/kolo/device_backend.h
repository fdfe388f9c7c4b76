#pragma once

#include <kolo/backend.h>
#include <kolo/error.h>

namespace kolo {

/// A point in the work of a device's streams. Used by any thread.
class DevicePoint {
 public:
  virtual ~DevicePoint() = default;

  /// Lets what is put on `stream` (a cudaStream_t of that device; null: the default stream) from now on run after this
  /// point. Waits for nothing. Throws Error{backend}.
  virtual void order(void* stream) const = 0;

  /// Whether everything before it has run. Throws Error{backend} if the device failed.
  virtual bool passed() const = 0;
};

/// A backend whose operations communicate on a device after step() has returned: there they may fail late, or wait for
/// a peer that is gone. An Error that an operation throws from step() is a fault: the operation has failed, but the
/// backend goes on once every rank of the group has called recover(), at the same place of what they have agreed on.
class DeviceBackend : public Backend {
 public:
  /// After a fault, here or on another rank. Every bucket that the ranks have agreed on so far was started
  /// here, and its operation destroyed. What is agreed on later runs as ever.
  virtual void recover() = 0;

  /// The process is about to end: ends what runs on the device. Nothing but abandon() and the destructor is called
  /// after that.
  virtual void abort_device_work() noexcept = 0;
};

}  // namespace kolo
