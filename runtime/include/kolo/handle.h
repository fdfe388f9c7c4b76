#pragma once

#include <memory>

namespace kolo {

class Driver;
struct Submission;

/// One operation in flight, to wait for.
///
/// Destroying a handle whose operation the ranks have not agreed on yet withdraws it, as if it had never been
/// submitted; otherwise the destructor blocks until the operation is complete, or has failed by a time-out or a
/// mismatch. How it failed is lost then, and the next operation of its name is the next one everywhere: wait() where
/// that matters. In both cases the tensors' storage may be freed afterwards. Move-only; use a handle from one thread at
/// a time. It must not outlive its session.
class Handle {
 public:
  Handle() = default;
  Handle(std::shared_ptr<Driver> driver, std::shared_ptr<Submission> submission);
  Handle(Handle&&) noexcept;
  Handle& operator=(Handle&&) noexcept;
  ~Handle();

  /// Returns when the operation is complete on this rank. Throws Error, the same on every rank of the group, if it
  /// failed: invalid_argument, mismatch, stalled, closed, aborted or backend. The handle is empty afterwards; waiting
  /// on an empty handle returns at once.
  void wait();

  /// Makes work that is enqueued on `stream` from now on wait for the operation; does not wait for the GPU. `stream`: a
  /// cudaStream_t of the tensors' GPU; null: the default stream. The handle is empty afterwards, and the name free
  /// again; the tensors' memory must stay alive until the stream has passed this point. With host tensors: wait().
  ///
  /// Throws as wait() does. A later failure on the GPU is thrown by the next wait() on any operation of this session,
  /// on every rank.
  void wait(void* stream);

  /// Whether wait() would return (or throw) without waiting. Like wait(), it flushes an incomplete bucket.
  bool poll();

  /// False if the handle is empty.
  explicit operator bool() const { return submission_ != nullptr; }

 private:
  void release() noexcept;

  std::shared_ptr<Driver> driver_;
  std::shared_ptr<Submission> submission_;
};

}  // namespace kolo
