"""The ranks of a job: who they are, and sets of them."""
import atexit
import datetime
import json
import os

import torch
import torch.distributed

from kolo import _horovod
from kolo.horovod.exceptions import InvalidArgumentError

__all__ = ["init", "shutdown", "is_initialized", "rank", "size", "local_rank", "local_size", "cross_rank", "cross_size", "is_homogeneous",
           "mpi_threads_supported", "mpi_built", "mpi_enabled", "gloo_built", "gloo_enabled", "nccl_built", "ccl_built", "ddl_built", "cuda_built",
           "rocm_built", "start_timeline", "stop_timeline", "ProcessSet", "global_process_set", "add_process_set", "remove_process_set",
           "process_set_included"]


class _Job:
    """What this process has of its job between init() and shutdown()."""

    def __init__(self, collectives):
        self.collectives = collectives
        places = collectives.all_gather_object(_horovod.Group(), "places", str(collectives.local_rank).encode())
        self.places = [int(place) for place in places]  # of each rank, on its node
        self.sets = {}  # number -> ProcessSet
        self.next_set = 1
        self.in_flight = {}  # handle -> operation: what nobody asks for goes on, too
        self.last_of = {}  # (number of the set, name) -> its last operation, until that is synchronized
        self.counts = {}  # (kind, number of the set) -> operations without a name


class _Process:
    """The job, and the store by which it is found again after shutdown()."""

    def __init__(self):
        self.job = None
        self.store = None

    def leave(self):
        if self.job:
            self.job.collectives.leave()
            self.job = None


_process = _Process()
atexit.register(_process.leave)


def job():
    if _process.job is None:
        raise ValueError("Horovod's operations need a job: call init() first")
    return _process.job


def _find_ranks():
    """Store, rank and size: those of torchrun, or another launcher that sets its variables; those of mpirun on one node; else one rank."""
    if _process.store is None:
        environment = os.environ
        if "RANK" not in environment and "OMPI_COMM_WORLD_RANK" in environment:
            from kolo._autoload import autoload

            autoload()
        if "RANK" not in environment or "WORLD_SIZE" not in environment:
            _process.store = torch.distributed.HashStore(), 0, 1
        else:
            missing = [name for name in ("MASTER_ADDR", "MASTER_PORT") if name not in environment]
            if missing:
                raise ValueError(f"{' and '.join(missing)} must be set where the launcher does not, as mpirun on several nodes: an address and a free "
                                 "port of rank 0's node")
            store, rank, size = next(torch.distributed.rendezvous("env://", timeout=datetime.timedelta(minutes=10)))
            _process.store = torch.distributed.PrefixStore("kolo.horovod", store), rank, size
    return _process.store


def init(comm=None, process_sets=None):
    """Joins the ranks that a launcher has started. Collective; called again, it does nothing until shutdown().

    comm          None, or all ranks in order: kolo has no sessions of other communicators
    process_sets  ProcessSet objects, equal on every rank; "dynamic" is accepted, sets can always be added
    """
    if _process.job is not None:
        return
    store, rank, size = _find_ranks()
    if comm not in (None, []) and list(comm) != list(range(size)):
        raise ValueError(f"init(comm={comm}): pass None, and process_sets for a part of the ranks")
    _process.job = _Job(_horovod.Collectives(store, rank, size))
    global_process_set._register(0, list(range(size)), _horovod.Group())
    _process.job.sets[0] = global_process_set
    if process_sets not in (None, "dynamic"):
        for process_set in process_sets:
            add_process_set(process_set)


def shutdown():
    """Leaves the job; operations that still need this rank fail on the others."""
    if _process.job is None:
        return
    for process_set in _process.job.sets.values():
        process_set._forget()
    _process.leave()


def is_initialized():
    return _process.job is not None


def rank():
    return job().collectives.rank


def size():
    return job().collectives.size


def local_rank():
    """This rank's place among those of its node."""
    return job().collectives.local_rank


def local_size():
    return job().collectives.local_size


def cross_rank():
    """How many ranks before this one have its place on their nodes."""
    return job().places[:rank()].count(local_rank())


def cross_size():
    """How many nodes have a rank at this one's place."""
    return job().places.count(local_rank())


def is_homogeneous():
    """Whether all nodes have as many ranks."""
    places = job().places
    return len({places.count(place) for place in places}) == 1


def mpi_threads_supported():
    return True


def mpi_built():
    """True, and mpi_enabled() too: programs ask it for what Horovod has with MPI only, which kolo has without."""
    return True


mpi_enabled = mpi_built


