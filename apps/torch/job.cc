#include "apps/torch/job.h"

#include <chrono>
#include <cstdlib>
#include <span>
#include <string>
#include <utility>

#include <c10/util/StringUtil.h>

#include <kolo/error.h>
#include <kolo/world.h>

#include "apps/torch/device.h"

namespace kolo_torch {
namespace {

/// A number that Open MPI's launcher has set, the same on all ranks of a node; 0: it has not started this process.
int said_by_mpirun(const char* variable) {
  const char* const text = std::getenv(variable);
  return text ? std::atoi(text) : 0;
}

/// Why not all ranks can meet over MPI; the same on every rank. Those of one node do not ask each other.
std::string why_not_over_mpi(kolo::Store& store, int rank, int size, const kolo::Config& config) {
  const int all = said_by_mpirun("OMPI_COMM_WORLD_SIZE");
  if (all == 0) return "mpirun has not started them";
  if (config.fake_nodes.empty() && said_by_mpirun("OMPI_COMM_WORLD_LOCAL_SIZE") == all) return "they are on one node";
  const auto key = [](int of) { return c10::str("over_mpi/", of); };
  const std::string mine = kolo::why_not_over_mpi(rank, size), word = mine.empty() ? "yes" : mine;
  store.set(key(rank), std::as_bytes(std::span(word)));
  const double seconds = config.stall_abort_seconds > 0 ? config.stall_abort_seconds : 1e6;
  const auto deadline =
      std::chrono::steady_clock::now() +
      std::chrono::duration_cast<std::chrono::steady_clock::duration>(std::chrono::duration<double>(seconds));
  for (int other = 0; other < size; ++other) {
    const auto bytes = store.get(key(other), deadline);
    const std::string said(reinterpret_cast<const char*>(bytes.data()), bytes.size());
    if (said != "yes") return c10::str("rank ", other, ": ", said);
  }
  return {};
}

}  // namespace

Job::Job(std::unique_ptr<kolo::Store> its_store, int rank, int size, const kolo::Config& config)
    : store(std::move(its_store)),
      why_not_over_mpi_(why_not_over_mpi(*store, rank, size, config)),
      session_(std::make_shared<kolo::Session>(
          why_not_over_mpi_.empty() ? kolo::launcher_world(config) : kolo::store_world(*store, rank, size, config),
          config)) {}

void* Job::ready(const at::Tensor& tensor) {
  if (tensor.is_cpu()) return nullptr;
  TORCH_CHECK(session()->device().kind == kolo::DeviceKind::cuda, "kolo: a tensor is on ", tensor.device(),
              ", and this kolo uses no GPU: build its wheel with --cuda, or use 'cpu:kolo,cuda:nccl'");
  gpu_ = tensor.device().index();
  return native(current_stream(tensor.device()));
}

Job::~Job() {
  abandon();
}

void Job::enter() {
  const std::lock_guard lock(mutex_);
  ++groups_;
}

void Job::leave() {
  {
    const std::lock_guard lock(mutex_);
    if (--groups_ > 0) return;
  }
  abandon();
}

/// Calls of other threads that are in the session hold it until they are back.
void Job::abandon() {
  std::shared_ptr<kolo::Session> session;
  {
    const std::lock_guard lock(mutex_);
    session.swap(session_);
  }
  if (!session) return;
  try {
    session->abandon();
  } catch (const kolo::Error& error) {
    kolo::report(session->config(), error.what());
  }
}

bool Job::abandoned() const {
  const std::lock_guard lock(mutex_);
  return !session_;
}

std::shared_ptr<kolo::Session> Job::session() const {
  const std::lock_guard lock(mutex_);
  return session_ ? session_ : closed();
}

bool Job::has_lost_a_rank() const {
  return has_lost_ || session()->stats().lost_ranks > 0;
}

std::shared_ptr<kolo::Session> Job::closed() {
  throw kolo::Error(kolo::ErrorCode::closed,
                    "the process group was destroyed or aborted; make another with init_process_group()");
}

}  // namespace kolo_torch
