"""What each rank does in the cases of torch_test.py: ranks.py CASE..., or `list`."""
import datetime
import os
import signal
import sys
import threading
import time

CASES = {}


def case(*ranks, alone=False, **variables):
    """Registers a function as a case for these numbers of ranks, in processes of its own or not, with these variables in their environment."""
    def add(function):
        CASES[function.__name__] = (function, ranks, alone or bool(variables), variables)
        return function
    return add


if sys.argv[1] != "list":
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    RANK, SIZE = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    STORE = dist.TCPStore(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), SIZE, RANK == 0)
    starts = 0


def start(seconds=30, backend="kolo"):
    """One store for all: with a new one of env:// for each, a rank may find the one before."""
    global starts
    starts += 1
    dist.init_process_group(backend, store=dist.PrefixStore(f"start{starts}", STORE), rank=RANK, world_size=SIZE, timeout=datetime.timedelta(seconds=seconds))


def held():
    """Open files and threads."""
    return len(os.listdir("/proc/self/fd")), len(os.listdir("/proc/self/task"))


def equal(value, expected):
    torch.testing.assert_close(value, expected, rtol=0, atol=0, equal_nan=True)


def eventually(condition, seconds=20):
    deadline = time.monotonic() + seconds
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.02)
    assert condition()


def raises(call, *parts):
    """The call fails with a RuntimeError whose text has these parts."""
    try:
        call()
    except RuntimeError as error:
        for part in parts:
            assert part in str(error), str(error)
        return str(error)
    raise AssertionError(f"{call} has not failed")


@case(1, 2, 3)
def tensors_of_any_kind():
    """Strided ones, empty ones, and types that kolo has not."""
    start()
    total = SIZE * (SIZE - 1) / 2
    for make in (lambda: torch.full((6, 4), float(RANK)), lambda: torch.full((4, 6), float(RANK)).t(), lambda: torch.full((12, 8), float(RANK))[::2, ::2],
                 lambda: torch.full((), float(RANK)), lambda: torch.empty(0), lambda: torch.full((300, 301), float(RANK)).t()):
        tensor = make()
        dist.all_reduce(tensor)
        equal(tensor, torch.full(tensor.shape, total))
        tensor = make()
        dist.broadcast(tensor, SIZE - 1)
        equal(tensor, torch.full(tensor.shape, SIZE - 1.0))
        blocks = [torch.full_like(make(), -1) for _ in range(SIZE)]
        dist.all_gather(blocks, make())
        for rank, block in enumerate(blocks):
            equal(block, torch.full(block.shape, float(rank)))
    tensor = torch.full((5,), 1 + 2j, dtype=torch.complex64)
    dist.all_reduce(tensor)
    equal(tensor, torch.full((5,), SIZE * (1 + 2j), dtype=torch.complex64))
    for dtype in (torch.float8_e4m3fn, torch.complex128, torch.uint16, torch.bool):
        tensor = torch.full((7,), RANK == 0, dtype=torch.float32).to(dtype)
        dist.broadcast(tensor, 0)
        equal(tensor.to(torch.complex128), torch.ones(7, dtype=torch.complex128))
    tensor = torch.tensor([RANK == 0, False])
    dist.all_reduce(tensor)
    equal(tensor, torch.tensor([True, False]))
    raises(lambda: dist.all_reduce(torch.ones(3).to(torch.float8_e4m3fn)), "Float8_e4m3fn")
    with torch.inference_mode():
        tensor = torch.ones(4, 3).t()
        dist.all_reduce(tensor)
    equal(tensor.clone(), torch.full((3, 4), float(SIZE)))


