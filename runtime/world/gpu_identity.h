#pragma once

#include "ops/registry/gpu.h"
#include "runtime/control/wire.h"

namespace kolo {

inline void put(Writer& writer, const GpuIdentity& identity) {
  for (const std::string& text : {identity.host, identity.nccl_host, identity.nccl_algo, identity.facts.name,
                                  identity.facts.bus, identity.why_no_nccl})
    writer.put(text);
  for (const int number : {identity.gpu, identity.facts.numa_node, identity.nccl_version})
    writer.put(static_cast<std::int32_t>(number));
  writer.put(static_cast<std::uint64_t>(identity.facts.bytes));
}

inline GpuIdentity get_gpu_identity(Reader& reader) {
  GpuIdentity identity;
  for (std::string* text : {&identity.host, &identity.nccl_host, &identity.nccl_algo, &identity.facts.name,
                            &identity.facts.bus, &identity.why_no_nccl})
    *text = reader.get_string();
  for (int* number : {&identity.gpu, &identity.facts.numa_node, &identity.nccl_version})
    *number = reader.get<std::int32_t>();
  identity.facts.bytes = reader.get<std::uint64_t>();
  return identity;
}

}  // namespace kolo
