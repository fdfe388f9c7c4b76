"""kolo as a backend of torch.distributed.

Nothing needs to import this: `init_process_group("kolo")` finds it. KOLO_IMPERSONATE=gloo makes it the backend of that
name, too, for programs that ask for no other. Tensors in host memory of groups whose ranks are on several nodes go through torch's own
gloo, but under mpirun.
"""
import atexit
import functools
import os
import sys

__all__ = ["register"]


@functools.cache
def _groups():
    from kolo import _torch

    groups = _torch.Groups()
    atexit.register(groups.leave)
    return groups


def _create(name, options, _):
    group = _groups().create(options, name)
    why = group.host_is_stuck
    if not why:
        return group
    from kolo import _torch
    from torch.distributed import PrefixStore, ProcessGroupGloo

    if options.group_rank == 0:
        _say("kolo: the ranks of a group are on several nodes: their tensors in host memory go through PyTorch's own gloo, not over MPI: "
             + why)
    gloo = ProcessGroupGloo(PrefixStore("gloo", options.store), options.group_rank, options.group_size, timeout=options.timeout)
    return _torch.KoloOverNodes(group, gloo)


@functools.cache
def _say(line):
    """Once in a process."""
    print(line, file=sys.stderr, flush=True)


@functools.cache
def register():
    """Makes torch.distributed know the backend; called again, it does nothing."""
    from torch.distributed.distributed_c10d import Backend, ProcessGroup

    devices = ["cpu", "cuda"]
    Backend.register_backend("kolo", functools.partial(_create, "kolo"), extended_api=True, devices=devices)
    other = os.environ.get("KOLO_IMPERSONATE", "").lower()
    if not other:
        return
    if other != "gloo":
        raise ValueError(f"KOLO_IMPERSONATE is '{other}'; kolo can stand for 'gloo' only")
    Backend.register_backend(other, functools.partial(_create, other), extended_api=True, devices=devices,
                             _backend_type=ProcessGroup.BackendType.GLOO)


register()