@case(2, 3)
def blocks_of_any_size():
    start()
    outputs = [torch.empty(rank) for rank in range(SIZE)]
    dist.all_gather(outputs, torch.full((RANK,), float(RANK)))
    equal(outputs[-1], torch.full((SIZE - 1,), SIZE - 1.0))
    inputs = [torch.full((rank + 1, 2), 1.0 + RANK) for rank in range(SIZE)]
    outputs = [torch.empty(2, RANK + 1).t() for _ in range(SIZE)]
    dist.all_to_all(outputs, inputs)
    for rank, output in enumerate(outputs):
        equal(output, torch.full((RANK + 1, 2), 1.0 + rank))
    output = torch.empty(RANK + 1, 2)
    dist.reduce_scatter(output, inputs, op=dist.ReduceOp.AVG)
    equal(output, torch.full((RANK + 1, 2), (1 + SIZE) / 2))
    output = torch.empty(SIZE * (RANK + 1), 2)
    dist.all_to_all_single(output, torch.cat(inputs), [RANK + 1] * SIZE, [rank + 1 for rank in range(SIZE)])
    equal(output[-1], torch.full((2,), float(SIZE)))
    gathered = [torch.empty(2 * rank) for rank in range(SIZE)] if RANK == 1 else None
    dist.gather(torch.full((2 * RANK,), 7.0), gathered, 1)
    assert RANK != 1 or gathered[-1].sum() == 14 * (SIZE - 1)
    raises(lambda: dist.all_to_all_single(torch.empty(SIZE), torch.empty(SIZE + 1)), "does not divide equally")


@case(2)
def works_that_are_dropped_go_on():
    start()
    tensors = [torch.ones(100000)[::2] for _ in range(20)]
    for tensor in tensors:
        dist.all_reduce(tensor, async_op=True)
    dist.barrier()
    eventually(lambda: all(tensor[-1] == 2 for tensor in tensors))  # a strided one is written when its copy is done


@case(2)
def functions_may_wait_for_other_operations():
    """As PowerSGD's do: with one thread for functions, the first would wait for the second for ever."""
    start()
    done = threading.Semaphore(0)

    def follow(depth):
        def function(future):
            tensor = torch.ones(100)
            work = dist.all_reduce(tensor, async_op=True)
            if depth > 0:
                work.get_future().then(follow(depth - 1)).wait()
            else:
                work.wait()
            equal(tensor, torch.full_like(tensor, 2.0))
            done.release()
            return future.value()
        return function

    tensor = torch.ones(1000)
    future = dist.all_reduce(tensor, async_op=True).get_future().then(follow(5))
    future.wait()
    for _ in range(6):
        assert done.acquire(timeout=20)
    equal(tensor, torch.full_like(tensor, 2.0))


@case(2, 3)
def groups_come_and_go():
    for turn in range(2):
        start()
        for round in range(150):
            group = dist.new_group(list(range(SIZE)))
            tensor = torch.ones(10)
            dist.all_reduce(tensor, group=group)
            equal(tensor, torch.full_like(tensor, float(SIZE)))
            dist.destroy_process_group(group)
            if turn == 0 and round == 50:
                dist.barrier()
                before = held()
        dist.barrier()
        eventually(lambda: all(have <= had + 6 for have, had in zip(held(), before)))
        backwards = dist.new_group(list(reversed(range(SIZE))), sort_ranks=False)  # a session of its own
        tensor = torch.full((2,), float(dist.get_rank(backwards)))
        dist.broadcast(tensor, SIZE - 1, group=backwards)
        equal(tensor, torch.zeros(2))
        dist.destroy_process_group()


@case(2)
def a_job_that_ends_takes_all_it_had_along():
    before = held()
    for turn in range(6):
        start()
        backend = dist.group.WORLD._get_backend(torch.device("cpu"))
        backwards = dist.new_group(list(reversed(range(SIZE))), sort_ranks=False)  # a job of its own
        for group in (None, backwards):
            dist.all_reduce(torch.ones(100000), group=group)
        assert dist.all_reduce(torch.ones(10), async_op=True).get_future().wait()
        if turn == 3:
            backend.abort()
        dist.destroy_process_group()
        raises(lambda: backend.allreduce([torch.ones(10)]), "destroyed or aborted")
    del backend, backwards, group
    eventually(lambda: all(have <= had + 1 for have, had in zip(held(), before)))


