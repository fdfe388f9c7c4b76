"""What each rank of two does in the cases of its own of `acceptance`: torchrun --nproc-per-node 2 acceptance_ranks.py bounded|idle"""
import os
import resource
import sys
import time

import torch
import torch.distributed as dist

CALLS, SHAPES, GROUPS, IDLE_SECONDS = 1_000_000, 100, 1000, 10


def resident():
    return int(open("/proc/self/statm").read().split()[1]) * resource.getpagesize()


def held():
    """Open files and threads."""
    return len(os.listdir("/proc/self/fd")), len(os.listdir("/proc/self/task"))


def reduces(calls, offset):
    tensors = [torch.ones(offset + i) for i in range(SHAPES)]
    for i in range(calls):
        dist.all_reduce(tensors[i % SHAPES], op=dist.ReduceOp.MAX)


def groups(count):
    for _ in range(count):
        group = dist.new_group([0, 1])
        dist.all_reduce(torch.ones(10), group=group)
        dist.destroy_process_group(group)


def loads(method):
    for batch in torch.utils.data.DataLoader(torch.arange(40.0), batch_size=4, num_workers=2, multiprocessing_context=method):
        dist.all_reduce(batch)


def forks():
    child = os.fork()
    if child == 0:
        sys.exit(0)
    assert os.waitpid(child, 0)[1] == 0
    dist.all_reduce(torch.ones(10))


def children():
    loads("fork")
    loads("spawn")
    forks()


def bounded():
    """Memory, files and threads do not grow with what was."""
    reduces(10_000, 1)
    groups(100)
    children()
    time.sleep(3)  # threads that have nothing to do end
    before, files_and_threads = resident(), held()
    for part in range(10):
        reduces(CALLS // 10, 1 + part)
        groups(GROUPS // 10)
    children()
    time.sleep(3)
    grown, now = resident() - before, held()
    print(f"bounded: {grown / 1e6:.1f} MB more, {now} files and threads after {files_and_threads}", flush=True)
    assert grown < 10_000_000 and now <= files_and_threads


def idle():
    dist.all_reduce(torch.ones(10))
    time.sleep(1)
    begin = time.process_time()
    time.sleep(IDLE_SECONDS)
    part = (time.process_time() - begin) / IDLE_SECONDS
    dist.barrier()
    print(f"idle: {100 * part:.2f} % of a core", flush=True)


if __name__ == "__main__":
    torch.set_num_threads(1)
    dist.init_process_group("kolo")
    {"bounded": bounded, "idle": idle}[sys.argv[1]]()
    dist.destroy_process_group()
