"""The operations, matched by name. Those that return at once, *_async, return a number for poll() and synchronize()."""
import functools

import torch

from kolo import _horovod
from kolo.horovod.torch import basics
from kolo.horovod.torch.basics import *  # noqa: F401,F403
from kolo.horovod.torch.basics import global_process_set
from kolo.horovod.torch.compression import Compression
from kolo.horovod.torch.handles import named, numbers, poll, started, synchronize  # noqa: F401
from kolo.horovod.torch.values import (Adasum, Average, Max, Min, Product, ReduceOp, Sum, checked, host_copy, member_names, members, of_kolo,  # noqa: F401
                                       reduction, scaled, scales)


def _allreduce(kind, tensors, in_place, name, average, op, before, after, process_set):
    """With lists, or single tensors. Outputs in host memory may be the inputs themselves."""
    grouped = kind.startswith("grouped_")

    def start(group, name):
        given = members(tensors, grouped)
        inputs = [host_copy(tensor) for tensor in given]
        which = checked(reduction(average, op), inputs)
        here, in_kolo, note = scales(inputs, before, after)
        used = [scaled(tensor, here[0]) for tensor in inputs]
        targets = [tensor.detach() for tensor in given] if in_place else None
        on_host = [torch.empty_like(tensor, memory_format=torch.contiguous_format) for tensor in used]
        if in_place:
            on_host = [scratch if target.device.type != "cpu" or target.is_conj() or target.is_neg() else target
                       for target, scratch in zip(targets, on_host)]
        names = member_names(name, given, note) if grouped or note else []

        def finish(_):
            results = [scaled(result, here[1]) for result in on_host]
            if in_place:
                for target, result in zip(targets, results):
                    if result.data_ptr() != target.data_ptr():
                        target.copy_(result)
                results = given
            else:
                results = [result.to(tensor.device) for result, tensor in zip(results, given)]
            return results if grouped else results[0]

        return basics.job().collectives.all_reduce(group, name, names, used, on_host, of_kolo[which], *in_kolo), finish

    return started(kind, name, process_set, start)


def allreduce_async(tensor, average=None, name=None, op=None, prescale_factor=1.0, postscale_factor=1.0, process_set=global_process_set):
    """A handle of the reduction of a tensor over the ranks; see allreduce()."""
    return _allreduce("allreduce", tensor, False, name, average, op, prescale_factor, postscale_factor, process_set)


def allreduce_async_(tensor, average=None, name=None, op=None, prescale_factor=1.0, postscale_factor=1.0, process_set=global_process_set):
    return _allreduce("allreduce", tensor, True, name, average, op, prescale_factor, postscale_factor, process_set)


def allreduce_(tensor, average=None, name=None, op=None, prescale_factor=1.0, postscale_factor=1.0, process_set=global_process_set):
    return synchronize(allreduce_async_(tensor, average, name, op, prescale_factor, postscale_factor, process_set))


def grouped_allreduce_async(tensors, average=None, name=None, op=None, prescale_factor=1.0, postscale_factor=1.0, process_set=global_process_set):
    return _allreduce("grouped_allreduce", tensors, False, name, average, op, prescale_factor, postscale_factor, process_set)


def grouped_allreduce_async_(tensors, average=None, name=None, op=None, prescale_factor=1.0, postscale_factor=1.0, process_set=global_process_set):
    return _allreduce("grouped_allreduce", tensors, True, name, average, op, prescale_factor, postscale_factor, process_set)


def grouped_allreduce_(tensors, average=None, name=None, op=None, prescale_factor=1.0, postscale_factor=1.0, process_set=global_process_set):
    return synchronize(grouped_allreduce_async_(tensors, average, name, op, prescale_factor, postscale_factor, process_set))


def compressed(kind, tensors, compression, name, process_set, average=None, op=None):
    """Tensors made smaller, and what decompress() needs of each; fails as the operation does."""
    try:
        reduction(average, op)
        pairs = [compression.compress(tensor) for tensor in tensors]
    except Exception as error:
        synchronize(started(kind, name, process_set, functools.partial(_raise, error)))
    return [tensor for tensor, _ in pairs], [context for _, context in pairs]


def _raise(error, *_):
    raise error


