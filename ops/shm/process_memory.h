#pragma once

#include <memory>
#include <vector>

#include "ops/shm/memory.h"

namespace kolo {

/// ShmMemory of processes: each piece is a mapping without a name, which peers open through this process's descriptor.
///
/// pids  of the ranks of the node
std::shared_ptr<ShmMemory> shm_process_memory(std::vector<int> pids);

}  // namespace kolo
