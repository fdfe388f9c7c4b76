"""What each rank does in the cases of torch_test.py about groups that end, and what fails on the way: groups_test.py CASE..., or `list`."""
import os
import resource
import signal
import sys
import time

from ranks import CASES, case, equal, main, raises, start

CASES.clear()  # those of ranks.py itself
if sys.argv[1] != "list":
    import torch
    import torch.distributed as dist

    from ranks import RANK, SIZE, STORE


def meet(name):
    """Without the backend."""
    STORE.set(f"{name}{RANK}", "")
    STORE.wait([f"{name}{rank}" for rank in range(SIZE)])


@case(4, alone=True)
def the_living_make_groups_after_a_rank_has_died():
    start()
    before = dist.new_group([0, 1, 3])
    for group in (None, before):
        if group is None or RANK != 2:
            dist.all_reduce(torch.ones(10), group=group)
    meet("before")
    if RANK == 2:
        os.kill(os.getpid(), signal.SIGKILL)
    raises(lambda: [dist.all_reduce(torch.ones(10)) for _ in range(3)], "rank 2")
    for turn in range(2):
        group = dist.new_group([0, 1, 3])
        tensor = torch.full((1000,), 1.0)
        dist.all_reduce(tensor, group=group)
        equal(tensor, torch.full((1000,), 3.0))
        dist.destroy_process_group(group)
    if RANK < 2:
        pair = dist.new_group([0, 1], use_local_synchronization=True)
        dist.all_reduce(tensor, group=pair)
        equal(tensor, torch.full((1000,), 6.0))


@case(2)
def abort_ends_one_group():
    start()
    group, other = dist.new_group([0, 1]), dist.new_group([0, 1])
    for one in (group, other):
        dist.all_reduce(torch.ones(10), group=one)
    backend = group._get_backend(torch.device("cpu"))
    meet("aborts")
    if RANK == 0:
        work, received = dist.all_reduce(torch.ones(10), group=group, async_op=True), dist.irecv(torch.ones(10), 1, group=group)
        backend.abort()
        begin = time.monotonic()
        raises(work.wait, "rank 0 has abandoned it")
        raises(received.wait, "rank 0 has abandoned it")
        assert time.monotonic() - begin < 5
        raises(lambda: dist.all_reduce(torch.ones(10), group=group), "destroyed or aborted")
        backend.abort()
        meet("aborted")
    else:
        meet("aborted")
        raises(lambda: [dist.all_reduce(torch.ones(10), group=group) for _ in range(2)], "rank 0 has abandoned it")
    for one in (other, None):
        tensor = torch.ones(10)
        dist.all_reduce(tensor, group=one)
        equal(tensor, torch.full((10,), 2.0))
    again = dist.new_group([0, 1])
    dist.all_reduce(tensor, group=again)
    equal(tensor, torch.full((10,), 4.0))


@case(2)
def an_error_in_a_batch_leaves_the_group_usable():
    start()
    other = 1 - RANK
    for turn in range(3):
        raises(lambda: dist.batch_isend_irecv([dist.P2POp(dist.irecv, torch.ones(3).to_sparse(), other, tag=turn)]), "SparseCPU")
        dist.distributed_c10d._world.pg_coalesce_state.clear()  # torch's own, which an error leaves behind
        for _ in range(100):
            received = torch.empty(4)
            works = [dist.isend(torch.full((4,), float(RANK)), other), dist.irecv(received, other)]
            for work in works:
                work.wait()
            equal(received, torch.full((4,), float(other)))
        received = torch.empty(4)
        for work in dist.batch_isend_irecv([dist.P2POp(dist.irecv, received, other), dist.P2POp(dist.isend, torch.full((4,), 5.0), other)]):
            work.wait()
        equal(received, torch.full((4,), 5.0))
        dist.all_reduce(received)
        equal(received, torch.full((4,), 10.0))


@case(2)
def views_that_conjugate_or_negate():
    """Their memory has other values than they have. What torch's functions pass on they have resolved, so the backend is called itself."""
    start()
    backend = dist.group.WORLD._get_backend(torch.device("cpu"))
    of = lambda rank: (torch.arange(4.0) + 1j * torch.arange(rank + 1.0, rank + 5)).conj()
    for make in (of, lambda rank: of(rank).imag):
        plain = [make(rank).resolve_conj().resolve_neg().clone() for rank in range(2)]
        assert make(0).is_conj() or make(0).is_neg()
        empty = lambda: torch.empty_like(plain[0])
        has = lambda tensor, values: equal(tensor.resolve_conj().resolve_neg().clone(), values)
        tensor = make(RANK)
        backend.allreduce([tensor]).wait()
        has(tensor, plain[0] + plain[1])
        tensor = make(RANK)
        backend.reduce([tensor], dist.ReduceOptions()).wait()
        has(tensor, plain[0] + plain[1] if RANK == 0 else plain[1])
        tensor = make(RANK)
        backend.broadcast([tensor], dist.BroadcastOptions()).wait()
        has(tensor, plain[0])
        for outputs in ([empty(), empty()], [make(0), make(0)]):
            backend.allgather([outputs], [make(RANK)]).wait()
            for output, values in zip(outputs, plain):
                has(output, values)
        outputs = [make(1), make(1)]
        backend.gather([outputs] if RANK == 0 else [], [make(RANK)], dist.GatherOptions()).wait()
        has(outputs[0], plain[0] if RANK == 0 else plain[1])
        output = empty()
        backend.reduce_scatter([output], [[make(RANK), make(RANK)]]).wait()
        has(output, plain[0] + plain[1])
        backend.alltoall_base(output, make(RANK), [], []).wait()
        has(output, torch.cat([values.chunk(2)[RANK] for values in plain]))


@case(2, alone=True)
def futures_end_where_the_system_has_no_more_threads():
    start()
    dist.all_reduce(torch.ones(10))
    futures = [dist.all_reduce(torch.ones(10), async_op=True).get_future() for _ in range(2)]  # kolo's own thread for them is there
    for future in futures:
        future.wait()
    used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_STACK, (64 << 20, resource.RLIM_INFINITY))
    resource.setrlimit(resource.RLIMIT_AS, (used + (4 << 20), resource.RLIM_INFINITY))
    done = []
    for _ in range(3):
        tensor = torch.ones(10)
        future = dist.all_reduce(tensor, async_op=True).get_future().then(lambda future: (time.sleep(0.1), done.append(future.value())))
        second = dist.all_reduce(torch.ones(10), async_op=True).get_future().then(lambda future: done.append(future.value()))
        future.wait()
        second.wait()
    resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    assert len(done) == 6
    for values in done:
        equal(values[0], torch.full((10,), 2.0))


main()
