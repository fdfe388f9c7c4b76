#include "ops/host/cores.h"

#include <sched.h>
#include <unistd.h>

namespace kolo {

bool more_ranks_than_cores(int ranks) {
  const long online = sysconf(_SC_NPROCESSORS_ONLN);
  if (online > 0 && ranks > online) return true;
  cpu_set_t mine;
  if (sched_getaffinity(0, sizeof(mine), &mine) != 0) return false;
  const int allowed = CPU_COUNT(&mine);
  return allowed > 1 && ranks > allowed;
}

}  // namespace kolo
