#pragma once

#include <memory>

namespace kolo {

class Driver;
struct Submission;

/// One operation in flight: the only way to learn that it is done.
///
/// Destroying a handle whose operation the ranks have not agreed on yet withdraws it, as if it had never been
/// submitted; otherwise the destructor blocks until the operation is done. Either way the tensors' storage may die
/// right after it. Move-only; use a handle from one thread at a time. It must not outlive its session.
class Handle {
 public:
  Handle() = default;
  Handle(std::shared_ptr<Driver> driver, std::shared_ptr<Submission> submission);
  Handle(Handle&&) noexcept;
  Handle& operator=(Handle&&) noexcept;
  ~Handle();

  /// Returns when the operation is complete on this rank. Throws Error, the same on every rank of the group, if it
  /// failed: invalid_argument, mismatch, closed, aborted or backend. The handle is empty afterwards; waiting on an
  /// empty handle returns at once.
  void wait();

  /// Lets what is put on `stream` (a cudaStream_t of the tensors' GPU; null: the default stream) from now on run after
  /// the operation, and returns as soon as that is certain, without waiting for the GPU. The handle is empty
  /// afterwards, and the name free again; the tensors' memory must stay until the stream has come past this place. Of
  /// host tensors: wait().
  ///
  /// Throws as wait() does. What fails later, on the GPU, is thrown by the next wait() for anything of this session, on
  /// every rank.
  void wait(void* stream);

  /// Whether wait() would return (or throw) without waiting. Like wait(), it asks for an incomplete bucket to be cut.
  bool poll();

  /// Whether there is an operation to wait for.
  explicit operator bool() const { return submission_ != nullptr; }

 private:
  void release() noexcept;

  std::shared_ptr<Driver> driver_;
  std::shared_ptr<Submission> submission_;
};

}  // namespace kolo
