#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <random>
#include <string>
#include <tuple>
#include <utility>

#include "tests/ops/kernels/element_types.h"
#include "tests/runtime/property/property_program.h"

// What a program consists of, and what goes wrong in it.

namespace kolo::testing {
namespace {

bool scales(ReduceOp op, DType dtype) {
  return suits(op, dtype) && scalable(op, dtype);
}
bool has_rows_of_each(Call call) {
  return call == Call::all_gather || call == Call::gather || call == Call::all_to_all;
}

class Draw {
 public:
  Draw(std::uint64_t seed, int most_ranks) : random_(seed), most_ranks_(most_ranks) { program_.seed = seed; }

  PropertyProgram program() {
    draw_world();
    const int many = program_.ranks > 5 ? 4 : 1;  // ranks: fewer operations
    const int wanted = (chance(80) ? draw(20, 50) : chance(60) ? draw(50, 100) : draw(100, 175)) / many;
    draw_groups();
    for (int i = draw(3, std::min(20, 3 + wanted / 4)); i > 0; --i)
      templates_.push_back(fresh(fmt::format("t{}", templates_.size())));
    while (program_.operations() < wanted) draw_step();
    if (program_.seed % 8 == 0 && program_.ranks <= 5) draw_training();
    draw_ends();
    return std::move(program_);
  }

 private:
  int draw(int low, int high) { return std::uniform_int_distribution<int>(low, high)(random_); }
  bool chance(int percent) { return draw(1, 100) <= percent; }
  template <class List>
  auto& pick(List& list) {
    return list[static_cast<std::size_t>(draw(0, static_cast<int>(list.size()) - 1))];
  }

  // ---- the world and its groups ----

  void draw_world() {
    static const std::map<int, std::vector<std::string>> placements{{2, {"", "", "1,1"}},
                                                                    {3, {"", "", "2,1", "1,1,1"}},
                                                                    {4, {"", "", "2,2", "3,1", "1,1,1,1"}},
                                                                    {5, {"", "", "2,3", "1,2,2"}}};
    program_.ranks = draw(2, 5);
    if (most_ranks_ > 5 && chance(20)) program_.ranks = draw(6, chance(50) ? 12 : most_ranks_);
    program_.fake_nodes = program_.ranks <= 5 ? pick(placements.at(program_.ranks)) : draw_nodes();
    program_.fusion_bytes = std::vector<std::int64_t>{64, 4096, 64 << 20}[static_cast<std::size_t>(draw(0, 2))];
    program_.spin_us = chance(30) ? 100 : 0;
    for (int rank = 0; rank < program_.ranks; ++rank) program_.threads.push_back(chance(75) ? 1 : draw(2, 3));
    pick(program_.threads) = draw(2, 3);
    std::vector<int> all(static_cast<std::size_t>(program_.ranks));
    std::iota(all.begin(), all.end(), 0);
    program_.groups.push_back(all);
    common_ = {"", draw_type(), draw_extents(draw(1, 3)), {}};
  }

  /// Nodes of any sizes.
  std::string draw_nodes() {
    std::string nodes;
    const int largest = draw(1, program_.ranks);
    for (int left = program_.ranks; left > 0;) {
      const int size = draw(1, std::min(left, largest));
      nodes += fmt::format("{}{}", nodes.empty() ? "" : ",", size);
      left -= size;
    }
    return nodes;
  }

  /// At first: two groups that overlap, and maybe more.
  void draw_groups() {
    PropertyStep step;
    const int shared = draw(0, program_.ranks - 1);
    for (int i = 0; i < 2; ++i) {
      PropertyOp op = new_group();
      if (std::find(op.members.begin(), op.members.end(), shared) == op.members.end()) op.members.push_back(shared);
      std::sort(op.members.begin(), op.members.end());
      make(op);
      step.ops.push_back(op);
    }
    if (chance(40)) step.ops.push_back(split());
    if (chance(50)) {
      step.ops.push_back(new_group());
      make(step.ops.back());
    }
    finish(step);
  }

  PropertyOp bare(Call call, int group) {
    PropertyOp op;
    op.call = call;
    op.group = group;
    op.ranks = size_of_group(group);
    op.seed = random_();
    return op;
  }