class _Allreduce(torch.autograd.Function):
    """The gradient is reduced as the values were."""

    @staticmethod
    def forward(context, options, *tensors):
        context.options = options
        op, before, after, process_set, name, grouped = options
        kind = "grouped_allreduce" if grouped else "allreduce"
        result = synchronize(_allreduce(kind, tensors if grouped else tensors[0], False, name, None, op, before, after, process_set))
        return tuple(result) if grouped else result

    @staticmethod
    def backward(context, *gradients):
        op, before, after, process_set, _, grouped = context.options
        reduced = _Allreduce.apply((op, before, after, process_set, None, grouped), *gradients)
        return (None, *reduced) if grouped else (None, reduced)


def allreduce(tensor, average=None, name=None, compression=Compression.none, op=None, prescale_factor=1.0, postscale_factor=1.0,
              process_set=global_process_set):
    """The reduction of a tensor over the ranks of the set, by `op` (Average, if nothing is said), as a new tensor. Gradients flow.

    tensor   equal shape and type on every rank
    name     what ranks match by; unnamed operations are matched by their order in this kind
    prescale_factor, postscale_factor  multiply what is put in, and what comes out

    While ranks have joined an average divides by the size of the set, and other reductions are over those that have not.
    """
    [small], [context] = compressed("allreduce", [tensor], compression, name, process_set, average, op)
    options = (reduction(average, op), prescale_factor, postscale_factor, process_set, name, False)
    return compression.decompress(_Allreduce.apply(options, small), context)


def grouped_allreduce(tensors, average=None, name=None, compression=Compression.none, op=None, prescale_factor=1.0, postscale_factor=1.0,
                      process_set=global_process_set):
    """The reductions of tensors that are agreed on, run and fail together: the ranks must pass the same group."""
    small, contexts = compressed("grouped_allreduce", tensors, compression, name, process_set, average, op)
    options = (reduction(average, op), prescale_factor, postscale_factor, process_set, name, True)
    return [compression.decompress(tensor, context) for tensor, context in zip(_Allreduce.apply(options, *small), contexts)]


class _Sparse:
    """A sparse reduction in flight: call it for the result."""

    def __init__(self, tensor, handles, divisor):
        self.tensor, self.handles, self.divisor = tensor, handles, divisor

    def __call__(self):
        try:
            places = synchronize(self.handles[0])
        finally:  # the name of the other is free again, too
            values = synchronize(self.handles[1])
        if self.divisor != 1:
            values = values / self.divisor
        return torch.sparse_coo_tensor(places.t(), values, self.tensor.size(), device=self.tensor.device, check_invariants=False)


def sparse_allreduce_async(tensor, name=None, op=Average, process_set=global_process_set):
    """A function that waits for, and returns, the sum or average of sparse tensors in coordinates: those of all ranks, not coalesced."""
    name = named("sparse_allreduce", name, process_set.told())

    def part(of_it):
        checked(reduction(None, op), [], (Average, Sum))
        return of_it(tensor if tensor.is_coalesced() else tensor.coalesce()).contiguous()

    handles = [_allgather(lambda of_it=of_it: part(of_it), f"{name}.{what}", process_set)
               for of_it, what in ((lambda given: given.indices().t(), "indices"), (lambda given: given.values(), "values"))]
    return _Sparse(tensor, handles, process_set.size() if op == Average else 1)


def _first(tensor):
    return lambda operation: operation.outputs[0].to(tensor.device)


def _allgather(make, name, process_set):
    def start(group, name):
        tensor = make()
        return basics.job().collectives.all_gather(group, name, host_copy(tensor)), _first(tensor)

    return started("allgather", name, process_set, start)


def allgather_async(tensor, name=None, process_set=global_process_set):
    return _allgather(lambda: tensor, name, process_set)


def grouped_allgather_async(tensors, name=None, process_set=global_process_set):
    def start(group, name):
        given = members(tensors)
        operation = basics.job().collectives.grouped_all_gather(group, name, member_names(name, given), [host_copy(tensor) for tensor in given])
        return operation, lambda operation: [output.to(tensor.device) for output, tensor in zip(operation.outputs, given)]

    return started("grouped_allgather", name, process_set, start)


class _Allgather(torch.autograd.Function):
    """The gradient is the average of the ranks', of this rank's rows."""

    @staticmethod
    def forward(context, process_set, name, grouped, *tensors):
        context.process_set = process_set
        context.rows = [tensor.size(0) if tensor.dim() else 0 for tensor in tensors]
        if grouped:
            return tuple(synchronize(grouped_allgather_async(tensors, name, process_set)))
        return synchronize(allgather_async(tensors[0], name, process_set))

    @staticmethod
    def backward(context, *gradients):
        of_ranks = allgather(torch.tensor([context.rows]), process_set=context.process_set)
        before = of_ranks[:context.process_set.rank()].sum(0).tolist()
        return (None, None, None, *(allreduce(gradient, op=Average, process_set=context.process_set).narrow(0, begin, rows)
                                    for gradient, begin, rows in zip(gradients, before, context.rows)))


