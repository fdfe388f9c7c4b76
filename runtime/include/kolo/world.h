#pragma once

#include <memory>
#include <vector>

#include <kolo/backend.h>
#include <kolo/config.h>
#include <kolo/memory.h>

namespace kolo {

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

  WorldParts& parts() { return *parts_; }

 private:
  std::unique_ptr<WorldParts> parts_;
};

/// The launcher's world: under mpirun all ranks of MPI_COMM_WORLD (MPI is initialised unless it is already), otherwise
/// a world of one. Collective. Throws Error{backend} if the launcher started several ranks but MPI sees one, and
/// Error{invalid_argument} if MPI is initialised with less than MPI_THREAD_SERIALIZED.
World launcher_world(const Config& config);

/// A world of one rank; needs no launcher and no MPI.
World solo_world(const Config& config);

/// A world of `size` ranks in this process: worlds[r] belongs to the thread of rank r. Throws
/// Error{invalid_argument} if `size` is less than 1.
std::vector<World> thread_worlds(int size, const Config& config);

}  // namespace kolo