  int size_of_group(int group) const {
    return static_cast<int>(program_.groups[static_cast<std::size_t>(group)].size());
  }

  PropertyOp new_group() {
    PropertyOp op = bare(Call::new_group, 0);
    op.makes_ordered = program_.groups.size() > 2 && chance(40);
    for (int rank = 0; rank < program_.ranks; ++rank) {
      if (chance(60)) op.members.push_back(rank);
    }
    if (op.members.empty()) op.members.push_back(draw(0, program_.ranks - 1));
    return op;
  }

  void make(PropertyOp& op) {
    op.made = {static_cast<int>(program_.groups.size())};
    (op.makes_ordered ? ordered_ : live_).push_back(op.made.front());
    removable_.push_back(op.made.front());
    program_.groups.push_back(op.members);
  }

  PropertyOp split() {
    PropertyOp op = bare(Call::split, 0);
    op.makes_ordered = chance(50);
    std::map<int, std::vector<int>> members;
    for (int rank = 0; rank < program_.ranks; ++rank) op.members.push_back(draw(-1, 1));
    for (int rank = 0; rank < program_.ranks; ++rank) op.members.push_back(draw(0, 3));
    for (int rank = 0; rank < program_.ranks; ++rank)
      members[op.members[static_cast<std::size_t>(rank)]].push_back(rank);
    for (auto& [color, ranks] : members) {
      if (color < 0) continue;
      std::stable_sort(ranks.begin(), ranks.end(), [&](int a, int b) {
        return op.members[static_cast<std::size_t>(program_.ranks + a)] <
               op.members[static_cast<std::size_t>(program_.ranks + b)];
      });
      op.made.push_back(static_cast<int>(program_.groups.size()));
      (op.makes_ordered ? ordered_ : live_).push_back(op.made.back());
      program_.groups.push_back(ranks);
    }
    return op;
  }

  int draw_group() { return chance(45) || live_.empty() ? 0 : pick(live_); }

  // ---- operations ----

  DType draw_type() { return chance(35) ? DType::f32 : all_types[static_cast<std::size_t>(draw(0, dtype_count - 1))]; }

  std::vector<std::int64_t> draw_extents(int dims) {
    std::vector<std::int64_t> extents;
    for (int i = 0; i < dims; ++i) extents.push_back(dims > 4 ? draw(1, 2) : chance(4) ? 0 : draw(1, 6));
    if (dims > 0 && dims < 4 && chance(1)) {
      extents.assign(static_cast<std::size_t>(dims), 1);
      extents.back() = draw(5000, 40000);
    }
    return extents;
  }

  void draw_rows(PropertyTensor& tensor, Call call, int ranks) {
    tensor.rows.clear();
    if (call == Call::reduce_scatter || call == Call::scatter) tensor.rows = {draw(0, 9)};
    if (call == Call::all_gather || call == Call::gather) {
      const int same = chance(40) ? draw(0, 4) : -1;
      for (int i = 0; i < ranks; ++i) tensor.rows.push_back(same >= 0 ? same : draw(0, 4));
    }
    if (call == Call::all_to_all) {
      const int same = chance(40) ? draw(0, 3) : -1;
      for (int i = 0; i < ranks * ranks; ++i) tensor.rows.push_back(same >= 0 ? same : std::max(0, draw(-1, 3)));
    }
  }

  PropertyTensor tensor(const std::string& name, Call call, int ranks) {
    PropertyTensor tensor = common_;
    const int most = has_blocks(kind_of(call)) ? Shape::max_dims - 1 : Shape::max_dims;
    if (chance(60)) {
      tensor.dtype = draw_type();
      tensor.inner = draw_extents(chance(5) ? draw(4, most) : draw(0, 3));
    }
    tensor.name = name;
    draw_rows(tensor, call, ranks);
    return tensor;
  }

  PropertyOp fresh(const std::string& name) {
    if (!templates_.empty() && chance(40)) {  // one that it can be fused with
      PropertyOp op = pick(templates_);
      op.name = name;
      for (std::size_t i = 0; i < op.tensors.size(); ++i)
        op.tensors[i].name = op.grouped ? fmt::format("{}.{}", name, i) : name;
      return op;
    }
    return fresh_in(draw_group(), name);
  }

