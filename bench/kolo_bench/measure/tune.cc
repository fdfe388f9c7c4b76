// Which way is fastest within a node, for each operation, size, type and kind of memory: the backend finds that out by
// itself, in the first operations of each class. Here they are run, and what it found is shown and noted.

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <map>

#include "apps/cli/files.h"
#include "apps/cli/terminal.h"
#include "bench/kolo_bench/measure/context.h"

namespace kolo::bench {
namespace {

constexpr std::chrono::seconds limit{105};  // of the two minutes; the rest is for what is begun, and for the end
constexpr std::size_t page = 4096;

/// One row of the table: an operation on values of a type, in memory of a kind.
struct Row {
  OpKind kind;
  std::string_view name;
  DType dtype;
  bool in_place;
  BufferMemory memory;
};

std::vector<Row> all_rows() {
  std::vector<Row> rows;
  for (const Collective& collective : collectives()) {
    if (collective.kind == OpKind::send_recv) continue;  // each sender finds out by itself
    for (const DType dtype : {DType::f32, DType::bf16, DType::f64, DType::i8}) {
      if (dtype != DType::f32 && !reduces(collective.kind)) continue;
      for (const bool in_place : {false, true}) {
        if (!in_place && collective.kind == OpKind::broadcast) continue;
        for (const BufferMemory memory : {BufferMemory::ordinary, BufferMemory::session})
          rows.push_back({collective.kind, collective.name, dtype, in_place, memory});
      }
    }
  }
  return rows;
}

/// "ring-256K" is R, and so on.
char letter_of(std::string_view method) {
  const bool small = method.ends_with("-64K");
  if (method.starts_with("ring")) return small ? 'r' : 'R';
  if (method.starts_with("read")) return small ? 'd' : 'D';
  return method.starts_with("mapped") ? 'M' : '?';
}

class Tuning {
 public:
  explicit Tuning(BenchContext& context) : context_(context), ranks_(context.ranks()) {}

  void run() {
    const std::string path = tuning_path(context_.config());
    cli::collectively(ranks_, [&] { check(path); });
    make_room();
    const auto begun = Clock::now();
    const auto time_is_up = [&] { return ranks_.sum(ranks_.rank() == 0 && Clock::now() - begun > limit ? 1 : 0) > 0; };
    for (const std::int64_t bytes : sizes_) {
      for (std::size_t row = 0; row < rows_.size() && !time_is_up(); ++row) measure(rows_[row], row, bytes);
    }
    show();
    cli::collectively(ranks_, [&] {
      if (ranks_.rank() == 0) write(path);
    });
  }

 private:
  struct Cell {
    std::string method;
    double gbs = 0;
  };

  void check(const std::string& path) const {
    const Config& config = context_.config();
    if (ranks_.size() < 2) throw UsageError("--tune needs two ranks at least; start them with mpirun -np 2");
    if (context_.world().backend != "shm" && context_.world().backend != "domains") {
      throw UsageError(
          fmt::format("--tune is for ranks that share memory (these use the backend {}); start them on one "
                      "node, without KOLO_BACKEND",
                      context_.world().backend));
    }
    if (config.shm_method != "measure")
      throw UsageError(fmt::format("KOLO_SHM_METHOD is {}, and --tune measures; unset it", config.shm_method));
    if (ranks_.rank() == 0 && !config.tuning.empty() && !path.empty()) cli::check_writable("KOLO_TUNING", path);
  }

  void make_room() {
    const std::size_t bytes = static_cast<std::size_t>(sizes_.back()) + page;
    for (const BufferMemory memory : {BufferMemory::ordinary, BufferMemory::session}) {
      context_.place().check_room(ranks_, 2 * bytes, "use fewer ranks");
      auto& [in, out] = storage_[memory];
      in = context_.storage(bytes, memory);
      out = context_.storage(bytes, memory);
      areas_[memory] = {in.data(), out.data(), bytes, bytes, 1, context_.place().device()};
    }
  }

  void measure(const Row& row, std::size_t number, std::int64_t bytes) {
    const Signature signature{.kind = row.kind, .dtype = row.dtype};
    const Work work = make_work(signature, bytes, row.in_place, ranks_.rank(), ranks_.size(), areas_[row.memory]);
    context_.watch().begin(work.name);
    const auto kolo = context_.kolo(work);
    kolo->run();
    run_until_settled(ranks_, *kolo);
    ranks_.barrier();
    std::vector<double> us;
    for (int i = 0; i < 3; ++i) {
      const auto begin = Clock::now();
      kolo->run();
      us.push_back(std::chrono::duration<double, std::micro>(Clock::now() - begin).count());
    }
    const double time = percentiles(combine(ranks_, std::move(us), Combine::max).us).p50;
    cells_[{number, bytes}] = {std::string(kolo->method()), static_cast<double>(bytes) / time / 1e3};
  }

  static std::string name_of(const Row& row) {
    return fmt::format("{:<15}{:<9}{:<13}{:<8}", row.name, to_string(row.dtype),
                       row.in_place ? "in-place" : "out-of-place", to_string(row.memory));
  }

  /// Calls visit(bytes, cell) for the sizes of a row; null where time was up.
  template <class Visit>
  void for_each_size(std::size_t row, Visit visit) const {
    for (const std::int64_t bytes : sizes_) {
      const auto found = cells_.find({row, bytes});
      visit(bytes, found == cells_.end() ? nullptr : &found->second);
    }
  }

  void show() const {
    if (ranks_.rank() > 0) return;
    std::string table = fmt::format("# kolo-bench --tune: {} ranks; the fastest way, and its GB/s\n", ranks_.size());
    std::string picture =
        "#\n# From size to size. R, r: ring, in chunks of 256K, 64K; D, d: read in pieces of 256K, 64K; M: mapped; .: "
        "time was up\n";
    for (std::size_t row = 0; row < rows_.size(); ++row) {
      const std::string name = name_of(rows_[row]);
      picture += "# " + name + " ";
      for_each_size(row, [&](std::int64_t bytes, const Cell* cell) {
        picture += cell ? letter_of(cell->method) : '.';
        if (cell) table += fmt::format("{}{:>10}  {:<10}{:>8.2f}\n", name, bytes, cell->method, cell->gbs);
      });
      picture += '\n';
    }
    cli::print(table + picture);
  }

  void write(const std::string& path) const {
    const auto& backends = context_.world_of_ranks().backends();
    const auto found =
        std::ranges::find_if(backends, [&](const auto& one) { return one->name() == context_.world().backend; });
    if (path.empty()) return cli::print("# written nowhere, as KOLO_TUNING says\n");
    try {
      std::error_code ignored;
      std::filesystem::create_directories(std::filesystem::path(path).parent_path(), ignored);
      cli::write_whole(path, (*found)->findings());
      cli::print(fmt::format("# written to {}\n", path));
    } catch (const std::exception& error) {
      if (!context_.config().tuning.empty()) throw;
      cli::print_problem(fmt::format("note: {}", cli::problem_of(error)));
    }
  }

  BenchContext& context_;
  const Ranks& ranks_;
  const std::vector<std::int64_t> sizes_ = context_.options().sizes.all();
  const std::vector<Row> rows_ = all_rows();
  std::map<BufferMemory, std::pair<Storage, Storage>> storage_;
  std::map<BufferMemory, Area> areas_;
  std::map<std::pair<std::size_t, std::int64_t>, Cell> cells_;  // by row and bytes
};

}  // namespace

void run_tune(BenchContext& context) {
  Tuning(context).run();
}

}  // namespace kolo::bench
