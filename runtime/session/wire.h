#pragma once

#include <kolo/tensor.h>

namespace kolo {

/// Rounds scale·from to the 16-bit floats of `to`, to nearest, ties to even; values out of range become infinite. On a
/// GPU puts that on `stream`. Both on one device, with as many elements; `from` is f32.
void round_to_wire(const Tensor& from, double scale, const Tensor& to, void* stream);

/// Widens 16-bit floats to f32, exactly. On a GPU puts that on `stream`.
void widen_from_wire(const Tensor& from, const Tensor& to, void* stream);

/// Returns when what was put on `stream` of the tensor's GPU has run; at once on the host.
void await_stream(const Tensor& tensor, void* stream);

}  // namespace kolo