  PropertyOp fresh_in(int group, const std::string& name) {
    static const std::vector<std::pair<Call, int>> weights{
        {Call::all_reduce, 34},      {Call::broadcast, 8},         {Call::reduce, 8},
        {Call::all_gather, 9},       {Call::reduce_scatter, 7},    {Call::all_to_all, 9},
        {Call::gather, 5},           {Call::scatter, 5},           {Call::send_recv, 9},
        {Call::barrier, 2},          {Call::monitored_barrier, 1}, {Call::broadcast_object, 2},
        {Call::all_gather_object, 2}};
    int left = draw(1, 101);
    auto chosen = weights.begin();
    while ((left -= chosen->second) > 0) ++chosen;
    PropertyOp op = bare(chosen->first, group);
    if (op.call == Call::send_recv && op.ranks == 1) op.call = Call::all_reduce;
    op.name = name;
    if (call_has_root(op.call)) op.root = draw(0, op.ranks - 1);
    if (op.call == Call::send_recv) op.peer = (op.root + draw(1, op.ranks - 1)) % op.ranks;
    if (moves_tensors(op.call)) draw_tensors(op);
    return op;
  }

  void draw_tensors(PropertyOp& op) {
    const bool can_be_grouped = op.call == Call::all_reduce || op.call == Call::broadcast ||
                                op.call == Call::reduce_scatter || op.call == Call::all_gather;
    op.grouped = can_be_grouped && chance(15);
    if (chance(30)) op.priority = draw(-1, 2);
    for (int i = op.grouped ? draw(1, 4) : 1; i > 0; --i)
      op.tensors.push_back(tensor(op.grouped ? fmt::format("{}.{}", op.name, i) : op.name, op.call, op.ranks));
    if (!reduces(kind_of(op.call))) return;
    const auto fit = [&](auto&& good) {
      return std::all_of(op.tensors.begin(), op.tensors.end(),
                         [&](const PropertyTensor& tensor) { return good(op.op, tensor.dtype); });
    };
    do {
      op.op = all_reduce_ops[static_cast<std::size_t>(chance(40) ? 0 : draw(0, reduce_op_count - 1))];
    } while (!fit(suits) || (op.op == ReduceOp::adasum && op.call != Call::all_reduce));
    static const std::vector<double> factors{0.5, 2, 3};
    const bool may_scale = fit(scales) && op.op != ReduceOp::product;
    if (may_scale && chance(20)) op.prescale = pick(factors);
    if (may_scale && chance(20)) op.postscale = pick(factors);
    op.divide_by_group = op.op == ReduceOp::average && chance(50);
  }

  // ---- steps ----

  void draw_step() {
    for (PropertyOp& known : templates_) {
      if (chance(8)) known = fresh(known.name);
      while (!is_live(known.group)) known = fresh(known.name);  // it may be like one that is as dead
      for (PropertyTensor& tensor : known.tensors) {
        if (chance(15)) draw_rows(tensor, known.call, known.ranks);
      }
    }
    if (chance(15)) templates_.push_back(fresh(fmt::format("late{}", templates_.size())));
    const bool abandons = mix(program_.seed, program_.steps.size(), 11) % 6 == 0;
    PropertyStep step;
    if (chance(25))
      draw_join(step);
    else
      draw_mixed(step);
    insert_in_order(step);
    const int abandoned = abandons ? abandon_in(step) : -1;
    if (abandoned >= 0) draw_rest();
    finish(step);
    if (abandoned >= 0) draw_after_abandoned(abandoned);
  }

  /// Steps that repeat themselves, with thresholds that lay them out in different ways: the runtime may tune them.
  void draw_training() {
    program_.fusion_bytes = 64;
    std::ranges::fill(program_.threads, 1);
    PropertyStep step;
    for (int i = draw(2, 6); i > 0; --i) {
      PropertyOp op = bare(Call::all_reduce, 0);
      op.name = fmt::format("gradient{}", i);
      op.tensors = {{op.name, DType::f32, {draw(1, 6)}, {}}};
      step.ops.push_back(std::move(op));
    }
    for (int left = draw(15, 30); left > 0; --left) {
      PropertyStep repeated = step;
      finish(repeated);
    }
  }