def gloo_built():
    return False


gloo_enabled = ccl_built = ddl_built = cuda_built = rocm_built = gloo_built


def nccl_built():
    """A version of NCCL, in Horovod; 0: tensors of GPUs travel through host memory."""
    return 0


def start_timeline(file_path, mark_cycles=False):
    raise NotImplementedError("kolo writes no timeline yet; torch.profiler shows when operations wait")


def stop_timeline():
    raise NotImplementedError("kolo writes no timeline yet: there is none to stop")


class ProcessSet:
    """Ranks that run collectives together, among themselves; add_process_set() or init() makes it usable."""

    def __init__(self, ranks_or_comm):
        self.ranks = sorted(set(int(rank) for rank in ranks_or_comm))
        self._forget()

    def _register(self, number, ranks, group):
        self.process_set_id, self.ranks, self.group = number, ranks, group

    def _forget(self):
        self.process_set_id = self.group = None

    def included(self):
        """Whether this rank is in the set; None before it is added."""
        return None if self.process_set_id is None else rank() in self.ranks

    def rank(self):
        """This rank's place in the set; None before it is added, or for a rank that is not in it."""
        return self.ranks.index(rank()) if self.included() else None

    def size(self):
        """None before the set is added."""
        return None if self.process_set_id is None else len(self.ranks)

    def __str__(self):
        return f"ProcessSet(process_set_id={self.process_set_id}, ranks={self.ranks})"

    __repr__ = __str__

    def root(self, rank):
        """The place in the set of one of all ranks; one that is not in it becomes a place that there is not, which every rank refuses."""
        return self.ranks.index(rank) if rank in self.ranks else len(self.ranks) + max(0, rank)

    def told(self):
        """The set whose ranks learn how an operation of this one fails: itself, or, if it is not registered, the only one of the same ranks."""
        same = [known for known in job().sets.values() if known.ranks == self.ranks and known.included()]
        if self in same:
            return self
        if len(same) != 1:
            self.used()  # which says why it cannot be
        return same[0]

    def used(self):
        """The set's group, for an operation of this rank."""
        members = job().sets.get(self.process_set_id)
        if self.group is None or members is None or members.ranks != self.ranks:
            raise InvalidArgumentError(f"{self} is not registered, or no longer; add_process_set() does that")
        if not self.included():
            raise InvalidArgumentError(f"rank {rank()} is not in {self}; only its ranks call its operations")
        return self.group


global_process_set = ProcessSet([])


def _agreed(question, mine):
    """Every rank's answer, if they are equal; else ValueError on all, which says who said what."""
    answers = [json.loads(answer) for answer in job().collectives.all_gather_object(_horovod.Group(), question, json.dumps(mine).encode())]
    if any(answer != answers[0] for answer in answers):
        raise InvalidArgumentError(f"{question}: the ranks differ (" + "; ".join(f"rank {rank}: {answer}" for rank, answer in enumerate(answers)) +
                                   "); every rank must pass the same")


def add_process_set(process_set):
    """Makes a set usable: a ProcessSet, or a list of ranks. Collective over all ranks, which pass the same. Returns the ProcessSet."""
    if not isinstance(process_set, ProcessSet):
        process_set = ProcessSet(process_set)
    _agreed("add_process_set", process_set.ranks)
    if not process_set.ranks or process_set.ranks[0] < 0 or process_set.ranks[-1] >= size():
        raise InvalidArgumentError(f"add_process_set: {process_set.ranks} are not ranks of 0 to {size() - 1}")
    if process_set.process_set_id is not None:
        raise InvalidArgumentError(f"add_process_set: {process_set} is registered already")
    number = job().next_set
    job().next_set += 1
    group = job().collectives.new_group(process_set.ranks) if rank() in process_set.ranks else _horovod.Group()
    process_set._register(number, process_set.ranks, group)
    job().sets[number] = process_set
    return process_set


def remove_process_set(process_set):
    """Removes a set whose operations are done. Collective over all ranks. Returns whether it was there."""
    _agreed("remove_process_set", process_set.process_set_id)
    if process_set.process_set_id is None or process_set.process_set_id == 0:
        return False
    if process_set.included():
        job().collectives.remove_group(process_set.group)
    del job().sets[process_set.process_set_id]
    process_set._forget()
    return True


def process_set_included(process_set_id=0):
    """Whether this rank is in the set of this number."""
    if process_set_id not in job().sets:
        raise InvalidArgumentError(f"there is no process set {process_set_id}")
    return bool(job().sets[process_set_id].included())
