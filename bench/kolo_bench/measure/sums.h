#pragma once

#include "bench/kolo_bench/measure/collective.h"
#include "bench/kolo_bench/measure/context.h"

namespace kolo::bench {

/// What is measured beside other work: an all_reduce of each size that was asked for, from one buffer to another.
class Sums {
 public:
  explicit Sums(BenchContext& context)
      : context_(context),
        signature_{
            .kind = OpKind::all_reduce, .op = context.options().ops.front(), .dtype = context.options().dtypes.front()},
        in_(room_for_both()),
        out_(context.storage(largest())) {}

  Work work(std::int64_t bytes) const {
    const Ranks& ranks = context_.ranks();
    const Area area{in_.data(), out_.data(), largest(), largest(), 1, context_.place().device()};
    return make_work(signature_, bytes, false, ranks.rank(), ranks.size(), area);
  }
  /// Calls call(work) for each size that has elements.
  template <class Call>
  void each(Call&& call) const {
    for (const std::int64_t bytes : context_.options().sizes.all()) {
      if (extent_of(signature_.kind, bytes, signature_.dtype, context_.ranks().size()).count == 0) continue;
      const Work sum = work(bytes);
      context_.watch().begin(sum.name);
      call(sum);
    }
  }

 private:
  std::size_t largest() const { return static_cast<std::size_t>(context_.options().sizes.max); }
  /// The first of two buffers; throws if there is no room for two.
  Storage room_for_both() const {
    context_.place().check_room(context_.ranks(), checked_product(2, largest()), "use a smaller -e, or fewer ranks");
    return context_.storage(largest());
  }

  BenchContext& context_;
  const Signature signature_;
  const Storage in_, out_;
};

}  // namespace kolo::bench
