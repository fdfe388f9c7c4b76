#include <kolo/world.h>

#include <unistd.h>

#include <array>

#include "ops/local_backend.h"
#include "ops/registry.h"
#include "ops/shm_backend.h"
#include "runtime/control_thread.h"
#include "runtime/world_parts.h"

namespace kolo {

World::World(std::unique_ptr<WorldParts> parts) : parts_(std::move(parts)) {}
World::World(World&&) noexcept = default;
World& World::operator=(World&&) noexcept = default;
World::~World() = default;

void World::prefer(std::unique_ptr<Backend> backend) {
  parts_->backends.insert(parts_->backends.begin(), std::move(backend));
}

const BackendList& World::backends() const { return parts_->backends; }

World solo_world(const Config& config) { return std::move(thread_worlds(1, config).front()); }

std::vector<World> thread_worlds(int size, const Config& config) {
  if (size < 1) throw Error(ErrorCode::invalid_argument, "thread_worlds() was asked for no rank; a world has at least one");
  char host[64] = {};
  gethostname(host, sizeof(host) - 1);
  Topology topology;
  topology.places.assign(static_cast<std::size_t>(size), {0, host, static_cast<int>(getpid())});
  fake_nodes(topology, config.fake_nodes);

  auto channels = thread_channels(topology);
  const std::span<Bell> bells = thread_bells(*channels.front());
  auto local = local_backends(size, bells);
  std::vector<std::unique_ptr<Backend>> shared(local.size());
  if (config.backend == "shm" && topology.nodes() == 1) shared = shm_thread_backends(size, bells);
  std::vector<World> worlds;
  for (std::size_t rank = 0; rank < channels.size(); ++rank) {
    auto parts = std::make_unique<WorldParts>();
    parts->control = std::move(channels[rank]);
    const std::array<BackendOffer, 2> offers{BackendOffer{"local", [&] { return std::move(local[rank]); }},
                                             BackendOffer{"shm", [&] { return std::move(shared[rank]); }, true}};
    parts->backends = make_backends(config.backend, offers);
    worlds.emplace_back(std::move(parts));
  }
  return worlds;
}

}  // namespace kolo