@case(2, alone=True)
def who_listens_is_told():
    """Torch's flight recorder learns what is done, and who asks how a group has failed."""
    import json
    from torch._C import _distributed_c10d as c10d

    start()
    backend = dist.group.WORLD._get_backend(torch.device("cpu"))
    for _ in range(3):
        dist.all_reduce(torch.ones(10))
    states = lambda: [entry["state"] for entry in json.loads(c10d._dump_fr_trace_json(backend="kolo"))["entries"]]
    eventually(lambda: states() == ["completed"] * 3)
    assert backend.get_error() == c10d.ErrorType.SUCCESS
    if RANK == 0:
        options = dist.BarrierOptions()
        options.timeout = datetime.timedelta(seconds=0.3)
        raises(lambda: backend.barrier(options).wait(), "timeout")
        assert backend.get_error() == c10d.ErrorType.TIMEOUT
    STORE.set(f"told{RANK}", "")
    STORE.wait(["told0", "told1"])


@case(2)
def left_at_once():
    """A rank that has what it wanted goes; the others get theirs all the same."""
    for round in range(40):
        start()
        tensor = torch.ones(1 + round * 5000)
        for _ in range(3):
            dist.all_reduce(tensor)
        dist.barrier()
        dist.destroy_process_group()
        equal(tensor, torch.full_like(tensor, float(SIZE)**3))


@case(3, alone=True)
def a_rank_that_is_killed_is_named():
    start()
    tensor = torch.ones(1 << 20)
    dist.all_reduce(tensor)
    dist.barrier()
    if RANK == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    begin = time.monotonic()
    raises(lambda: [dist.all_reduce(tensor) for _ in range(3)], "rank 1")
    assert time.monotonic() - begin < 2, time.monotonic() - begin


@case(2, alone=True)
def a_rank_that_ends_is_named():
    start()
    tensor = torch.ones(100)
    dist.all_reduce(tensor)
    if RANK == 1:
        return  # without destroying the group
    begin = time.monotonic()
    raises(lambda: [dist.all_reduce(tensor) for _ in range(3)], "rank 1")
    assert time.monotonic() - begin < 5, time.monotonic() - begin


@case(2, alone=True)
def a_rank_that_raises_ends_and_is_named():
    start()
    tensor = torch.ones(100)
    work = dist.all_reduce(tensor, async_op=True)
    work.get_future().wait()
    if RANK == 1:
        threading.Thread(target=lambda: (time.sleep(20), os.abort()), daemon=True).start()
        print("case done", flush=True)
        raise SystemExit(0)
    begin = time.monotonic()
    raises(lambda: [dist.all_reduce(tensor) for _ in range(3)], "rank 1")
    assert time.monotonic() - begin < 5, time.monotonic() - begin


@case(2, alone=True)
def a_rank_that_is_frozen_is_waited_for_no_longer_than_asked():
    start(seconds=1)
    STORE.set(f"process{RANK}", str(os.getpid()))
    other = int(STORE.get(f"process{1 - RANK}"))
    dist.barrier()
    if RANK == 1:
        os.kill(os.getpid(), signal.SIGSTOP)
        return
    begin = time.monotonic()
    raises(lambda: [dist.all_reduce(torch.ones(1 << 20)) for _ in range(3)], "rank 1")
    took = time.monotonic() - begin
    os.kill(other, signal.SIGCONT)
    assert 0.9 < took < 1.5, took


@case(2)
def time_outs_and_mismatches():
    start(seconds=20)
    group = dist.new_group([0, 1], timeout=datetime.timedelta(seconds=0.5))
    other = dist.new_group([0, 1])
    if RANK == 0:
        begin = time.monotonic()
        raises(lambda: dist.barrier(group), " timeout ", "rank 1")
        assert 0.4 < time.monotonic() - begin < 3
        raises(lambda: dist.monitored_barrier(timeout=datetime.timedelta(seconds=0.2)), "Rank 1 failed to pass monitoredBarrier in 200 ms")
    dist.barrier()
    call = (lambda: dist.all_reduce(torch.ones(4), group=other)) if RANK == 0 else (lambda: dist.broadcast(torch.ones(5), 0, group=other))
    raises(lambda: [call() for _ in range(3)], "all_reduce(sum) f32[4]", "broadcast(root 0) f32[5]")
    dist.monitored_barrier()