def allgather(tensor, name=None, process_set=global_process_set):
    """The rows (first dimension) of all ranks of the set, one after the other. Ranks may have different numbers of rows. Gradients flow."""
    return _Allgather.apply(process_set, name, False, tensor)


def grouped_allgather(tensors, name=None, process_set=global_process_set):
    return list(_Allgather.apply(process_set, name, True, *tensors))


def _broadcast(tensor, root_rank, name, process_set, in_place):
    def start(group, name):
        used = host_copy(tensor) if in_place else host_copy(tensor).clone()

        def finish(_):
            if not in_place:
                return used.to(tensor.device)
            if used.data_ptr() != tensor.data_ptr():
                with torch.no_grad():
                    tensor.copy_(used)
            return tensor

        return basics.job().collectives.broadcast(group, name, used, process_set.root(root_rank)), finish

    return started("broadcast", name, process_set, start)


def broadcast_async(tensor, root_rank, name=None, process_set=global_process_set):
    return _broadcast(tensor, root_rank, name, process_set, False)


def broadcast_async_(tensor, root_rank, name=None, process_set=global_process_set):
    return _broadcast(tensor, root_rank, name, process_set, True)


def broadcast_(tensor, root_rank, name=None, process_set=global_process_set):
    return synchronize(broadcast_async_(tensor, root_rank, name, process_set))


class _Broadcast(torch.autograd.Function):
    """The root's gradient is the average of all; the others' values do not count."""

    @staticmethod
    def forward(context, tensor, root_rank, name, process_set):
        context.root, context.process_set = root_rank, process_set
        return synchronize(broadcast_async(tensor, root_rank, name, process_set))

    @staticmethod
    def backward(context, gradient):
        reduced = allreduce(gradient, op=Average, process_set=context.process_set)
        return reduced if basics.rank() == context.root else torch.zeros_like(reduced), None, None, None


def broadcast(tensor, root_rank, name=None, process_set=global_process_set):
    """The values of rank `root_rank` (of all ranks, not of the set), as a new tensor. Gradients flow."""
    return _Broadcast.apply(tensor, root_rank, name, process_set)


def _alltoall(tensor, splits, name, process_set):
    def start(group, name):
        used, rows = host_copy(tensor), []
        if splits is not None:
            of_ranks = splits if isinstance(splits, torch.Tensor) else torch.tensor(splits, dtype=torch.int32)
            if of_ranks.dim() != 1 or of_ranks.dtype != torch.int32:
                raise ValueError(f"the splits are a {of_ranks.dim()}-dimensional tensor of {of_ranks.dtype}; pass one number of type torch.int32 for each rank")
            rows = of_ranks.tolist() or [-1]  # which is refused
            total = sum(rows)
            if min(rows) >= 0 and used.dim() > 0 and total < used.size(0):
                used = used.narrow(0, 0, total)
        return (basics.job().collectives.all_to_all(group, name, used, rows),
                lambda operation: (operation.outputs[0].to(tensor.device), torch.tensor(operation.rows, dtype=torch.int32)))

    return started("alltoall", name, process_set, start)


def alltoall_async(tensor, splits=None, name=None, process_set=global_process_set):
    handle = _alltoall(tensor, splits, name, process_set)
    if splits is None:
        entry = basics.job().in_flight[handle]
        both = entry.finish  # None: it fails
        entry.finish = lambda operation: both(operation)[0]
    return handle


class _Alltoall(torch.autograd.Function):
    """The gradient goes the way back."""

    @staticmethod
    def forward(context, tensor, splits, name, process_set):
        output, received = synchronize(_alltoall(tensor, splits, name, process_set))
        context.process_set, context.received, context.rows = process_set, received, tensor.size(0)
        context.mark_non_differentiable(received)
        return output, received

    @staticmethod
    def backward(context, gradient, _):
        back, _ = alltoall(gradient, context.received, process_set=context.process_set)
        if back.size(0) < context.rows:  # the splits had left some rows at home
            back = torch.cat([back, back.new_zeros(context.rows - back.size(0), *back.shape[1:])])
        return back, None, None, None


def alltoall(tensor, splits=None, name=None, process_set=global_process_set):
    """Sends blocks of rows to the ranks of the set, and returns those received, one after the other. Gradients flow.

    splits  rows for each rank, of type int32; then the result is a pair: the rows, and how many came from each rank. None: equal blocks
    """
    output, received = _Alltoall.apply(tensor, splits, name, process_set)
    return output if splits is None else (output, received)


