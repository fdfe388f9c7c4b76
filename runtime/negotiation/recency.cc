#include "runtime/negotiation/recency.h"

#include <algorithm>
#include <iterator>

namespace kolo {

void Recency::defined(TensorNumber number, const PlanCache& plan) {
  used(number);
  const OpKind kind = plan.row(number).signature.kind;
  if (kind == OpKind::open_group || kind == OpKind::remove_group) once_.push_back(number);
  const std::string& name = plan.row(number).name;
  if (plan.numbers(name).size() > most_signatures) crowded_.push_back(name);
  came_back_ += forgotten_.erase(detail::StringHash()(name));
  if (++defined_ < room_) return;
  if (4 * came_back_ > defined_) room_ = std::min(2 * room_, most_room);
  defined_ = came_back_ = 0;
}

/// Leaves the least recently used ones.
void Recency::oldest(std::vector<TensorNumber>& numbers, std::size_t count) const {
  if (numbers.size() <= count) return;
  const auto end = numbers.begin() + static_cast<std::ptrdiff_t>(count);
  std::ranges::nth_element(numbers, end, {}, [&](TensorNumber number) { return last_use_[number]; });
  numbers.erase(end, numbers.end());
  std::ranges::sort(numbers);
}

std::vector<TensorNumber> Recency::excess(const PlanCache& plan, const ReadyTable& table) {
  const auto is_free = [&](TensorNumber number) { return !table.announced(plan.row(number).bucket); };
  std::vector<TensorNumber> chosen;
  while (chosen.empty() && !crowded_.empty()) {
    const auto all = plan.numbers(crowded_.back());
    crowded_.pop_back();
    if (all.size() <= most_signatures) continue;
    std::ranges::copy_if(all, std::back_inserter(chosen), is_free);
    oldest(chosen, all.size() - most_signatures);
  }
  while (once_.size() > most_changes || (!chosen.empty() && once_.size() > most_changes / 2)) {
    if (plan.known(once_.front()) && is_free(once_.front())) chosen.push_back(once_.front());
    once_.pop_front();
  }
  if (!chosen.empty()) return chosen;
  if (plan.size() <= room_) return chosen;
  for (TensorNumber number = 0; number < last_use_.size(); ++number) {
    if (plan.known(number) && is_free(number)) chosen.push_back(number);
  }
  oldest(chosen, plan.size() - room_ + room_ / 8);
  forget(chosen, plan);
  return chosen;
}

void Recency::forget(const std::vector<TensorNumber>& numbers, const PlanCache& plan) {
  if (forgotten_.size() > 4 * room_) forgotten_.clear();
  for (TensorNumber number : numbers) forgotten_.insert(detail::StringHash()(plan.row(number).name));
}

}  // namespace kolo
