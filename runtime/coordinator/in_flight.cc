#include "runtime/coordinator/in_flight.h"

#include <fmt/format.h>

#include <string>

namespace kolo {

std::vector<InFlight> list(const PendingQueue& queue) {
  std::vector<InFlight> result;
  for (const SubmissionPtr& one : queue.in_flight()) {
    const Request& request = one->request;
    const std::string tag =
        request.match && request.match->tags.size() == 1 ? fmt::format("tag {}", request.match->tags.front()) : "";
    result.push_back({request.signature.kind, request.match ? tag : request.name(), request.group,
                      one->queued.occurrence, one->queued.sequence, request.submitted,
                      one->pending.agreed && !request.in_order()});
  }
  return result;
}

}  // namespace kolo
