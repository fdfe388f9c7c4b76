"""Values of one rank for all: parameters, the state of an optimizer, any object."""
import pickle

import torch

from kolo.horovod.exceptions import InvalidArgumentError
from kolo.horovod.torch import basics
from kolo.horovod.torch.basics import global_process_set
from kolo.horovod.torch.handles import named, synchronize
from kolo.horovod.torch.mpi_ops import broadcast_async_

try:
    import cloudpickle
except ImportError:  # then functions and classes of the program's own do not travel
    cloudpickle = pickle


def _packed(value, process_set):
    """The value, or why it cannot travel: the other ranks wait for something."""
    try:
        process_set.used()
    except InvalidArgumentError as error:
        return b"-" + f"rank {basics.rank()}: {error}".encode()
    try:
        return b"+" + cloudpickle.dumps(value)
    except Exception as error:
        return b"-" + f"rank {basics.rank()}: a {type(value).__name__} cannot be pickled ({error})".encode()


def _unpacked(data):
    if data[:1] == b"-":
        raise InvalidArgumentError(data[1:].decode())
    return cloudpickle.loads(data[1:])


def broadcast_object(obj=None, root_rank=0, name=None, process_set=global_process_set):
    """The object of rank `root_rank` (of all ranks) on every rank of the set. What is received is unpickled: ranks must trust each other."""
    told = process_set.told()
    mine = _packed(obj, process_set) if basics.rank() == root_rank else b""
    data = basics.job().collectives.broadcast_object(told.group, named("broadcast_object", name, told), mine, told.root(root_rank))
    process_set.used()
    if basics.rank() == root_rank and mine[:1] == b"+":
        return obj
    return _unpacked(data)


def broadcast_object_fn(root_rank=0, name=None, process_set=global_process_set):
    """broadcast_object() with these arguments, as a function of the object."""
    return lambda obj: broadcast_object(obj, root_rank, name, process_set)


def allgather_object(obj, name=None, process_set=global_process_set):
    """The objects of all ranks of the set, in their order."""
    told = process_set.told()
    name = named("allgather_object", name, told)
    return [_unpacked(data) for data in basics.job().collectives.all_gather_object(told.group, name, _packed(obj, process_set))]


def broadcast_parameters(params, root_rank, process_set=global_process_set):
    """Makes tensors those of rank `root_rank`, in place.

    params  a state_dict(), or pairs of a name and a tensor; what is no tensor (None, say) stays as it is
    """
    pairs = params.items() if hasattr(params, "items") else params
    handles = []
    for pair in sorted(pairs, key=lambda pair: str(pair[0])):
        name, tensor = pair
        if isinstance(tensor, torch.Tensor):
            handles.append(broadcast_async_(tensor, root_rank, f"parameter.{name}", process_set))
    for handle in handles:
        synchronize(handle)


class _Place:
    """Stands for a tensor in a state that travels without its tensors."""

    def __init__(self, tensor):
        self.shape, self.dtype, self.on_host = tuple(tensor.shape), tensor.dtype, tensor.device.type == "cpu"

    def empty(self, device):
        return torch.empty(self.shape, dtype=self.dtype, device="cpu" if self.on_host else device)


def _replaced(value, replace):
    """The value with what replace() makes of each tensor, or place of one, in it; equal order on every rank."""
    if isinstance(value, (torch.Tensor, _Place)):
        return replace(value)
    if isinstance(value, dict):
        return {key: _replaced(item, replace) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        items = [_replaced(item, replace) for item in value]
        return items if isinstance(value, list) else tuple(items)
    return value


def broadcast_optimizer_state(optimizer, root_rank, model=None, process_set=global_process_set):
    """Makes the optimizer's state and options those of rank `root_rank`, also where the others have none yet.

    Parameters that need gradients and have none get zeros, as with Horovod. `model` is accepted, and has no use here.
    """
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    if not optimizer.state:
        for parameter in parameters:
            if parameter.requires_grad and parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
    is_root = basics.rank() == root_rank
    state = optimizer.state_dict() if is_root else None
    places = broadcast_object(_replaced(state, _Place) if is_root else None, root_rank, "optimizer", process_set)
    tensors = []
    if is_root:
        _replaced(state, lambda tensor: tensors.append(tensor.detach()))
    else:
        device = parameters[0].device if parameters else "cpu"

        def keep(place):
            tensors.append(place.empty(device))
            return tensors[-1]

        state = _replaced(places, keep)
    for handle in [broadcast_async_(tensor, root_rank, f"optimizer.{i}", process_set) for i, tensor in enumerate(tensors)]:
        synchronize(handle)
    if not is_root:
        optimizer.load_state_dict(state)
