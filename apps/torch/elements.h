#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <functional>
#include <vector>

#include <kolo/tensor.h>

namespace kolo_torch {

/// The elements of a tensor as kolo moves them, in one dimension.
///
/// tensor  plain, in memory of the host or of a CUDA GPU; must live as long as the view is used
///
/// Types that kolo has not go as others of their size: complex numbers as twice as many floats, the rest as bytes.
/// Throws c10::Error for other devices and layouts.
kolo::Tensor elements(const at::Tensor& tensor);

/// How many elements of elements() an element of this type takes.
std::int64_t elements_each(at::ScalarType type);

/// Whether elements() keeps what addition does to values of this type.
bool can_add(at::ScalarType type);

/// Throws c10::Error unless the tensor is dense, and in memory of the host or of a CUDA GPU.
void check_tensor(const at::Tensor& tensor, const char* operation);

/// Whether its memory has its values, one after the other: it is contiguous, and no view that conjugates or negates.
bool is_plain(const at::Tensor& tensor);

/// The tensor itself, if it is plain, or a plain copy.
at::Tensor contiguous(const at::Tensor& tensor);

/// Copies the values of a plain tensor, of as many elements and of the same type; of GPUs: on the current stream.
void copy_values(const at::Tensor& to, const at::Tensor& from);

/// What copies the copies back to those tensors that were not plain; empty if all were.
std::function<void()> copy_back(const std::vector<at::Tensor>& tensors, const std::vector<at::Tensor>& copies);

}  // namespace kolo_torch
