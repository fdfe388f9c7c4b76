#include <fmt/format.h>

#include "ops/nccl/table.h"

namespace kolo {

std::string nccl_version_text(int version) {
  return fmt::format("{}.{}.{}", version / 10000, version / 100 % 100, version % 100);
}

}  // namespace kolo
