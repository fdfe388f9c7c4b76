#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "ops/gpu/gpu.h"

// What is asked of CUDA itself, beside kolo's interface: defined by cuda_calls.cc, or for fakes by pretended_calls.cc.

namespace kolo::smoke {

/// Whether the GPU is a pretended one: then what is timed is small.
bool pretended();

/// CUDA's words, if this process sees no GPU.
std::string why_no_gpu();

/// What the card, its driver and CUDA's libraries are, a line for each.
std::vector<std::string> card_facts(int gpu);

/// The lower, the earlier; none: not known.
std::optional<int> stream_priority(void* stream);

/// As a program does it: what `put` puts on a stream is captured into a graph, in the strictest mode, while `meanwhile`
/// runs on another thread and on this one. The graph is then run, and waited for. Throws Wrong with CUDA's words.
///
/// waits_for_default  the stream and the default stream wait for each other
void capture(Gpu& gpu, bool waits_for_default, const std::function<void(void* stream)>& put,
             const std::function<void(void* captured)>& meanwhile);

/// What fakes have found to be wrong, besides what has been said.
bool complained();

}  // namespace kolo::smoke
