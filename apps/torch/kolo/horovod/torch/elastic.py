"""Programs that go on after an operation has failed, from their last commit.

kolo starts no processes: a rank that has died does not come back. What is recovered from is what left all ranks alive: a time-out, a rank that
was stopped for a while, ranks that disagreed.
"""
import copy
import functools
import math
import queue
import random

import torch

from kolo.horovod.exceptions import HorovodInternalError, HostsUpdatedInterrupt
from kolo.horovod.torch import basics
from kolo.horovod.torch.functions import allgather_object, broadcast_object, broadcast_optimizer_state, broadcast_parameters


def run(function):
    """Decorates function(state, …): it runs with the state synchronised, and again, from the last commit, when an operation has failed."""
    @functools.wraps(function)
    def running(state, *arguments, **options):
        skip_sync = False
        while True:
            try:
                if not skip_sync:
                    state.sync()
                return function(state, *arguments, **options)
            except HorovodInternalError:
                state.restore()
                skip_sync = False
            except HostsUpdatedInterrupt as interrupt:
                skip_sync = interrupt.skip_sync
            basics.shutdown()
            basics.init()
            state.on_reset()

    return running


class State:
    """What a program needs to go on. Derive from it: save(), restore(), sync(), reset()."""

    def __init__(self, **_):
        self._updates = queue.Queue()
        self._callbacks = []

    def register_reset_callbacks(self, callbacks):
        """Functions that are called when the job was made anew, to adapt learning rates for example."""
        self._callbacks.extend(callbacks)

    def on_reset(self):
        self._updates = queue.Queue()
        self.reset()
        for callback in self._callbacks:
            callback()

    def on_hosts_updated(self, timestamp, update_res):
        """For whoever watches the hosts: the next commit() raises HostsUpdatedInterrupt on every rank."""
        self._updates.put((timestamp, update_res))

    def commit(self):
        """Keeps the state as it is for restore(), and looks whether hosts have changed. Collective."""
        self.save()
        self.check_host_updates()

    def check_host_updates(self):
        """Raises HostsUpdatedInterrupt on every rank if rank 0 was told of other hosts. Collective."""
        updates = []
        while not self._updates.empty():
            updates.append(self._updates.get())
        if broadcast_object(bool(updates)):
            raise HostsUpdatedInterrupt()

    def save(self):
        raise NotImplementedError

    def restore(self):
        raise NotImplementedError

    def sync(self):
        raise NotImplementedError

    def reset(self):
        pass


class ObjectState(State):
    """A state of attributes that can be pickled: those passed by name."""

    def __init__(self, bcast_object=broadcast_object, get_rank=basics.rank, **attributes):
        super().__init__()
        self._broadcast = bcast_object
        self._saved = dict(attributes)
        for name, value in attributes.items():
            setattr(self, name, value)

    def save(self):
        self._saved = {name: copy.deepcopy(getattr(self, name)) for name in self._saved}

    def restore(self):
        for name, value in self._saved.items():
            setattr(self, name, copy.deepcopy(value))

    def sync(self):
        if not self._saved:
            return
        self._saved = self._broadcast({name: getattr(self, name) for name in self._saved})
        self.restore()


class _Whole:
    """A part of a state that has state_dict() and load_state_dict(): how it is kept, and made equal on all ranks."""

    def __init__(self, value):
        self.value = value
        self.save()

    def save(self):
        self.saved = copy.deepcopy(self.value.state_dict())

    def restore(self):
        self.value.load_state_dict(copy.deepcopy(self.saved))

    def sync(self):
        self._share()
        self.save()

    def reset(self):
        pass


class _Model(_Whole):
    def _share(self):
        broadcast_parameters(self.value.state_dict(), root_rank=0)


class _Optimizer(_Whole):
    def _share(self):
        broadcast_optimizer_state(self.value, root_rank=0)


class _Sampler(_Whole):
    def _share(self):
        """All ranks have processed what one has."""
        states = allgather_object(self.value.state_dict())
        processed = sorted(set().union(*(state["processed_indices"] for state in states)))
        self.value.load_state_dict({**states[0], "processed_indices": processed})

    def reset(self):
        self.value.reset()


def _part(value):
    for kind, part in ((torch.nn.Module, _Model), (torch.optim.Optimizer, _Optimizer), (ElasticSampler, _Sampler)):
        if isinstance(value, kind):
            return part(value)
    return None


class TorchState(ObjectState):
    """A state of models, optimizers, samplers (by their state_dict()) and anything that can be pickled."""

    def __init__(self, model=None, optimizer=None, **attributes):
        given = {name: value for name, value in (("model", model), ("optimizer", optimizer)) if value is not None} | attributes
        self._parts = {name: part for name, part in ((name, _part(value)) for name, value in given.items()) if part}
        super().__init__(**{name: value for name, value in given.items() if name not in self._parts})
        for name, part in self._parts.items():
            setattr(self, name, part.value)

    def __setattr__(self, name, value):
        super().__setattr__(name, value)
        if name in self.__dict__.get("_parts", {}) and self._parts[name].value is not value:
            self._parts[name] = _part(value)

    def save(self):
        for part in self._parts.values():
            part.save()
        super().save()

    def restore(self):
        for part in self._parts.values():
            part.restore()
        super().restore()

    def sync(self):
        for part in self._parts.values():
            part.sync()
        super().sync()

    def reset(self):
        for part in self._parts.values():
            part.reset()


class ElasticSampler(torch.utils.data.Sampler):
    """Shares the samples that are left in an epoch among the ranks; which were processed, the program says by record_batch().

    The ranks are padded to equal numbers of samples.
    """

    def __init__(self, dataset, shuffle=True, seed=0):
        self.dataset, self.shuffle, self.seed = dataset, shuffle, seed
        self.epoch, self.processed_indices = 0, set()
        self.indices = []  # of this rank, in the order of the iteration that was begun last
        self.reset()

    @property
    def processed_num(self):
        return len(self.processed_indices)

    def set_epoch(self, epoch):
        """Begins an epoch: nothing is processed."""
        self.epoch, self.processed_indices = epoch, set()
        self.reset()

    def get_indices(self, batch_idx, batch_size):
        """The samples of a batch of this rank, in the iteration that was begun last."""
        return self.indices[batch_idx * batch_size:(batch_idx + 1) * batch_size]

    def record_batch(self, batch_idx, batch_size):
        self.record_indices(self.get_indices(batch_idx, batch_size))

    def record_indices(self, indices):
        self.processed_indices.update(indices)

    def state_dict(self):
        return {"epoch": self.epoch, "processed_indices": sorted(self.processed_indices)}

    def load_state_dict(self, state):
        self.epoch, self.processed_indices = state["epoch"], set(state["processed_indices"])
        self.reset()

    def reset(self):
        """Shares out what is left, among the ranks that there are now."""
        self.num_replicas, self.rank = basics.size(), basics.rank()
        left = [index for index in range(len(self.dataset)) if index not in self.processed_indices]
        if self.shuffle:
            random.Random(self.seed + self.epoch).shuffle(left)
        self.num_samples = math.ceil(len(left) / self.num_replicas)
        missing = self.num_samples * self.num_replicas - len(left)
        while missing > 0 and left:
            left += left[:missing]
            missing = self.num_samples * self.num_replicas - len(left)
        self.remaining_indices = left

    def __iter__(self):
        self.indices = self.remaining_indices[self.rank::self.num_replicas]
        return iter(self.indices)

    def __len__(self):
        return self.num_samples