  /// Anywhere between the others, which the rank's first thread may do in another order.
  void insert_in_order(PropertyStep& step) {
    for (const int group : ordered_) {
      const auto makes = [&](const PropertyOp& op) { return std::ranges::count(op.made, group) > 0; };
      if (std::ranges::any_of(step.ops, makes)) continue;
      auto place = step.ops.begin();
      for (int i = draw(0, 5); i > 0; --i) {
        PropertyOp op = fresh_in(group, "");
        op.in_order = true;
        if (blocks(op.call) && (!step.ordered || step.joined_group >= 0)) op.call = Call::barrier;
        if (chance(15)) refuse(op);
        place += draw(0, static_cast<int>(step.ops.end() - place));
        place = step.ops.insert(place, std::move(op)) + 1;
      }
    }
  }

  /// At last: some groups that match by order fail.
  void draw_ends() {
    PropertyStep step;
    for (const int group : ordered_) {
      if (size_of_group(group) < 2 || chance(40)) continue;
      PropertyOp op = fresh_in(group, "");
      if (op.call == Call::send_recv || (!moves_tensors(op.call) && op.call != Call::barrier)) continue;
      op.in_order = true;
      trouble(op, true);
      if (op.fails()) step.ops.push_back(std::move(op));
    }
    if (step.ops.empty()) return;
    draw_rest();
    finish(step);
  }

  /// Nothing that was before is in flight on any rank.
  void draw_rest() {
    PropertyStep step;
    step.ops.push_back(bare(Call::monitored_barrier, 0));
    finish(step);
  }

  /// Some ranks abandon a group at some moments, while others of them have operations in it. Returns the group, or -1.
  int abandon_in(PropertyStep& step) {
    std::vector<int> groups;
    for (const auto* some : {&live_, &ordered_}) {
      for (const int group : *some) {
        const auto makes = [&](const PropertyOp& op) { return std::ranges::count(op.made, group) > 0; };
        if (group != step.joined_group && std::ranges::none_of(step.ops, makes)) groups.push_back(group);
      }
    }
    if (groups.empty()) return -1;
    const int group = pick(groups);
    const bool ordered = std::erase(ordered_, group) > 0, waits = step.ordered && step.joined_group < 0;
    std::erase(live_, group);
    if (!ordered) {
      for (int i = draw(0, 3); i > 0; --i) {
        PropertyOp op = fresh_in(group, fmt::format("doomed{}", i));
        if (step.joined_group >= 0 && !moves_tensors(op.call)) continue;
        step.ops.insert(step.ops.begin() + draw(0, static_cast<int>(step.ops.size())), std::move(op));
      }
    }
    PropertyOp end = bare(Call::abandon_group, group);
    end.in_order = ordered;
    bool by_all = false;
    for (PropertyOp& op : step.ops) {
      if (op.group != group || op.call == Call::remove_group) continue;
      op.trouble = Trouble::none;
      op.odd.clear();
      // Of what is sent by tag the other rank does not hear: all abandon the group, before they wait for that.
      if (ordered && op.call == Call::send_recv && waits) op.call = Call::barrier;
      by_all |= ordered && op.call == Call::send_recv;
    }
    for (int rank = 0; rank < end.ranks; ++rank) {
      if (by_all || chance(30)) end.odd.push_back(rank);
    }
    if (end.odd.empty()) end.odd.push_back(draw(0, end.ranks - 1));
    for (PropertyOp& op : step.ops) {
      const bool elsewhere = op.by_tag() && !op.in_order;  // in a group of all ranks
      if (op.group == group && !elsewhere) op.abandoned_by = end.odd;
    }
    step.ops.insert(step.ops.begin() + draw(0, static_cast<int>(step.ops.size())), std::move(end));
    return group;
  }

  /// It is removed, or not, and maybe made again.
  void draw_after_abandoned(int group) {
    const bool known_to_all = std::erase(removable_, group) > 0;
    PropertyStep step;
    if (chance(75)) {
      step.ops.push_back(bare(Call::remove_group, group));
      step.ops.back().members = {group};
    }
    if (known_to_all && chance(50)) {
      PropertyOp again = new_group();
      again.members = program_.groups[static_cast<std::size_t>(group)];
      make(again);
      step.ops.push_back(std::move(again));
    }
    if (!step.ops.empty()) finish(step);
  }