@case(2)
def children_that_fork():
    start()
    tensor = torch.ones(100)
    dist.all_reduce(tensor)
    child = os.fork()
    if child == 0:
        sys.exit(0)
    assert os.waitpid(child, 0)[1] == 0
    loader = torch.utils.data.DataLoader(torch.arange(40.0), batch_size=4, num_workers=2, multiprocessing_context="fork")
    for batch in loader:
        dist.all_reduce(batch)
    equal(batch, torch.arange(36.0, 40.0) * SIZE)


@case(2)
def buckets_lie_in_memory_that_ranks_share():
    from torch.nn.parallel import DistributedDataParallel

    assert os.environ["DDP_DISABLE_COMM_MEM"] == "0"  # by the package, when torch was imported
    start()
    shared = lambda: sum("memfd:kolo" in line for line in open("/proc/self/maps"))
    model = DistributedDataParallel(torch.nn.Linear(400, 500), gradient_as_bucket_view=True)
    before = shared()
    model(torch.ones(2, 400)).sum().backward()
    assert shared() >= before > 0, (before, shared())
    gradient = model.module.weight.grad
    assert any(int(start, 16) <= gradient.data_ptr() < int(end, 16) for line in open("/proc/self/maps") if "memfd:kolo" in line
               for start, end in [line.split()[0].split("-")])
    equal(gradient, torch.full_like(gradient, 2.0))


@case(2, KOLO_FAKE_NODES="1,1")
def several_nodes():
    start()
    tensor = torch.full((10,), 1.0 + RANK)
    dist.all_reduce(tensor)
    equal(tensor, torch.full_like(tensor, 3.0))
    assert "OverNodes" in repr(dist.group.WORLD._get_backend(torch.device("cpu")))
    future = dist.all_reduce(tensor, async_op=True).get_future()
    equal(future.wait()[0], torch.full_like(tensor, 6.0))
    with dist._coalescing_manager(device=torch.device("cpu"), async_ops=True) as batch:
        several = [tensor, torch.ones(5)]
        for one in several:
            dist.all_reduce(one)
    batch.wait()
    equal(several[0], torch.full_like(tensor, 12.0))
    equal(several[1], torch.full((5,), 2.0))
    if RANK == 0:
        dist.send(tensor, 1, tag=3)
    else:
        tensor.zero_()
        dist.recv(tensor, 0, tag=3)
    objects = [None] * SIZE
    dist.all_gather_object(objects, {"rank": RANK})
    assert objects == [{"rank": 0}, {"rank": 1}], objects
    dist.barrier()
    dist.monitored_barrier()
    pair = dist.new_group([0, 1])
    dist.all_reduce(tensor.fill_(1.5), group=pair)
    alone = [dist.new_group([rank]) for rank in range(SIZE)][RANK]  # within a node
    dist.all_reduce(tensor, group=alone)
    equal(tensor, torch.full_like(tensor, 3.0))
    assert "KoloBackend" in repr(alone._get_backend(torch.device("cpu")))
    split = dist.split_group(split_ranks=[[0, 1]])
    dist.all_reduce(tensor, group=split)
    equal(tensor, torch.full_like(tensor, 6.0))
    assert "OverNodes" in repr(split._get_backend(torch.device("cpu")))
    dist.barrier()


@case(3, KOLO_FAKE_NODES="1,2")
def a_rank_that_is_killed_is_named_over_several_nodes():
    start()
    tensor = torch.ones(1000)
    dist.all_reduce(tensor)
    if RANK == 2:
        os.kill(os.getpid(), signal.SIGKILL)
    begin = time.monotonic()
    raises(lambda: [dist.all_reduce(tensor) for _ in range(100)], "kolo: ", "rank 2 (", "is gone")
    assert time.monotonic() - begin < 2, time.monotonic() - begin


