#pragma once

#include <chrono>
#include <cstddef>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <utility>

namespace kolo {

class Driver;
class Error;
struct Submission;

/// One operation in flight, to wait for.
///
/// Destroying a handle whose operation the ranks have not agreed on yet withdraws it, as if it had never been
/// submitted; otherwise the destructor blocks until the operation is complete, or has failed by a time-out or a
/// mismatch. How it failed is lost then, unless a function of on_done() is told, and the next operation of its name is
/// the next one everywhere: wait() where that matters. In both cases the tensors' storage may be freed afterwards.
/// Move-only. Several threads may wait for one handle at once, and ask it, and give it functions: those that began
/// before one of them was back all learn how it went, later ones find it empty. Otherwise (wait(stream), detach(),
/// moves, its end) use a handle from one thread at a time. It must not outlive its session.
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
  /// Throws Error{invalid_argument}, and the handle stays as it is, for a stream that is being captured into a graph;
  /// and as wait() does. A later failure on the GPU is thrown by the next wait() on any operation of this session,
  /// on every rank.
  void wait(void* stream);

  /// Whether wait() would return (or throw) without waiting. Like wait(), it flushes an incomplete bucket.
  bool poll();

  /// Waits no longer than until then: whether the operation is done. Throws as wait() does, and the handle is empty, if
  /// it is; otherwise it goes on. Like poll(), it flushes an incomplete bucket once.
  bool wait_until(std::chrono::steady_clock::time_point deadline);

  /// The operation goes on without its handle, which is empty afterwards; its name is free, and its memory may die,
  /// when it is done. `keep_alive` is held until then, and let go in the session's thread for functions, see on_done().
  /// How it fails is thrown by the next wait() on any operation of this session. Throws Error{closed} in a child of
  /// fork(), and Error{backend} if the thread cannot be started: then nothing has happened. Flushes as wait() does. Of
  /// an empty handle: lets `keep_alive` go.
  void detach(std::shared_ptr<const void> keep_alive = {});

  /// Runs `function` once, when the tensors are final (at once, if they are), with null or how the operation failed:
  /// Error{aborted} also where the handle has withdrawn it. Of an operation on a GPU: when its results are in memory.
  /// The handle stays as it is.
  ///
  /// It runs in a thread of the session that runs nothing else, one function after the other, those of one operation in
  /// the order of these calls. So it may submit, wait, give functions, and close the session: but not wait for what
  /// another function has to do, nor destroy the session. What it throws is reported (Config::report), with the
  /// operation's name. It and what it holds die when it has run. Session::close() and ~Session() return when all have
  /// run; what they submit meanwhile throws Error{closed}. In a child of fork() none runs.
  ///
  /// Flushes as poll() does: call it after submitting what may run in the same bucket. Errors as of detach(), and
  /// Error{invalid_argument} if the handle is empty.
  void on_done(std::function<void(const Error*)> function);

  /// False if the handle is empty.
  explicit operator bool() const;

 private:
  using Operation = std::pair<std::shared_ptr<Driver>, std::shared_ptr<Submission>>;
  friend std::size_t wait_any(std::span<Handle* const> handles);

  void release() noexcept;
  Operation operation() const;
  void finish(const Operation& operation);

  mutable std::mutex mutex_;  // for threads that wait at once
  std::shared_ptr<Driver> driver_;
  std::shared_ptr<Submission> submission_;
};

/// The index of a handle that is empty, or whose operation is done: its wait() returns, or throws, without waiting.
/// Throws Error{invalid_argument} if there are no handles. Flushes as poll() does. The handles may be of several
/// sessions.
std::size_t wait_any(std::span<Handle> handles);
std::size_t wait_any(std::span<Handle* const> handles);

/// Waits for all, then throws the first failure in their order.
void wait_all(std::span<Handle> handles);

}  // namespace kolo