  bool is_live(int group) const { return group == 0 || std::find(live_.begin(), live_.end(), group) != live_.end(); }

  /// The templates of this step, each as one operation, or a few that are sent under one name.
  std::vector<PropertyOp> instances() {
    std::vector<PropertyOp> ops;
    for (const PropertyOp& known : templates_) {
      if (!chance(85)) continue;
      for (int i = known.call == Call::send_recv ? draw(1, 3) : 1; i > 0; --i) {
        ops.push_back(known);
        ops.back().seed = random_();
        if (i > 1 && chance(30)) ops.back().tensors[0] = tensor(known.name, known.call, known.ranks);
      }
    }
    return ops;
  }

  void draw_mixed(PropertyStep& step) {
    step.ordered = chance(50);
    for (PropertyOp& op : instances()) {
      if (chance(22)) trouble(op, true);
      step.ops.push_back(std::move(op));
    }
    if (step.ordered && chance(20))
      step.ops.insert(step.ops.begin() + draw(0, static_cast<int>(step.ops.size())), change_of_groups(step));
  }

  PropertyOp change_of_groups(const PropertyStep& step) {
    std::vector<int> idle;  // only those can be removed
    for (int group : removable_) {
      if (std::none_of(step.ops.begin(), step.ops.end(), [&](const PropertyOp& op) { return op.group == group; }))
        idle.push_back(group);
    }
    if (removable_.size() > 2 && !idle.empty() && chance(50)) {
      const int group = pick(idle);
      PropertyOp op = bare(Call::remove_group, group);
      op.members = {group};
      std::erase(live_, op.members.front());
      std::erase(ordered_, op.members.front());
      std::erase(removable_, op.members.front());
      return op;
    }
    if (live_.size() + ordered_.size() < 8 && chance(30)) return split();
    PropertyOp op = new_group();
    make(op);
    return op;
  }

  /// Each rank of a group joins after as many operations as it likes; other groups go on meanwhile.
  void draw_join(PropertyStep& step) {
    const int group = draw_group();
    const int ranks = size_of_group(group);
    std::vector<PropertyOp> theirs, others;
    for (PropertyOp& op : instances()) {
      (op.group == group                             ? theirs
       : blocks(op.call) || op.call == Call::barrier ? others
                                                     : step.ops)
          .push_back(std::move(op));
    }
    for (PropertyOp& op : step.ops) {
      if (chance(20)) trouble(op, false);
    }
    std::vector<int> place(static_cast<std::size_t>(ranks));
    for (int& where : place) where = draw(0, static_cast<int>(theirs.size()));
    pick(place) = static_cast<int>(theirs.size());
    step.joined_group = group;
    std::vector<int> absent;
    step.may_be_last.resize(static_cast<std::size_t>(ranks));
    std::iota(step.may_be_last.begin(), step.may_be_last.end(), 0);
    for (int position = 0; position <= static_cast<int>(theirs.size()); ++position) {
      for (int rank = 0; rank < ranks; ++rank) {
        if (place[static_cast<std::size_t>(rank)] != position) continue;
        PropertyOp join = bare(Call::join, group);
        join.root = rank;
        step.ops.push_back(join);
        absent.push_back(rank);
      }
      std::sort(absent.begin(), absent.end());
      if (position == static_cast<int>(theirs.size())) break;
      PropertyOp& op = theirs[static_cast<std::size_t>(position)];
      op.absent = absent;
      if (!while_joined(op)) continue;
      if (op.call != Call::send_recv) {
        std::erase_if(step.may_be_last, [&](int rank) { return op.is_absent(rank); });
      }
      step.ops.push_back(std::move(op));
    }
  }

  /// Makes an operation fit the ranks that are there; returns false if it cannot run at all.
  bool while_joined(PropertyOp& op) {
    if (op.call == Call::send_recv) {
      const bool to = op.is_absent(op.peer), from = op.is_absent(op.root);
      if (to && from) return false;
      if (to || from) op.trouble = Trouble::joined_peer;
    } else if (call_has_root(op.call) && op.is_absent(op.root)) {
      op.trouble = Trouble::joined_root;
    }
    if (op.trouble == Trouble::none && chance(20)) trouble(op, false);
    return true;
  }