TRAINS = """
import hashlib, torch, torch.distributed as dist
dist.init_process_group("kolo")
torch.manual_seed(1)
model = torch.nn.Sequential(torch.nn.Linear(64, 300), torch.nn.ReLU(), torch.nn.Linear(300, 10))
parallel = torch.nn.parallel.DistributedDataParallel(model, gradient_as_bucket_view=True)
optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
torch.manual_seed(2 + dist.get_rank())
for _ in range(50):
    optimizer.zero_grad()
    parallel(torch.randn(16, 64)).square().sum().backward()
    optimizer.step()
digest = hashlib.sha256(b"".join(p.detach().numpy().tobytes() for p in model.parameters())).hexdigest()
print(f"backend {type(dist.group.WORLD._get_backend(torch.device('cpu'))).__name__} parameters {digest}\\n", end="", flush=True)
dist.destroy_process_group()
"""


@case(1)
def trains_to_the_same_bits_under_mpirun_on_one_node_and_over_mpi_between_nodes():
    import shutil
    import subprocess

    if not shutil.which("mpicxx"):  # the wheel has no MPI then
        return
    environment = {name: value for name, value in os.environ.items() if name not in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")}
    lines = set()
    for nodes in ("", "", "1,1", "1,1"):
        ran = subprocess.run(["mpirun", "--allow-run-as-root", "--oversubscribe", "-np", "2", sys.executable, "-c", TRAINS], text=True, timeout=60,
                             env=environment | ({"KOLO_FAKE_NODES": nodes} if nodes else {}), stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        assert ran.returncode == 0 and "gloo" not in ran.stdout, ran.stdout
        said = [line for line in ran.stdout.splitlines() if line.startswith("backend KoloBackend parameters ")]
        assert len(said) == 2, ran.stdout
        lines.update(said)
    assert len(lines) == 1, lines


@case(1)
def variables_of_mpirun():
    from kolo._autoload import autoload

    kept = dict(os.environ)
    try:
        for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"):
            os.environ.pop(name, None)
        os.environ.update(OMPI_COMM_WORLD_RANK="3", OMPI_COMM_WORLD_SIZE="4", OMPI_COMM_WORLD_LOCAL_RANK="1", OMPI_COMM_WORLD_LOCAL_SIZE="2")
        autoload()
        assert os.environ["RANK"] == "3" and os.environ["WORLD_SIZE"] == "4" and os.environ["LOCAL_RANK"] == "1"
        assert "MASTER_ADDR" not in os.environ  # on several nodes nobody knows it
        os.environ["LOCAL_WORLD_SIZE"] = "4"
        os.environ["RANK"] = "0"  # torchrun's go first
        autoload()
        assert os.environ["RANK"] == "0" and "MASTER_ADDR" not in os.environ
        del os.environ["RANK"]
        autoload()
        assert os.environ["RANK"] == "3" and os.environ["MASTER_ADDR"] == "127.0.0.1" and 20000 <= int(os.environ["MASTER_PORT"]) < 30000
    finally:
        os.environ.clear()
        os.environ.update(kept)


@case(2, KOLO_IMPERSONATE="gloo")
def known_as_gloo():
    from torch.nn.parallel import DistributedDataParallel

    start(backend="gloo")
    assert "Kolo" in repr(dist.group.WORLD._get_backend(torch.device("cpu")))
    model = DistributedDataParallel(torch.nn.Linear(4, 4))
    assert model._get_ddp_logging_data()["backend_name"] == "gloo"
    model(torch.ones(2, 4)).sum().backward()


def main():
    if sys.argv[1] == "list":
        for name, (_, ranks, alone, variables) in CASES.items():
            for size in ranks:
                print(name, size, int(alone), *(f"{variable}={value}" for variable, value in variables.items()))
        return
    for name in sys.argv[1:]:
        begin = time.monotonic()
        CASES[name][0]()
        print(f"case done: {name}, {time.monotonic() - begin:.1f} s", flush=True)
        if dist.is_initialized() and not CASES[name][2]:
            dist.destroy_process_group()


if __name__ == "__main__":
    main()
