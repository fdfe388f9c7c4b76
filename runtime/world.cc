#include <kolo/world.h>

#include <unistd.h>

#include "ops/local_backend.h"
#include "ops/registry.h"
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
  auto backends = local_backends(size, thread_bells(*channels.front()));
  std::vector<World> worlds;
  for (std::size_t rank = 0; rank < channels.size(); ++rank) {
    auto parts = std::make_unique<WorldParts>();
    parts->control = std::move(channels[rank]);
    const BackendOffer local{"local", [&] { return std::move(backends[rank]); }};
    parts->backends = make_backends(config.backend, {&local, 1});
    worlds.emplace_back(std::move(parts));
  }
  return worlds;
}

}  // namespace kolo
