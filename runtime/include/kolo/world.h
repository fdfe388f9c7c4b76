#pragma once

#include <memory>
#include <string>
#include <vector>

#include <kolo/backend.h>
#include <kolo/config.h>
#include <kolo/memory.h>

namespace kolo {

class Store;
struct WorldParts;

/// The ranks of a session, and how they reach each other. Made by one of the functions below, or by mpi_world() of
/// <kolo/mpi.h>, and moved into exactly one Session.
class World {
 public:
  explicit World(std::unique_ptr<WorldParts> parts);
  World(World&&) noexcept;
  World& operator=(World&&) noexcept;
  ~World();

  /// Puts `backend` before the built-in ones. Every rank must add the same backends in the same order.
  void prefer(std::unique_ptr<Backend> backend);

  /// The backends of the group of all ranks, the preferred ones first, for programs that run buckets on them without a
  /// session. The world must live as long as they are used.
  const BackendList& backends() const;

  /// As Session::allocate(): memory whose tensors these backends move fastest.
  Memory allocate(std::size_t bytes, Device device = {});
  /// As Session::adopt(), until the world ends.
  void adopt(void* data, std::size_t bytes);

  WorldParts& parts() { return *parts_; }

 private:
  std::unique_ptr<WorldParts> parts_;
};

/// The launcher's world. Under mpirun, or srun with PMIx, all ranks of MPI_COMM_WORLD (MPI is initialised unless it is
/// already). Under torchrun, or another launcher that sets RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT, a
/// store_world() of its ranks: rank 0 serves the store for as long as its process lives, at the first free one of the
/// 16 ports behind MASTER_PORT. Otherwise a world of one. Collective. Throws Error{backend} if the launcher started
/// several ranks but MPI sees one, Error{invalid_argument} if the launcher's variables contradict each other.
World launcher_world(const Config& config);

/// Why launcher_world() makes no world over MPI in which this process is `rank` of `size`; empty: it does. Without MPI
/// in libkolo (KOLO_MPI=OFF) it takes libkolo_mpi.so beside libkolo.so, of the same build, and an Open MPI.
std::string why_not_over_mpi(int rank, int size);

/// A world of the processes that call this with one store, each as another rank of 0 to size - 1; MPI is not called.
/// Collective; the store may be used again, for another world of the same ranks in the same order, and is not needed
/// any more when all have their sessions. Tensors in host memory travel within nodes only; between nodes operations on
/// them fail, saying so.
///
/// Throws Error{stalled} that names ranks that have not come for `config.stall_abort_seconds`; then another world needs
/// another store. `config.may_exit` is false unless it is set. The store sees the secret by which ranks of different
/// nodes know each other: whoever can read it can take part.
World store_world(Store& store, int rank, int size, const Config& config);

/// A world of one rank; needs no launcher and no MPI.
World solo_world(const Config& config);

/// A world of `size` ranks in this process: worlds[r] belongs to the thread of rank r. Throws
/// Error{invalid_argument} if `size` is less than 1.
std::vector<World> thread_worlds(int size, const Config& config);

}  // namespace kolo
