#include "apps/train/agreement.h"

#include <array>
#include <new>
#include <optional>

#include "apps/train/terminal.h"

namespace kolo::train {

std::string problem_of(const std::exception& error) {
  if (dynamic_cast<const std::bad_alloc*>(&error) == nullptr) return error.what();
  return "there is not enough memory; use a smaller model, batch or data set, or fewer ranks on this machine";
}

void together(Session& session, const std::function<void()>& work) {
  std::optional<std::string> problem;
  try {
    work();
  } catch (const std::exception& error) {
    problem = problem_of(error);
  }
  std::int64_t speaker = problem ? session.rank() : session.size();
  session.all_reduce("lowest rank with a problem", view_scalar(speaker), {.op = ReduceOp::min});
  if (speaker == session.size()) return;
  if (speaker == session.rank()) print_problem(*problem);
  throw Stopped();
}

bool same_everywhere(Session& session, std::uint64_t number) {
  const auto mine = static_cast<std::int64_t>(number);
  std::array<std::int64_t, 2> bounds{mine, ~mine};  // the least of ~x is ~ of the greatest x
  session.all_reduce("least and greatest number", view(std::span(bounds)), {.op = ReduceOp::min});
  return bounds[0] == ~bounds[1];
}

}  // namespace kolo::train
