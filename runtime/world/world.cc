#include <kolo/world.h>

#include <unistd.h>

#include "ops/registry/gpu.h"
#include "ops/registry/registry.h"
#include "runtime/control/thread.h"
#include "runtime/world/parts.h"

namespace kolo {

World::World(std::unique_ptr<WorldParts> parts) : parts_(std::move(parts)) {}
World::World(World&&) noexcept = default;
World& World::operator=(World&&) noexcept = default;
World::~World() = default;

void World::prefer(std::unique_ptr<Backend> backend) {
  parts_->backends.insert(parts_->backends.begin(), std::move(backend));
}

const BackendList& World::backends() const {
  return parts_->backends;
}

World solo_world(const Config& config) {
  return std::move(thread_worlds(1, config).front());
}

std::vector<World> thread_worlds(int size, const Config& config) {
  if (size < 1)
    throw Error(ErrorCode::invalid_argument, "thread_worlds() was asked for no rank; a world has at least one");
  const std::string host = host_name();
  Topology topology;
  topology.places.assign(static_cast<std::size_t>(size), {0, host, static_cast<int>(getpid())});
  fake_nodes(topology, config.fake_nodes);

  auto channels = thread_channels(topology);
  const std::span<Doorbell> doorbells = thread_doorbells(*channels.front());
  auto backends =
      thread_backends(config.backend, size, topology.nodes() == 1, doorbells, pretended_domains(config, size));
  std::vector<GpuShare> shares;
  for (int rank = 0; rank < size && cuda_gpus() > 0; ++rank) shares.push_back(find_gpu(config, host, rank));
  auto on_gpus = thread_gpu_backends(config, shares, doorbells);
  std::vector<World> worlds;
  for (std::size_t rank = 0; rank < channels.size(); ++rank) {
    auto parts = std::make_unique<WorldParts>();
    parts->control = std::move(channels[rank]);
    parts->backends = std::move(backends[rank]);
    if (!shares.empty() && !on_gpus[rank].empty()) {
      parts->device = {DeviceKind::cuda, shares[rank].identity.gpu};
      for (auto& backend : on_gpus[rank]) parts->backends.push_back(std::move(backend));
    }
    worlds.emplace_back(std::move(parts));
  }
  return worlds;
}

}  // namespace kolo
