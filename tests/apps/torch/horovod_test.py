"""What each rank does in the cases of torch_test.py that use Horovod's API: horovod_test.py CASE..., or `list`."""
import os
import resource
import signal
import sys
import time

from ranks import CASES, case, equal, main, raises

CASES.clear()  # those of ranks.py itself
if sys.argv[1] != "list":
    import torch

    import kolo.horovod.torch as hvd

    os.environ |= {"TORCHELASTIC_USE_AGENT_STORE": "True", "TORCHELASTIC_RESTART_COUNT": "0"}  # as under torchrun, the store is there: that of ranks.py
    torch.manual_seed(5)
    RANK, SIZE = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])


def full(value, *shape, dtype=None):
    return torch.full(shape or (3,), value, dtype=dtype)


def fails(call, *parts):
    """The call fails, on this rank as on all, with a text that has these parts; then the job goes on."""
    raises(call, *parts)
    equal(hvd.allreduce(torch.ones(2), op=hvd.Sum, name="goes on"), full(float(SIZE), 2))


@case(1, 2, 3)
def operations():
    hvd.init()
    assert (hvd.rank(), hvd.size(), hvd.local_rank(), hvd.local_size(), hvd.cross_rank(), hvd.cross_size()) == (RANK, SIZE, RANK, SIZE, 0, 1)
    total = SIZE * (SIZE + 1) / 2
    strided = torch.full((4, 6), RANK + 1.0).t()
    equal(hvd.allreduce(strided, op=hvd.Sum), torch.full((6, 4), total))
    equal(hvd.allreduce_(strided[::2], op=hvd.Max), torch.full((3, 4), float(SIZE)))
    equal(strided[0], full(float(SIZE), 4))
    equal(strided[1], full(RANK + 1.0, 4))
    equal(hvd.allreduce(full(RANK + 1.0, dtype=torch.bfloat16)), full(total / SIZE, dtype=torch.bfloat16))
    equal(hvd.allreduce(torch.tensor(RANK + 1j), op=hvd.Sum), torch.tensor(total - SIZE + SIZE * 1j, dtype=torch.complex64))
    equal(hvd.allgather(full(RANK, RANK, 2)), torch.cat([full(rank, rank, 2) for rank in range(SIZE)]))
    gathered = hvd.grouped_allgather([full(RANK, RANK + 1), full(float(RANK), 2, 2)])
    equal(gathered[0], torch.cat([full(rank, rank + 1) for rank in range(SIZE)]))
    equal(gathered[1], torch.cat([full(float(rank), 2, 2) for rank in range(SIZE)]))
    mine = full(RANK)
    equal(hvd.broadcast(mine, SIZE - 1), full(SIZE - 1))
    equal(mine, full(RANK))
    equal(hvd.broadcast_(mine, 0), full(0))
    output, received = hvd.alltoall(torch.cat([full(RANK, RANK + 1) for _ in range(SIZE)]), torch.tensor([RANK + 1] * SIZE, dtype=torch.int32))
    equal(output, torch.cat([full(rank, rank + 1) for rank in range(SIZE)]))
    equal(received, torch.arange(1, SIZE + 1, dtype=torch.int32))
    rows = hvd.reducescatter(torch.arange(SIZE + 1.0), op=hvd.Sum)
    equal(rows, torch.arange(SIZE + 1.0)[:2] * SIZE if RANK == 0 else torch.tensor([RANK + 1.0]) * SIZE)
    equal(hvd.grouped_reducescatter([torch.ones(SIZE), torch.ones(2 * SIZE)])[1], torch.ones(2))
    dense = torch.zeros(4).index_fill(0, torch.tensor([RANK]), 6.0)
    equal(hvd.sparse_allreduce_async(dense.to_sparse())().to_dense(), torch.tensor([6.0 / SIZE] * SIZE + [0.0] * (4 - SIZE)))
    assert hvd.allgather_object({"rank": RANK}) == [{"rank": rank} for rank in range(SIZE)]
    assert hvd.broadcast_object("root's" if RANK == SIZE - 1 else None, SIZE - 1) == "root's"
    handles = [hvd.allreduce_async(full(1.0), name=f"in flight {i if RANK else 9 - i}", op=hvd.Sum) for i in range(10)]
    assert all(equal(hvd.synchronize(handle), full(float(SIZE))) is None for handle in handles)
    raises_value(lambda: hvd.synchronize(handles[0]), "synchronized already")
    for call in (lambda: hvd.start_timeline("file"), hvd.stop_timeline):
        try:
            call()
        except NotImplementedError:
            continue
        raise AssertionError("there is no timeline yet")
    hvd.shutdown()
    assert not hvd.is_initialized()
    raises_value(lambda: hvd.rank(), "init()")
    hvd.init()
    equal(hvd.allreduce(full(1.0), op=hvd.Sum), full(float(SIZE)))
    hvd.shutdown()


