#include "bench/kolo_bench/options.h"

#include <fmt/format.h>

#include <algorithm>

#include <kolo/config.h>

namespace kolo::bench {
namespace {

std::string collective_names() {
  std::string text;
  for (const Collective& row : collectives()) text += (text.empty() ? "" : ", ") + std::string(row.name);
  return text;
}

const Collective* collective_of(const std::string& word, const Collective* before) {
  if (before)
    throw UsageError(fmt::format("'{}' belongs to no flag; name one collective, and write --flag value", word));
  const Collective* found = find_collective(word);
  if (!found) throw UsageError(fmt::format("'{}' is not a collective; name one of {}", word, collective_names()));
  return found;
}

cli::Syntax syntax() {
  return {.flags = cli::texts_of(flags()),
          .general = {{"General", "help,h", "", "print this text"}, {"General", "version", "", "print the version"}},
          .help_columns = 120,
          .letters = true};
}

/// Flags that set the same thing, or contradict each other.
void check_combinations(const cli::Values& values) {
  const auto refuse_both = [&](const char* one, const char* other, const char* advice) {
    const auto a = values.find(one), b = values.find(other);
    if (a != values.end() && b != values.end()) {
      throw UsageError(fmt::format("{} and {} do not go together; {}", a->second.where, b->second.where, advice));
    }
  };
  refuse_both("stepbytes", "stepfactor", "the sizes grow by a step or by a factor: keep one");
  refuse_both("blocking", "mode", "they set the same thing: keep one");
  for (const char* one : {"buckets", "latency", "idle", "overlap", "beside", "pack", "tune"}) {
    for (const char* other : {"buckets", "latency", "idle", "overlap", "beside", "pack", "tune"}) {
      const bool lists = std::string_view(one) == "buckets" && std::string_view(other) == "pack";  // which ones to pack
      if (std::string_view(one) < other && !lists) refuse_both(one, other, "measure one after the other");
    }
    if (std::string_view(one) != "tune")
      refuse_both("direct", one, "it needs the whole runtime, whose part --direct leaves out");
    for (const char* size : {"minbytes", "maxbytes"}) {
      if (std::string_view(one) != "overlap" && std::string_view(one) != "beside" && std::string_view(one) != "tune")
        refuse_both(size, one, "it has sizes of its own: leave out -b and -e");
    }
    refuse_both("plot", one, "only a sweep of sizes can be drawn");
    refuse_both("copy-limit", one, "it belongs to a sweep of sizes");
    refuse_both("agg_iters", one, "operations are aggregated in a sweep of sizes only");
    refuse_both("mpi-algorithms", one, "its blocking calls are compared in a sweep of sizes only");
  }
  for (const char* one :
       {"memory", "placement", "compare", "baseline", "min-busbw", "device", "ordered", "op", "datatype"})
    refuse_both("tune", one, "it measures all that it chooses for, and nothing else");
  refuse_both("ordered", "direct", "groups are the runtime's, which --direct leaves out");
  refuse_both("ordered", "buckets", "its gradients have names");
  refuse_both("ordered", "beside", "it measures groups of its own");
  refuse_both("ordered", "idle", "idling runs nothing");
  refuse_both("ordered", "pack", "it measures kernels");
  refuse_both("beside", "compare", "it is compared with the same operation alone");
  refuse_both("idle", "compare", "idling needs no peer");
  refuse_both("idle", "baseline", "idling has no time to compare");
  refuse_both("idle", "min-busbw", "idling moves no data");
  refuse_both("idle", "device", "idling needs no buffers");
  refuse_both("pack", "compare", "it is compared with a copy");
  if (values.contains("tolerance") && !values.contains("baseline"))
    throw UsageError("--tolerance is that of a baseline; add --baseline OLD.json");
}

/// Where the buffers lie, and what can be done with them there.
void check_device(const Options& o) {
  const auto refuse = [](const char* flag, const char* why) {
    throw UsageError(fmt::format("{} does not go with --device cuda ({}); leave it out", flag, why));
  };
  if (o.device == DeviceKind::cpu) {
    if (o.task == Task::pack) throw UsageError("--pack measures kernels of a GPU; add --device cuda");
    if (o.compare == Compare::nccl)
      throw UsageError("--compare nccl needs buffers that NCCL can reach; add --device cuda, or use --compare mpi");
    return;
  }
  if (o.compare == Compare::mpi)
    refuse("--compare mpi", "MPI is not asked to reach a GPU's memory; --compare nccl does");
  if (o.huge_pages) refuse("--thp", "huge pages are the host's");
  if (o.ordered && o.collective->kind == OpKind::send_recv)
    refuse("send_recv --ordered", "sends and receives by tag are for host memory");
  if (o.copy_limit) refuse("--copy-limit", "it is what cores copy; --pack measures copies of a GPU");
}

void check_sense(Options& o, const cli::Values& values) {
  if (!o.collective && o.task == Task::tune) o.collective = find_collective("all_reduce");  // it measures all
  if (!o.collective) throw UsageError(fmt::format("no collective is named; begin with one of {}", collective_names()));
  const OpKind kind = o.collective->kind;
  check_device(o);
  if (o.mpi_algorithms && (o.compare != Compare::mpi || kind == OpKind::send_recv))
    throw UsageError(fmt::format("--mpi-algorithms are those of MPI's collectives; {}",
                                 o.compare != Compare::mpi ? "add --compare mpi" : "leave it out, send_recv has none"));
  if (!o.direct && o.mpi_level() < MpiThreads::serialized)
    throw UsageError(fmt::format(
        "--mpi-threads {} is not enough for a session (it calls MPI from threads of its own); use serialized "
        "or multiple, or add --direct",
        to_string(o.mpi_level())));
  if (o.task != Task::sweep && o.task != Task::idle && kind != OpKind::all_reduce) {
    throw UsageError(fmt::format(
        "'{}' is measured in a sweep of sizes only; --buckets, --latency, --overlap and --beside are for all_reduce",
        o.collective->name));
  }
  if (o.task != Task::sweep && (o.ops.size() > 1 || o.dtypes.size() > 1)) {
    throw UsageError("'all' is for a sweep of sizes; name one operation and one type");
  }
  if (o.task == Task::tune) {  // all that a backend finds out about
    if (!values.contains("minbytes")) o.sizes.min = 64 << 10;
    if (!values.contains("maxbytes")) o.sizes.max = 256 << 20;
  }
  if (!values.contains("maxbytes")) o.sizes.max = std::max(o.sizes.max, o.sizes.min);
  if (const auto problem = o.sizes.problem(); !problem.empty()) throw UsageError(problem);
  if (!has_root(kind)) o.root = 0;  // as nccl-tests, which take -r and -o with every collective
  if (!reduces(kind)) o.ops = {ReduceOp::sum};
  if (kind == OpKind::broadcast && o.placements == Placements::out_of_place)
    throw UsageError("broadcast is always in place; use --placement in");
  if (kind == OpKind::send_recv && o.placements == Placements::in_place)
    throw UsageError("send_recv is never in place; use --placement out");
  if (!reduces(kind) || o.all_combinations) return;
  for (const ReduceOp op : o.ops) {
    for (const DType dtype : o.dtypes) {
      if (!reducible(op, dtype))
        throw UsageError(fmt::format("-o {} does not work on -d {}; ops/README.md lists what does", nccl_name(op),
                                     nccl_name(dtype)));
    }
  }
}

std::string help_text() {
  std::string text =
      "kolo-bench measures how fast the ranks that mpirun starts exchange data, through kolo, through MPI and "
      "through NCCL.\n\n"
      "usage: [mpirun -np N] kolo-bench COLLECTIVE [flags]\n\n"
      "COLLECTIVE is one of ";
  text += collective_names() + ".\n" + cli::describe(syntax());
  text +=
      "\nWhat the figures mean (GB = 10^9 bytes, n ranks):\n"
      "  size    bytes of the larger of a rank's input and output\n"
      "  time    median over the iterations, of the slowest rank (-a)\n"
      "  algbw   size / time: the speed that the caller sees; its limit depends on n\n"
      "  busbw   algbw x factor: what each rank's link carries if data take the shortest way, whose limit is the "
      "hardware's, for\n"
      "          any n. The factor is 2(n-1)/n for all_reduce; (n-1)/n for all_gather, reduce_scatter, all_to_all, "
      "gather and "
      "scatter; 1 for\n"
      "          broadcast, reduce and send_recv. It is what such a link would have to carry, not a count of what "
      "went over "
      "a wire.\n"
      "          Undefined for one rank\n"
      "  #wrong  elements that are not what they must be, to the last bit, on all ranks: after the last timed "
      "iteration, which works\n"
      "          on fresh values, and after -c runs that are not timed\n"
      "  ratio   the peer's time over kolo's: above 1 kolo is faster\n"
      "  method  how kolo moved the bytes in its last timed iteration; -: the backend knows one way only\n"
      "\nExit codes: 0; 1 for errors; 2 slower than --baseline or --min-busbw allow; 3 for -T; 7 for wrong "
      "results.\n";
  text += "\nRuntime (environment variables, the same for all programs that use kolo):\n" + settings_help();
  return text;
}

}  // namespace

std::string_view to_string(BufferMemory memory) {
  return memory == BufferMemory::ordinary ? "private" : memory == BufferMemory::session ? "session" : "adopted";
}

std::string_view to_string(MpiThreads level) {
  switch (level) {
    case MpiThreads::single: return "single";
    case MpiThreads::funneled: return "funneled";
    case MpiThreads::serialized: return "serialized";
    case MpiThreads::multiple: break;
  }
  return "multiple";
}

std::vector<std::int64_t> Sizes::all() const {
  std::vector<std::int64_t> sizes;
  for (std::int64_t size = min; size <= max;) {
    sizes.push_back(size);
    const bool overflows =
        step > 0 ? __builtin_add_overflow(size, step, &size) : __builtin_mul_overflow(size, factor, &size);
    if (overflows) break;
  }
  return sizes;
}

std::string Sizes::problem() const {
  constexpr std::int64_t most = 100'000;
  if (min > max)
    return fmt::format("-b is {} and -e is {}: the largest size is below the smallest; swap them", min, max);
  const std::int64_t count = step > 0 ? (max - min) / step + 1 : 1;
  if (count > most) {
    return fmt::format(
        "-b {} -e {} -i {} are {} sizes, and at most {} are measured; use a larger step, or a factor: -f 2", min, max,
        step, count, most);
  }
  return {};
}

std::int64_t Options::iterations_for(std::int64_t bytes) const {
  if (iterations) return *iterations;
  return bytes <= 64 << 10 ? 1000 : bytes <= 1 << 20 ? 300 : bytes <= 16 << 20 ? 60 : 20;
}

std::int64_t Options::warm_up_for(std::int64_t bytes) const {
  return warm_up ? *warm_up : std::max<std::int64_t>(2, iterations_for(bytes) / 10);
}

Options parse_options(int argc, const char* const* argv) {
  Options options;
  cli::Syntax accepted = syntax();
  accepted.on_word = [&](const std::string& word) { options.collective = collective_of(word, options.collective); };
  const cli::Values values = cli::parse_command_line(accepted, argc, argv);
  check_combinations(values);
  cli::apply(flags(), values, options);
  check_sense(options, values);
  return options;
}

std::optional<std::string> requested_text(int argc, const char* const* argv) {
  return cli::requested_text(argc, argv, "kolo-bench", help_text);
}

std::vector<cli::Agreed> agreed_part(const Options& o) {
  const auto text = [](const auto& value) { return fmt::format("{}", value); };
  const auto or_default = [&](const auto& value) { return value ? text(*value) : std::string("the default"); };
  std::string ops, dtypes;
  for (const ReduceOp op : o.ops) ops += fmt::format(" {}", nccl_name(op));
  for (const DType dtype : o.dtypes) dtypes += fmt::format(" {}", nccl_name(dtype));
  return {
      {"the task", text(static_cast<int>(o.task))},
      {"the collective", std::string(o.collective->name)},
      {"-b", text(o.sizes.min)},
      {"-e", text(o.sizes.max)},
      {"-i", text(o.sizes.step)},
      {"-f", text(o.sizes.factor)},
      {"-n", or_default(o.iterations)},
      {"-w", or_default(o.warm_up)},
      {"-m", text(o.lanes)},
      {"-c", text(o.checks)},
      {"-o", ops},
      {"-d", dtypes},
      {"-r", o.root ? text(*o.root) : "all"},
      {"-z", text(o.isolated)},
      {"-a", text(static_cast<int>(o.combine))},
      {"--placement", text(static_cast<int>(o.placements))},
      {"--direct", text(o.direct)},
      {"--ordered", text(o.ordered)},
      {"--device", std::string(to_string(o.device))},
      {"--compare", text(static_cast<int>(o.compare))},
      {"--mpi-algorithms", text(o.mpi_algorithms)},
      {"--mpi-threads", std::string(to_string(o.mpi_level()))},
      {"--copy-limit", text(o.copy_limit)},
      {"--thp", text(o.huge_pages)},
      {"--memory", std::string(to_string(o.memory))},
      {"--idle", text(o.idle_seconds)},
      {"--beside", text(o.beside_bytes)},
  };
}

}  // namespace kolo::bench