  void finish(PropertyStep& step) {
    for (PropertyOp& op : step.ops) op.id = next_id_++;
    for (PropertyOp& op : step.ops) {
      const bool sends = op.by_tag() || op.call == Call::send_recv;
      if (sends && op.trouble == Trouble::none && mix(op.seed, 1, 10) % 6 == 0) resize(op);
    }
    receive_from_any(step);
    program_.steps.push_back(std::move(step));
  }

  /// From nothing to a MiB, of each order of magnitude as often.
  static void resize(PropertyOp& op) {
    const std::uint64_t most = std::uint64_t{2} << mix(op.seed, 2, 10) % 20;
    const std::uint64_t bytes = std::min(most, mix(op.seed, 3, 10) % (most + 1) + most / 2);
    op.tensors[0].inner = {static_cast<std::int64_t>(bytes / size_of(op.tensors[0].dtype))};
  }

  /// Some of what a rank receives by tag comes from any rank, where all is submitted before anything is waited for: the
  /// order in which it comes is open.
  static void receive_from_any(PropertyStep& step) {
    std::map<std::tuple<int, int, DType>, std::vector<PropertyOp*>> alike;  // by group, receiver, type
    for (PropertyOp& op : step.ops) {
      const bool waits_before = step.ordered && step.joined_group < 0;
      if (waits_before || !op.abandoned_by.empty() || op.group == step.joined_group || !op.by_tag() ||
          op.trouble != Trouble::none)
        continue;
      if (mix(op.seed, 4, 10) % 2 == 0) alike[{op.group, op.peer, op.tensors[0].dtype}].push_back(&op);
    }
    for (const auto& [what, ops] : alike) {
      std::vector<int> ids;
      for (const PropertyOp* op : ops) ids.push_back(op->id);
      for (PropertyOp* op : ops) op->any = ids;
    }
  }

  // ---- trouble ----

  /// Some ranks call it with bad arguments first, or all.
  void refuse(PropertyOp& op) {
    if (!moves_tensors(op.call)) return;
    const auto bad =
        static_cast<Trouble>(draw(static_cast<int>(Trouble::null_pointer), static_cast<int>(Trouble::unfit_op)));
    for (int rank = 0; rank < op.ranks; ++rank) {
      if (op.takes_part(rank) && applies(op, bad, rank, false)) op.odd.push_back(rank);
    }
    if (op.odd.size() > 1 && chance(50)) op.odd = {pick(op.odd)};
    if (!op.odd.empty()) op.trouble = bad;
  }

  /// Makes something go wrong on some rank, if anything that is drawn suits the operation. `others_can_wait`: for the
  /// odd rank.
  void trouble(PropertyOp& op, bool others_can_wait) {
    static const std::vector<Trouble> all{
        Trouble::withdrawn,    Trouble::raced,         Trouble::duplicate,      Trouble::other_shape,
        Trouble::other_shape,  Trouble::other_dims,    Trouble::other_dtype,    Trouble::other_dtype,
        Trouble::other_call,   Trouble::other_call,    Trouble::other_op,       Trouble::other_root,
        Trouble::other_scale,  Trouble::other_divisor, Trouble::other_priority, Trouble::other_members,
        Trouble::wrong_rows,   Trouble::null_pointer,  Trouble::null_pointer,   Trouble::root_out_of_range,
        Trouble::wrong_output, Trouble::bad_splits,    Trouble::unfit_op,       Trouble::no_memory,
        Trouble::late};
    for (int attempt = 0; attempt < 12; ++attempt) {
      const Trouble drawn = pick(all);
      std::vector<int> ranks;
      for (int rank = 0; rank < op.ranks; ++rank) {
        if (op.takes_part(rank)) ranks.push_back(rank);
      }
      const bool needs_others = drawn <= Trouble::other_members || drawn == Trouble::late;
      if (needs_others && ranks.size() < 2) continue;
      const bool several = drawn > last_harmless && drawn <= Trouble::other_members;
      std::shuffle(ranks.begin(), ranks.end(), random_);
      ranks.resize(several ? static_cast<std::size_t>(draw(1, static_cast<int>(ranks.size()) - 1)) : 1);
      std::sort(ranks.begin(), ranks.end());
      if (!applies(op, drawn, ranks.front(), others_can_wait)) continue;
      op.trouble = drawn;
      op.odd = ranks;
      const bool bad = drawn >= Trouble::null_pointer && drawn <= Trouble::unfit_op;
      const bool can_refuse = bad && moves_tensors(op.call) && op.call != Call::send_recv && !op.in_order;
      if (can_refuse && mix(op.seed, 5, 10) % 2 == 0) op.trouble = Trouble::refuses;
      return;
    }
  }

