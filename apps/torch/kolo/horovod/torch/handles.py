"""Operations in flight, and the names that ranks match them by."""
import itertools
import threading

from kolo.horovod.exceptions import NameInFlightError
from kolo.horovod.torch import basics


class InFlight:
    """An operation and what its caller gets: `finish` makes that of the tensors that it has produced."""

    def __init__(self, operation, finish):
        self.operation, self.finish = operation, finish


numbers = itertools.count(1)
lock = threading.Lock()


def started(start, finish):
    """Registers what start() submits. A name is free again when its operation is done, whether somebody has asked for its result or not."""
    try:
        operation = start()
    except NameInFlightError:
        for entry in list(basics.job().in_flight.values()):
            entry.operation.done()
        operation = start()
    with lock:
        handle = next(numbers)
    basics.job().in_flight[handle] = InFlight(operation, finish)
    return handle


def poll(handle):
    """Whether synchronize() would return without waiting."""
    if handle not in basics.job().in_flight:
        raise ValueError(f"handle {handle} is of no operation, or was synchronized already")
    return basics.job().in_flight[handle].operation.done()


def synchronize(handle):
    """Waits, and returns the result; raises what the operation failed with, the same on every rank."""
    entry = basics.job().in_flight.pop(handle, None)
    if entry is None:
        raise ValueError(f"handle {handle} is of no operation, or was synchronized already")
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
