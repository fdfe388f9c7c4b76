#include <kolo/world.h>

#include <unistd.h>

#include <array>
#include <numeric>

#include "ops/local/backend.h"
#include "ops/registry/registry.h"
#include "ops/shm/backend.h"
#include "runtime/control/thread.h"
#include "runtime/world/gpu_assignment.h"
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

namespace {

/// Of ranks in threads: they are on one host.
std::vector<GpuShare> find_gpus(const Config& config, const std::string& host, int ranks) {
  std::vector<GpuShare> shares;
  for (int rank = 0; rank < ranks && (cuda_gpus() > 0); ++rank) shares.push_back(find_gpu(config, host, rank));
  return shares;
}

/// Adds what serves GPU tensors to the parts of all ranks.
void add_gpu_backends(const Config& config, const std::string& host, std::span<Doorbell> doorbells,
                      std::span<WorldParts* const> parts) {
  using Sets = std::vector<std::vector<std::unique_ptr<Backend>>>;  // each of which makes one backend for every rank
  const int size = static_cast<int>(parts.size());
  const auto shares = find_gpus(config, host, size);
  if (shares.empty()) return;
  std::vector<GpuIdentity> places;
  for (const GpuShare& share : shares) places.push_back(share.place);
  GroupInfo world{.name = "world"};
  world.ranks.resize(parts.size());
  std::iota(world.ranks.begin(), world.ranks.end(), 0);
  Sets sets;
  for (std::size_t rank = 0; rank < parts.size(); ++rank) {
    world.rank = static_cast<int>(rank);
    std::size_t used = 0;
    const auto next = [&] {  // every rank asks for the same ones
      if (used == sets.size()) sets.push_back(local_backends(size, doorbells));
      return std::move(sets[used++][rank]);
    };
    const GpuHosts hosts{[&] {
                           BackendList list;
                           list.push_back(next());
                           return list;
                         },
                         next};
    auto backends = gpu_backends(config, shares[rank], places, world, hosts);
    if (!backends.empty()) parts[rank]->device = {DeviceKind::cuda, shares[rank].place.gpu};
    for (auto& backend : backends) parts[rank]->backends.push_back(std::move(backend));
  }
}

}  // namespace

World solo_world(const Config& config) {
  return std::move(thread_worlds(1, config).front());
}

std::vector<World> thread_worlds(int size, const Config& config) {
  if (size < 1)
    throw Error(ErrorCode::invalid_argument, "thread_worlds() was asked for no rank; a world has at least one");
  char host[64] = {};
  gethostname(host, sizeof(host) - 1);
  Topology topology;
  topology.places.assign(static_cast<std::size_t>(size), {0, host, static_cast<int>(getpid())});
  fake_nodes(topology, config.fake_nodes);

  auto channels = thread_channels(topology);
  const std::span<Doorbell> doorbells = thread_bells(*channels.front());
  auto local = local_backends(size, doorbells);
  std::vector<std::unique_ptr<Backend>> shared(local.size());
  if (config.backend == "shm" && topology.nodes() == 1) shared = shm_thread_backends(size, doorbells);
  std::vector<World> worlds;
  std::vector<WorldParts*> all_parts;
  for (std::size_t rank = 0; rank < channels.size(); ++rank) {
    auto parts = std::make_unique<WorldParts>();
    parts->control = std::move(channels[rank]);
    const std::array<BackendOffer, 2> offers{BackendOffer{"local", [&] { return std::move(local[rank]); }},
                                             BackendOffer{"shm", [&] { return std::move(shared[rank]); }, true}};
    parts->backends = make_backends(config.backend, offers);
    all_parts.push_back(parts.get());
    worlds.emplace_back(std::move(parts));
  }
  add_gpu_backends(config, host, doorbells, all_parts);
  return worlds;
}

}  // namespace kolo