def raises_value(call, *parts):
    try:
        call()
    except ValueError as error:
        assert all(part in str(error) for part in parts), str(error)
        return
    raise AssertionError(f"{call} has not failed")


@case(2, 3)
def scales_round_as_in_horovod():
    hvd.init()
    values = torch.tensor([0.1, 0.7, 100.3])
    for dtype in (torch.float32, torch.float64):
        value = values.to(dtype)
        equal(hvd.allreduce(value, op=hvd.Sum, prescale_factor=0.3), sum([value * 0.3] * SIZE))
    half = values.half()
    equal(hvd.allreduce(half, op=hvd.Sum, prescale_factor=0.3), (SIZE * (half.float() * torch.tensor(0.3)).half().float()).half())
    equal(hvd.allreduce(torch.tensor([7, -7]), op=hvd.Sum, prescale_factor=0.5), torch.tensor([3, -3]) * SIZE)
    equal(hvd.allreduce(torch.tensor([7, -7]), op=hvd.Sum, postscale_factor=0.5), torch.tensor([7 * SIZE // 2, -(7 * SIZE // 2)]))
    fails(lambda: hvd.allreduce(torch.tensor([7]), op=hvd.Sum, name="scale", prescale_factor=1.0 + RANK))
    fails(lambda: hvd.allreduce(torch.ones(1), op=hvd.Sum, name="scale", prescale_factor=1.0 + RANK), "prescale")
    hvd.shutdown()


# The nine defects of Horovod.


@case(2, 3)
def integer_averages_are_exact():
    hvd.init()
    for dtype in (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64):
        equal(hvd.allreduce(full(1, dtype=dtype)), full(1, dtype=dtype))
        equal(hvd.allreduce(full(100, dtype=dtype)), full(100, dtype=dtype))  # the sum does not fit in 8 bits
    large = 2**53 + 1  # no 64-bit float is that
    equal(hvd.allreduce(full(large)), full(large))
    equal(hvd.allreduce(full(-RANK)), full(-(SIZE - 1) // 2 if SIZE % 2 else -(SIZE - 2) // 2))
    hvd.shutdown()


@case(3)
def join_adds_nothing_to_any_reduction():
    hvd.init()
    if RANK != 0:  # the lowest has joined
        expected = {hvd.Sum: -4.0, hvd.Min: -2.0, hvd.Max: -2.0, hvd.Product: 4.0, hvd.Average: -4.0 / 3}
        for op, value in expected.items():
            equal(hvd.allreduce(full(-2.0), op=op), full(torch.tensor(value).item()))
        equal(hvd.allreduce(full(5), op=hvd.Min), full(5))
    assert hvd.join() in range(SIZE)
    hvd.shutdown()


@case(2, 3)
def join_of_each_rank():
    hvd.init()
    for first in range(SIZE):
        if RANK != first:
            for _ in range(3):
                equal(hvd.allreduce(full(1.0), op=hvd.Sum), full(SIZE - 1.0))
            hvd.barrier()
            raises(lambda: hvd.allgather(full(1.0)), "joined")
            raises(lambda: hvd.broadcast(full(1.0), RANK, name="of one"))
            raises(lambda: hvd.alltoall(torch.ones(SIZE)), "joined")
            raises(lambda: hvd.reducescatter(torch.ones(SIZE)), "joined")
            hvd.barrier()
        last = hvd.join()
        assert last != first or SIZE == 1
        assert hvd.allgather_object(last) == [last] * SIZE
        equal(hvd.allreduce(full(1.0), op=hvd.Sum), full(float(SIZE)))  # whose names differed in what was missed
        equal(hvd.allgather(full(1.0, 1)), full(1.0, SIZE))
    hvd.shutdown()


@case(2)
def a_name_serves_any_operation():
    hvd.init()
    for i in range(4):
        for _ in range(3):
            equal(hvd.allreduce(torch.ones(4 + i), op=hvd.Sum, name="x"), full(2.0, 4 + i))
        equal(hvd.reducescatter(torch.ones(4), op=hvd.Sum, name="x"), full(2.0, 2))
        equal(hvd.allreduce(torch.ones(4), op=hvd.Min, name="x"), full(1.0, 4))
        equal(hvd.broadcast(full(RANK), 1, name="x"), full(1))
        equal(hvd.allgather(full(RANK, 1), name="x"), torch.tensor([0, 1]))
        equal(hvd.alltoall(full(RANK, 2), name="x"), torch.tensor([0, 1]))
    hvd.shutdown()


@case(2)
def a_group_that_is_refused_leaves_nothing():
    hvd.init()
    if RANK == 0:
        handle = hvd.grouped_allreduce_async([full(1.0), full(2.0)], name="group", op=hvd.Sum)
        raises_value(lambda: hvd.grouped_allreduce_async([full(8.0), full(8.0), full(8.0)], name="group", op=hvd.Sum), "in flight")
        raises_value(lambda: hvd.grouped_allreduce_async([full(8.0)], name="group", op=hvd.Sum), "in flight")
    hvd.barrier()
    if RANK == 1:
        handle = hvd.grouped_allreduce_async([full(1.0), full(2.0)], name="group", op=hvd.Sum)
    equal(hvd.synchronize(handle)[1], full(4.0))
    equal(hvd.grouped_allreduce([full(1.0), full(2.0), full(3.0)], name="group", op=hvd.Sum)[2], full(6.0))
    dropped = hvd.allreduce_async(full(1.0), name="dropped")
    hvd.barrier()
    while not hvd.poll(dropped):
        time.sleep(0.001)
    equal(hvd.allreduce(full(2.0), name="dropped"), full(2.0))  # its name is free again
    for turn in range(3):  # the rank that comes last finds its operation done at once
        for kind in (hvd.allreduce_async, hvd.allgather_async):
            if turn % 2 == RANK:
                kind(full(1.0), name="twice")
                raises_value(lambda: kind(full(1.0), name="twice"), "in flight")
            hvd.barrier()
            if turn % 2 != RANK:
                kind(full(1.0), name="twice")
                raises_value(lambda: kind(full(1.0), name="twice"), "in flight")
            hvd.barrier()
            time.sleep(0.002)
    hvd.shutdown()


@case(2)
def groups_are_the_same_on_all_ranks():
    hvd.init()
    tensors = [full(1.0) for _ in range(2 + RANK)]
    fails(lambda: hvd.grouped_allreduce(tensors, name="group"))
    fails(lambda: hvd.grouped_allgather(tensors, name="group"))
    fails(lambda: hvd.grouped_reducescatter(tensors, name="group"))
    if RANK == 0:  # a group does not run against single operations
        handle = hvd.grouped_allreduce_async([full(1.0), full(1.0)], name="pair")
        assert not hvd.poll(handle)
    else:
        handles = [hvd.allreduce_async(full(1.0), name=name) for name in ("pair.0", "pair.1", "pair")]
        time.sleep(0.2)
        assert not any(hvd.poll(handle) for handle in handles)
    hvd.barrier()
    hvd.shutdown()


@case(2, alone=True)
def memory_that_is_missing_on_one_rank():
    hvd.init()
    hvd.allgather(torch.ones(1000))
    if RANK == 1:
        used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (used + (48 << 20), resource.RLIM_INFINITY))
    begin = time.monotonic()
    rows = 1 if RANK else 160 << 20
    raises(lambda: hvd.allgather(torch.empty(rows, dtype=torch.uint8), name="large"), "large")
    assert time.monotonic() - begin < 20
    if RANK == 1:
        resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    equal(hvd.allreduce(full(1.0), op=hvd.Sum), full(2.0))
    hvd.shutdown()


@case(2, KOLO_TIMEOUT_SECONDS="1", KOLO_STALL_REPORT_SECONDS="0.5")
def a_frozen_rank_is_named():
    hvd.init()
    pids = hvd.allgather_object(os.getpid())
    if RANK == 1:
        time.sleep(60)
    os.kill(pids[1], signal.SIGSTOP)
    begin = time.monotonic()
    try:
        raises(lambda: hvd.allreduce(full(1.0), name="waits"), "waits", "rank 1")
        assert time.monotonic() - begin < 10
    finally:
        os.kill(pids[1], signal.SIGKILL)


@case(2, 3)
def bad_arguments_of_one_rank_are_errors_on_all():
    hvd.init()
    bad = RANK == SIZE - 1
    fails(lambda: hvd.alltoall(torch.ones(SIZE), torch.ones(SIZE, dtype=torch.float32 if bad else torch.int32), name="splits"), "torch.int32")
    fails(lambda: hvd.alltoall(torch.ones(SIZE), torch.tensor([2 if bad else 1] * SIZE, dtype=torch.int32), name="splits"), "splits")
    fails(lambda: hvd.alltoall(torch.ones(SIZE), torch.ones(SIZE - bad, dtype=torch.int32), name="splits"), "split")
    fails(lambda: hvd.alltoall(torch.ones(SIZE + bad), name="rows"), "rows")
    fails(lambda: hvd.broadcast(torch.ones(2), 99 if bad else 0, name="root"), "root")
    fails(lambda: hvd.allgather(torch.tensor(1.0) if bad else torch.ones(1), name="scalar"), "scalar")
    fails(lambda: hvd.grouped_allgather([torch.ones(1), torch.tensor(1.0) if bad else torch.ones(1)], name="scalar"))
    fails(lambda: hvd.grouped_reducescatter([torch.ones(SIZE), torch.tensor(1.0) if bad else torch.ones(SIZE)], name="scalar"))
    fails(lambda: hvd.reducescatter(torch.ones(SIZE), op=hvd.Adasum if bad else hvd.Sum, name="op"))
    fails(lambda: hvd.allreduce(torch.ones(2, dtype=torch.complex64), op=hvd.Max, name="complex"), "complex")
    fails(lambda: hvd.allreduce(torch.ones(4 + bad), name="shape"), "shape", "[4]", "[5]")
    fails(lambda: hvd.allreduce(torch.ones(4, dtype=torch.int32 if bad else torch.float32), name="type"), "i32", "f32")
    fails(lambda: hvd.allgather_object((i for i in ()) if bad else 1), "pickled")
    fails(lambda: hvd.broadcast_object((i for i in ()), SIZE - 1), "pickled")
    fails(lambda: hvd.add_process_set([0] if bad else [0, 1]), "differ")
    hvd.shutdown()


@case(2, 3)
def what_one_rank_cannot_submit_fails_on_all():
    hvd.init()
    bad = RANK == SIZE - 1
    one = torch.ones(SIZE)
    sparse = one.to_sparse() if bad else one
    unknown = 77 if bad else hvd.Sum

    class Compressor:
        def compress(tensor):
            if bad:
                raise MemoryError("nothing left")
            return tensor, None

        def decompress(tensor, _):
            return tensor

    who = f"rank {SIZE - 1}"
    for name in ("again", None):  # the names without one stay the same on all ranks
        for call in (hvd.allreduce, hvd.allreduce_, hvd.allgather, hvd.alltoall, hvd.reducescatter, lambda tensor, name: hvd.broadcast(tensor, 0, name=name),
                     lambda tensor, name: hvd.broadcast_(tensor, 0, name=name), lambda tensor, name: hvd.grouped_allreduce([one, tensor], name=name),
                     lambda tensor, name: hvd.grouped_allgather([one, tensor], name=name),
                     lambda tensor, name: hvd.grouped_reducescatter([one, tensor], name=name)):
            fails(lambda: call(sparse, name=name), who, "sparse")
        for call in (hvd.allreduce, hvd.reducescatter):
            fails(lambda: call(one, op=unknown, name=name), who, "77")
            fails(lambda: call(one, compression=Compressor, name=name), who, "nothing left")
        fails(lambda: hvd.grouped_reducescatter([one], op=hvd.Max if bad else hvd.Sum, name=name), who, "Max")
        for call in (hvd.grouped_allreduce, hvd.grouped_allgather, hvd.grouped_reducescatter):
            fails(lambda: call([] if bad else [one], name=name), who, "no tensors")
        fails(lambda: hvd.sparse_allreduce_async(one.to_sparse(), op=hvd.Max if bad else hvd.Sum, name=name)(), who, "Max")
        fails(lambda: hvd.sparse_allreduce_async(one if bad else one.to_sparse(), name=name)(), who)
        fails(lambda: hvd.alltoall(one, splits="x" if bad else torch.ones(SIZE, dtype=torch.int32), name=name), who)
    known = hvd.add_process_set(list(range(SIZE - 1, SIZE)) if SIZE == 2 else [0, 2])
    if known.included():
        process_set = hvd.ProcessSet(known.ranks) if bad and SIZE > 2 else known
        calls = (lambda: hvd.allreduce(one, process_set=process_set), lambda: hvd.allgather_object(1, process_set=process_set),
                 lambda: hvd.broadcast_object(1, SIZE - 1, process_set=process_set), lambda: hvd.allgather(one, process_set=process_set))
        for call in calls:
            raises(call, "not registered") if SIZE > 2 else call()
    raises(lambda: hvd.allreduce(one, process_set=hvd.ProcessSet([0])), "not registered")
    hvd.barrier()
    hvd.shutdown()


@case(2, alone=True)
def memory_that_is_missing_for_a_group_on_one_rank():
    """The rows are known everywhere by then, or the input is no longer what was passed."""
    hvd.init()
    hvd.grouped_allgather([torch.ones(1000)])
    strided = torch.zeros(2, 60 << 20, dtype=torch.uint8).t()
    if RANK == 1:
        used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (used + (48 << 20), resource.RLIM_INFINITY))
    begin = time.monotonic()
    rows = 1 if RANK else 160 << 20
    raises(lambda: hvd.grouped_allgather([torch.empty(rows, dtype=torch.uint8)], name="large"), "rank 1", "memory")
    raises(lambda: hvd.allreduce(strided, name="strided"), "rank 1", "memory")
    raises(lambda: hvd.reducescatter(strided, name="strided"), "rank 1", "memory")
    assert time.monotonic() - begin < 20
    if RANK == 1:
        resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    equal(hvd.grouped_allgather([full(1.0)])[0], full(1.0, 6))
    hvd.shutdown()


@case(3)
def names_are_of_their_set():
    """Two sets that overlap, in one rank, have operations of the same name in flight at once."""
    hvd.init()
    pair = hvd.add_process_set([0, 1])
    for name in (None, "same"):
        for start in (hvd.allreduce_async, hvd.grouped_allreduce_async, hvd.allgather_async):
            tensor = full(RANK + 1.0, 2)
            handles = [start([tensor] if "grouped" in start.__name__ else tensor, name=name, process_set=process_set)
                       for process_set in (hvd.global_process_set, pair) if process_set.included()]
            results = [result[0] if isinstance(result, list) else result for result in map(hvd.synchronize, handles)]
            for result, ranks in zip(results, (3, 2)):
                equal(result, full((ranks + 1) / 2, 2) if start is not hvd.allgather_async else torch.arange(1.0, ranks + 1).repeat_interleave(2))
    assert hvd.remove_process_set(pair)
    hvd.shutdown()


@case(2, 3)
def places_are_known_to_each_rank():
    """Who asks for them waits for nobody, in a job that was made anew, too."""
    for _ in range(2):
        hvd.init()
        hvd.barrier()
        if RANK == 0:
            assert (hvd.cross_rank(), hvd.cross_size(), hvd.is_homogeneous()) == (0, 1, True)
            hvd.broadcast_object("asked", 0, name="answer")
        else:
            hvd.broadcast_object(None, 0, name="answer")
        hvd.barrier()
        hvd.shutdown()


main()
