#include "apps/train/agreement.h"

#include <array>
#include <new>
#include <optional>
#include <string>

#include "apps/train/terminal.h"

namespace kolo::train {
namespace {

std::optional<std::string> problem_of(const std::function<void()>& work) {
  try {
    work();
  } catch (const std::bad_alloc&) {
    return "there is not enough memory; use a smaller model, batch or data set, or fewer ranks on this machine";
  } catch (const std::exception& error) {
    return error.what();
  }
  return std::nullopt;
}

}  // namespace

void together(Session& session, const std::function<void()>& work) {
  const auto problem = problem_of(work);
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
