"""Operations in flight, and the names that ranks match them by."""
import itertools
import threading
import time

from kolo import _horovod
from kolo.horovod.exceptions import HorovodInternalError, NameInFlightError
from kolo.horovod.torch import basics


class InFlight:
    """An operation and what its caller gets: `finish` makes that of the tensors that it has produced."""

    def __init__(self, key, operation, finish):
        self.key, self.operation, self.finish = key, operation, finish
        self.since = time.monotonic()

    def free_name(self):
        if basics.job().last_of.get(self.key) is self:
            del basics.job().last_of[self.key]


CYCLE_SECONDS = 0.001  # Horovod's usual one
numbers = itertools.count(1)
lock = threading.Lock()


def started(kind, name, process_set, start):
    """Submits an operation: start(group, name) does, and returns it and a function that makes its result. What that cannot do (an argument is bad, or
    memory short) fails on every rank of the set, as others wait for this one. A name is free again once its operation was seen to be done, by
    synchronize() or poll(); or is done and a cycle of Horovod's has passed, within which no operation of its ends: programs may count on that."""
    told = process_set.told()
    name = named(kind, name, told)
    key = (told.process_set_id, name)
    last = basics.job().last_of.get(key)
    if last is not None and time.monotonic() - last.since < CYCLE_SECONDS:
        raise NameInFlightError(f"{name} is in flight (it was submitted less than a millisecond ago, and not synchronized); "
                                "synchronize it first, or give another name")

    def submitted():
        try:
            return start(process_set.used(), name)
        except (NameInFlightError, HorovodInternalError):
            raise
        except Exception as error:
            operation = getattr(_horovod.OpKind, kind.removeprefix("grouped_"))
            is_argument = isinstance(error, (ValueError, TypeError, AttributeError))
            return basics.job().collectives.refuse(told.group, operation, kind.startswith("grouped_"), name, str(error), is_argument), None

    try:
        operation, finish = submitted()
    except NameInFlightError:
        for entry in list(basics.job().in_flight.values()):
            entry.operation.done()
        operation, finish = submitted()
    with lock:
        handle = next(numbers)
    basics.job().in_flight[handle] = basics.job().last_of[key] = InFlight(key, operation, finish)
    return handle


def poll(handle):
    """Whether synchronize() would return without waiting."""
    entry = basics.job().in_flight.get(handle)
    if entry is None:
        raise ValueError(f"handle {handle} is of no operation, or was synchronized already")
    done = entry.operation.done()
    if done:
        entry.free_name()
    return done


def synchronize(handle):
    """Waits, and returns the result; raises what the operation failed with, the same on every rank."""
    entry = basics.job().in_flight.pop(handle, None)
    if entry is None:
        raise ValueError(f"handle {handle} is of no operation, or was synchronized already")
    entry.free_name()
    entry.operation.wait()
    return entry.finish(entry.operation)


def named(kind, name, process_set):
    """The name that ranks match by; without one, the number of the set's operations of this kind that have none."""
    if name is None:
        counts = basics.job().counts
        key = (kind, process_set.process_set_id)
        with lock:
            counts[key] = counts.get(key, 0) + 1
            name = f"noname.{counts[key]}"
    return f"{kind}.{name}"