  bool applies(const PropertyOp& op, Trouble trouble, int odd, bool others_can_wait) {
    const bool by_name = trouble <= last_harmless || trouble == Trouble::no_memory || trouble == Trouble::wrong_rows;
    if (op.in_order && (by_name || (trouble == Trouble::other_members && op.seed % 3 != 0))) return false;
    const bool tensors = moves_tensors(op.call);
    const auto all_types_fit = [&](auto&& good) {
      return std::all_of(op.tensors.begin(), op.tensors.end(),
                         [&](const PropertyTensor& tensor) { return good(tensor.dtype); });
    };
    switch (trouble) {
      case Trouble::withdrawn: return others_can_wait && (tensors || op.call == Call::barrier);
      case Trouble::duplicate: return others_can_wait && tensors && op.call != Call::send_recv;
      case Trouble::late:
        return others_can_wait && (tensors || op.call == Call::barrier || op.call == Call::monitored_barrier);
      case Trouble::raced:
        return op.call == Call::all_reduce && !op.grouped && op.op == ReduceOp::sum &&
               Shape(op.tensors[0].inner).elements() > 0;
      case Trouble::other_shape:
      case Trouble::other_dims:
      case Trouble::other_priority: return tensors;
      case Trouble::other_dtype: return tensors && op.prescale == 1 && op.postscale == 1;
      case Trouble::other_call: return tensors && op.call != Call::send_recv;
      case Trouble::other_op:
      case Trouble::other_divisor: return call_reduces(op.call);
      case Trouble::other_root: return call_has_root(op.call) && op.call != Call::send_recv && op.ranks > 1;
      case Trouble::other_scale:
        return call_reduces(op.call) && all_types_fit([&](DType dtype) { return scales(op.op, dtype); });
      case Trouble::other_members: return op.grouped;
      case Trouble::wrong_rows:
        return tensors && has_rows_of_each(op.call) && op.absent.empty() && (op.call != Call::gather || odd == op.root);
      case Trouble::null_pointer: {
        if (!tensors || (op.call == Call::scatter && odd != op.root)) return false;
        const auto& rows = op.tensors[0].rows;
        const auto from = op.call == Call::all_to_all ? odd * op.ranks : has_rows_of_each(op.call) ? odd : 0;
        const auto count = op.call == Call::all_to_all ? op.ranks : 1;
        const bool any =
            rows.empty() || std::accumulate(rows.begin() + from, rows.begin() + from + count, std::int64_t{0}) > 0;
        return any && Shape(op.tensors[0].inner).elements() > 0;
      }
      case Trouble::root_out_of_range: return call_has_root(op.call) && op.call != Call::send_recv;
      case Trouble::wrong_output:
        return tensors && op.call != Call::broadcast && op.call != Call::send_recv &&
               ((op.call != Call::reduce && op.call != Call::gather) || odd == op.root);
      case Trouble::bad_splits: return op.call == Call::all_to_all;
      case Trouble::unfit_op: return call_reduces(op.call);
      case Trouble::no_memory:
        return tensors && !op.grouped && has_rows_of_each(op.call) && (op.call != Call::gather || odd == op.root);
      default: return false;
    }
  }

  std::mt19937_64 random_;
  int most_ranks_;
  PropertyProgram program_;
  PropertyTensor common_;  // of many tensors, so that they can be fused
  std::vector<PropertyOp> templates_;
  std::vector<int> live_;       // groups besides the world that are not removed, and match by name
  std::vector<int> ordered_;    // and that match by order
  std::vector<int> removable_;  // of these: every rank knows them
  int next_id_ = 0;
};

}  // namespace

PropertyProgram draw_program(std::uint64_t seed, int most_ranks) {
  return Draw(seed, most_ranks).program();
}

}  // namespace kolo::testing
