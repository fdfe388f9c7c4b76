"""What each rank does in the cases of torch_test.py with calls that c10d coalesces: coalesced_test.py CASE..., or `list`."""
import sys

from ranks import CASES, case, equal, main, start

CASES.clear()  # those of ranks.py itself
if sys.argv[1] != "list":
    import torch
    import torch.distributed as dist

    from ranks import RANK, SIZE


@case(1, 2, 3)
def bools_among_others():
    """A sum of bools is whether there is one; of all others in the list it is the sum."""
    start()
    total = SIZE * (SIZE + 1) / 2

    def made(loss):
        return torch.tensor([RANK == 0, False]) if loss is None else torch.full((2,), RANK + 1, dtype=loss)

    for types in ([None, torch.float32], [torch.float32, None], [torch.int64, None, torch.bfloat16, None], [None, None]):
        for op in (dist.ReduceOp.SUM, dist.ReduceOp.MAX):
            expected = [torch.tensor([True, False]) if dtype is None else torch.full((2,), total if op == dist.ReduceOp.SUM else SIZE).to(dtype)
                        for dtype in types]
            tensors = [made(dtype) for dtype in types]
            with dist._coalescing_manager():
                for tensor in tensors:
                    dist.all_reduce(tensor, op=op)
            equal(tensors, expected)
            inputs, outputs = [made(dtype).repeat(SIZE) for dtype in types], [torch.empty_like(tensor) for tensor in tensors]
            with dist._coalescing_manager():
                for output, one in zip(outputs, inputs):
                    dist.reduce_scatter_tensor(output, one, op=op)
            equal(outputs, expected)


@case(3, TORCH_DISTRIBUTED_DEBUG="DETAIL")
def a_batch_of_two_ranks_is_no_collective():
    """Else torch would find that the third rank has missed one."""
    start()
    dist.barrier()
    backend = dist.group.WORLD._get_backend(torch.device("cpu"))
    assert backend.supports_coalescing
    for turn in range(2):
        if RANK < 2:
            received = torch.empty(4)
            for work in dist.batch_isend_irecv([dist.P2POp(dist.isend, torch.full((4,), float(RANK)), 1 - RANK), dist.P2POp(dist.irecv, received, 1 - RANK)]):
                work.wait()
            equal(received, torch.full((4,), 1.0 - RANK))
        tensor = torch.ones(4)
        dist.all_reduce(tensor)
        equal(tensor, torch.full((4,), 3.0))
        with dist._coalescing_manager(device=torch.device("cpu")):  # this is one
            dist.all_reduce(tensor)
            dist.broadcast(tensor, 0)


main()
