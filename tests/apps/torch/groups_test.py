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
    """Their memory has other values than they have."""
    start()
    values = lambda: torch.arange(4, dtype=torch.float32) + (RANK + 1) * 1j
    of = lambda rank: (torch.arange(4, dtype=torch.float32) + (rank + 1) * 1j).conj()
    makes = ((lambda: values().conj(), of, torch.complex64), (lambda: values().conj().imag, lambda rank: of(rank).imag, torch.float32))
    for make, expected, dtype in makes:
        assert make().is_conj() or make().is_neg()
        if dtype == torch.float32:  # of the others torch itself wants the values
            total = (expected(0) + expected(1)).resolve_neg()
            tensor = make()
            dist.all_reduce(tensor)
            equal(tensor, total)
            tensor = make()
            dist.reduce(tensor, 0)
            assert RANK == 1 or torch.equal(tensor, total)
            output = torch.empty(4)
            dist.reduce_scatter(output, [make(), make()])
            equal(output, total)
            output = torch.empty(2)
            dist.reduce_scatter_tensor(output, make())
            equal(output, total.chunk(2)[RANK])
        tensor = make()
        dist.broadcast(tensor, 1)
        equal(tensor.clone(), expected(1).clone())
        outputs = [torch.empty(4, dtype=dtype) for _ in range(2)]
        dist.all_gather(outputs, make())
        equal(outputs, [expected(0).clone(), expected(1).clone()])
        outputs = [make(), make()]
        dist.all_gather(outputs, expected(RANK))
        equal([output.clone() for output in outputs], [expected(0).clone(), expected(1).clone()])
        gathered = torch.empty(8, dtype=dtype)
        dist.all_gather_into_tensor(gathered, make())
        equal(gathered, torch.cat([expected(0), expected(1)]))
        dist.gather(make(), outputs if RANK == 0 else None, 0)
        assert RANK == 1 or torch.equal(outputs[1], expected(1))
        output = torch.empty(4, dtype=dtype)
        dist.scatter(output, [make(), make()] if RANK == 1 else None, 1)
        equal(output, expected(1).clone())
        output = torch.empty(4, dtype=dtype)
        dist.all_to_all_single(output, make())
        equal(output, torch.cat([expected(rank).chunk(2)[RANK] for rank in range(2)]))
        if RANK == 0:
            dist.send(make(), 1)
        else:
            dist.recv(output, 0)
            equal(output, expected(0).clone())


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
