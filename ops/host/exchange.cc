#include "ops/host/exchange.h"

#include <utility>

namespace kolo {

std::shared_ptr<const HostExchange::Answer> HostExchange::largest(std::vector<std::uint64_t> mine) {
  Exchange& exchange = running_.emplace_back();
  exchange.answer = std::make_shared<Answer>(Answer{false, std::move(mine)});
  exchange.bucket.signature = {.kind = OpKind::all_reduce, .op = ReduceOp::max, .dtype = DType::u64};
  const Tensor tensor = view(exchange.answer->values);
  exchange.bucket.signature.shape = tensor.shape;
  exchange.bucket.tensors.push_back({tensor, tensor});
  exchange.operation = host_->start(exchange.bucket);
  auto answer = exchange.answer;
  step();
  return answer;
}

void HostExchange::step() {
  for (auto next = running_.begin(); next != running_.end();) {
    if (!next->operation->step()) {
      ++next;
      continue;
    }
    next->answer->complete = true;
    next = running_.erase(next);
  }
}

void HostExchange::abandon() noexcept {
  running_.clear();
  host_->abandon();
}

}  // namespace kolo
