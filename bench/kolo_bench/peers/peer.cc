#include "bench/kolo_bench/peers/peer.h"

#include <cstring>
#include <regex>

#include "bench/kolo_bench/peers/mpi_algorithms.h"
#include "bench/kolo_bench/peers/raw_nccl.h"
#include "ops/nccl/rank.h"

namespace kolo::bench {
namespace {

class Mpi final : public Peer {
 public:
  Mpi(const Ranks& ranks, const Options& options) : comm_(ranks.comm()) {
    if (options.mpi_algorithms) algorithms_ = mpi_algorithms(ranks, options.collective->kind);
  }
  std::string name() const override { return "mpi"; }
  std::string version() const override { return mpi_version(); }
  std::optional<std::string> refuses(const Work& work) const override { return no_mpi_call(work); }
  std::unique_ptr<Asynchronous> candidate(const Work& work, const std::string& name, bool /*one_group*/) override {
    return raw_mpi(comm_, work, name);
  }
  std::vector<std::unique_ptr<Asynchronous>> alternatives(const Work& work) override {
    std::vector<std::unique_ptr<Asynchronous>> all;
    for (const MpiAlgorithm& one : algorithms_) all.push_back(raw_mpi(one.comm.get(), work, "mpi-" + one.name));
    return all;
  }
  /// MPI writes the result of an in-place reduce_scatter to another position.
  bool checkable(const Work& work) const override {
    return !(work.in_place && work.signature.kind == OpKind::reduce_scatter);
  }

 private:
  MPI_Comm comm_;
  std::vector<MpiAlgorithm> algorithms_;
};

class Nccl final : public Peer {
 public:
  Nccl(const Ranks& ranks, Gpu& gpu) {
    const NcclTable* table = nullptr;
    NcclId id{};
    cli::collectively(ranks, [&] {
      std::string why;
      table = kolo::nccl_table(&why);
      if (!table) throw UsageError("--compare nccl: " + why);
      const GpuGuard selected(gpu);
      if (ranks.rank() == 0) check_nccl(*table, table->get_unique_id(&id), nullptr, "ncclGetUniqueId");
    });
    const std::string of_rank_0 = ranks.gather(std::string(id.bytes, sizeof(id.bytes))).front();
    std::memcpy(id.bytes, of_rank_0.data(), sizeof(id.bytes));
    cli::collectively(ranks, [&] { nccl_ = std::make_unique<RawNccl>(*table, gpu, id, ranks.rank(), ranks.size()); });
  }
  std::string name() const override { return "nccl"; }
  std::string version() const override { return "NCCL " + nccl_version_text(kolo::nccl_table()->version); }
  std::optional<std::string> refuses(const Work& work) const override { return no_nccl_call(work); }
  std::unique_ptr<Asynchronous> candidate(const Work& work, const std::string& name, bool one_group) override {
    return nccl_->candidate(work, name, one_group);
  }
  bool checkable(const Work&) const override { return true; }

 private:
  std::unique_ptr<RawNccl> nccl_;
};

}  // namespace

std::string mpi_library() {
  char text[MPI_MAX_LIBRARY_VERSION_STRING] = {};
  int length = 0;
  check_mpi(MPI_Get_library_version(text, &length), "MPI_Get_library_version");
  const std::string_view all(text);
  return std::string(all.substr(0, all.find_first_of(",\n")));
}

std::string mpi_version() {
  return std::regex_replace(mpi_library(), std::regex("(?: Version:)?\\s+v?(?=[0-9])"), " ");
}

std::unique_ptr<Peer> make_peer(const Options& options, const Ranks& ranks, const BufferPlacement& place) {
  switch (options.compare) {
    case Compare::mpi: return std::make_unique<Mpi>(ranks, options);
    case Compare::nccl: return std::make_unique<Nccl>(ranks, cuda_gpu(place.device().index));
    default: return nullptr;
  }
}

}  // namespace kolo::bench