def _reducescatter(kind, tensors, name, op, before, after, process_set):
    grouped = kind.startswith("grouped_")

    def start(group, name):
        given = members(tensors, grouped)
        inputs = [host_copy(tensor) for tensor in given]
        which = checked(reduction(None, op), inputs, (Average, Sum))
        here, in_kolo, note = scales(inputs, before, after)
        used = [scaled(tensor, here[0]) for tensor in inputs]
        names = member_names(name, given, note) if grouped or note else []

        def finish(operation):
            results = [scaled(output, here[1]).to(tensor.device) for output, tensor in zip(operation.outputs, given)]
            return results if grouped else results[0]

        return basics.job().collectives.reduce_scatter(group, name, names, used, of_kolo[which], *in_kolo), finish

    return started(kind, name, process_set, start)


def reducescatter_async(tensor, name=None, op=Average, process_set=global_process_set, prescale_factor=1.0, postscale_factor=1.0):
    return _reducescatter("reducescatter", tensor, name, op, prescale_factor, postscale_factor, process_set)


def grouped_reducescatter_async(tensors, name=None, op=Average, process_set=global_process_set, prescale_factor=1.0, postscale_factor=1.0):
    return _reducescatter("grouped_reducescatter", tensors, name, op, prescale_factor, postscale_factor, process_set)


class _Reducescatter(torch.autograd.Function):
    """The gradient is gathered; of a sum it counts for every rank's gradient being the average, as in allgather()."""

    @staticmethod
    def forward(context, options, *tensors):
        context.options = options
        op, before, after, process_set, name, grouped = options
        kind = "grouped_reducescatter" if grouped else "reducescatter"
        result = synchronize(_reducescatter(kind, tensors if grouped else tensors[0], name, op, before, after, process_set))
        return tuple(result) if grouped else result

    @staticmethod
    def backward(context, *gradients):
        op, before, after, process_set, _, grouped = context.options
        factor = before * after * (process_set.size() if op == Sum else 1)
        scaled = [gradient * factor for gradient in gradients]
        return (None, *(grouped_allgather(scaled, process_set=process_set) if grouped else [allgather(scaled[0], process_set=process_set)]))


def reducescatter(tensor, name=None, compression=Compression.none, op=Average, process_set=global_process_set, prescale_factor=1.0,
                  postscale_factor=1.0):
    """This rank's rows of the sum or average over the ranks of the set; the first ranks have one row more where they are not equal."""
    [small], [context] = compressed("reducescatter", [tensor], compression, name, process_set, None, op)
    options = (reduction(None, op), prescale_factor, postscale_factor, process_set, name, False)
    return compression.decompress(_Reducescatter.apply(options, small), context)


def grouped_reducescatter(tensors, name=None, compression=Compression.none, op=Average, process_set=global_process_set, prescale_factor=1.0,
                          postscale_factor=1.0):
    small, contexts = compressed("grouped_reducescatter", tensors, compression, name, process_set, None, op)
    options = (reduction(None, op), prescale_factor, postscale_factor, process_set, name, True)
    return [compression.decompress(tensor, context) for tensor, context in zip(_Reducescatter.apply(options, *small), contexts)]


def join(device=-1):
    """Says that this rank has no more data, and waits until all ranks say so. Meanwhile it takes part in the others' allreduces, with values that
    do not count. Returns the rank that joined last. `device` is accepted, and has no use here."""
    collectives = basics.job().collectives
    last = collectives.join(_horovod.Group())
    counts = [dict(pairs) for pairs in (_unpacked(text) for text in collectives.all_gather_object(_horovod.Group(), "counts", _packed(basics.job().counts)))]
    for key in set().union(*counts):  # who had joined has not counted the unnamed operations of the others
        if key[1] == 0:
            basics.job().counts[key] = max(count.get(key, 0) for count in counts)
    return last


def _packed(counts):
    return "\n".join(f"{kind} {number} {count}" for (kind, number), count in counts.items()).encode()


def _unpacked(text):
    for line in text.decode().splitlines():
        kind, number, count = line.split()
        yield (kind, int(number)), int(count)


def barrier(process_set=global_process_set):
    """Returns when every rank of the set has called it."""
    told = process_set.told()
    synchronize(started("barrier", str(next(numbers)), told, lambda group, _: (basics.job().collectives.barrier(group), lambda _: None)))
    process_set.used()
