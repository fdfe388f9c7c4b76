"""What is reduced, and how it is rounded."""
import enum

import torch

from kolo import _horovod
from kolo.horovod.exceptions import InvalidArgumentError


class ReduceOp(enum.IntEnum):
    Average = 0
    Sum = 1
    Adasum = 2
    Min = 3
    Max = 4
    Product = 5


Average, Sum, Adasum, Min, Max, Product = ReduceOp
of_kolo = {Average: _horovod.ReduceOp.average, Sum: _horovod.ReduceOp.sum, Adasum: _horovod.ReduceOp.adasum, Min: _horovod.ReduceOp.min,
            Max: _horovod.ReduceOp.max, Product: _horovod.ReduceOp.product}


def host_copy(tensor):
    """The tensor, or a copy, with its values in host memory, which is where kolo's operations run here."""
    tensor = tensor.detach()
    if tensor.layout != torch.strided:
        raise InvalidArgumentError(f"a tensor is {tensor.layout}; sparse ones have sparse_allreduce_async()")
    return tensor.resolve_conj().resolve_neg().cpu()


def scaled(tensor, factor):
    """In the tensor's type: 16-bit floats are multiplied as 32-bit ones, integers as 64-bit floats and then truncated."""
    if factor == 1:
        return tensor
    if not tensor.is_floating_point() and not tensor.is_complex():
        return (tensor.double() * factor).to(tensor.dtype)
    if tensor.element_size() < 4:
        return (tensor.float() * torch.tensor(factor, dtype=torch.float32)).to(tensor.dtype)
    return tensor * factor


def reduction(average, op):
    """The op, of it or of the older argument `average`."""
    if average is not None:
        if op is not None:
            raise ValueError("pass op or average, not both")
        return Average if average else Sum
    try:
        return ReduceOp(Average if op is None else op)
    except ValueError:
        raise ValueError(f"op={op}: pass one of {', '.join(ReduceOp.__members__)}") from None


def checked(op, tensors, ops=ReduceOp):
    """The op, if it is one of these, and these tensors have it."""
    if op not in ops:
        raise InvalidArgumentError(f"op={op.name}; {' and '.join(one.name for one in ops)} work")
    for tensor in tensors:
        if tensor.is_complex() and op not in (Average, Sum):
            raise InvalidArgumentError("of complex numbers there are sums and averages only")
        if tensor.dtype in _copied_only:
            raise InvalidArgumentError(f"values of type {tensor.dtype} are copied only, not combined")
    return op


def members(tensors, grouped=True):
    """The tensors of a group, or the only one."""
    given = list(tensors) if grouped else [tensors]
    if not given:
        raise InvalidArgumentError("no tensors; a group has one at least")
    return given


_copied_only = {getattr(torch, name) for name in dir(torch) if name.startswith("float8") or name.startswith("float4")}


def scales(tensors, before, after):
    """What is multiplied by here, and by kolo, before and after; and a note of the former for the names, since the ranks compare the latter
    only. Integers and 16-bit floats are rounded in between as Horovod does: kolo would multiply before it rounds."""
    if all(tensor.dtype in (torch.float32, torch.float64) for tensor in tensors):
        return (1.0, 1.0), (float(before), float(after)), ""
    return (before, after), (1.0, 1.0), "" if before == after == 1 else f" times {before!r}, {after!r}"


def member_names(name, tensors, note=""):
    return [f"{name}.{i}{note}" for i in range(len(tensors))]
