"""What is made of Horovod's operations, as each rank of torch_test.py does it: horovod_training_test.py CASE..., or `list`."""
import os
import sys

from ranks import CASES, case, equal, main

CASES.clear()  # those of ranks.py itself
if sys.argv[1] != "list":
    import torch

    import kolo.horovod.torch as hvd

    os.environ |= {"TORCHELASTIC_USE_AGENT_STORE": "True", "TORCHELASTIC_RESTART_COUNT": "0"}  # as under torchrun, the store is there: that of ranks.py
    RANK, SIZE = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])


def full(value, *shape, dtype=None):
    return torch.full(shape or (3,), value, dtype=dtype)


def model_and_data():
    torch.manual_seed(7)
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 2))
    return model, torch.randn(SIZE, 6, 4)


def trained_alone(make, steps=3, scale=1.0):
    """The parameters after steps with the gradients of all ranks."""
    model, data = model_and_data()
    optimizer = make(model.parameters())
    for _ in range(steps):
        optimizer.zero_grad()
        for batch in data:
            (model(batch).square().mean() * scale / SIZE).backward()
        optimizer.step()
    return list(model.parameters())


@case(1, 2, 3)
def optimizers():
    hvd.init()

    def sgd(parameters):
        return torch.optim.SGD(parameters, lr=0.1, momentum=0.9)

    def check(expected, passes=1, tolerance=1e-6, **options):
        model, data = model_and_data()
        optimizer = hvd.DistributedOptimizer(sgd(model.parameters()), model.named_parameters(), backward_passes_per_step=passes,
                                             **{name: option(model) if callable(option) and name == "groups" else option
                                                for name, option in options.items()})
        assert isinstance(optimizer, torch.optim.SGD)
        for _ in range(3):
            optimizer.zero_grad()
            for part in data[RANK].chunk(passes):
                model(part).square().mean().div(passes).backward()
            optimizer.step()
        for parameter, other in zip(model.parameters(), expected):
            torch.testing.assert_close(parameter, other, rtol=tolerance, atol=tolerance)
        return optimizer

    expected = trained_alone(sgd)
    check(expected)
    check(expected, passes=2)
    check(expected, gradient_predivide_factor=4.0)
    check(expected, num_groups=2)
    check(expected, num_groups=2, gradient_predivide_factor=4.0)
    check(expected, groups=lambda model: [[model[0].weight, model[2].bias]])
    check(expected, compression=hvd.Compression.fp16, tolerance=1e-3)
    check(trained_alone(sgd, scale=SIZE), op=hvd.Sum, tolerance=1e-5)
    if SIZE == 1:
        return hvd.shutdown()
    model, data = model_and_data()
    optimizer = hvd.DistributedOptimizer(sgd(model.parameters()))
    model(data[RANK]).sum().backward()
    optimizer.synchronize()
    with optimizer.skip_synchronize():
        optimizer.step()
    optimizer.zero_grad()
    if RANK == 0:  # the others' gradients are zeros
        model(data[0]).sum().backward()
    optimizer.step()
    assert len({tuple(value) for value in hvd.allgather_object(model[2].bias.tolist())}) == 1
    model(data[RANK]).sum().backward()
    for call in (optimizer.zero_grad, lambda: model(data[RANK]).sum().backward()):
        try:
            call()
        except AssertionError:
            continue
        raise SystemExit("a gradient in flight was lost")
    optimizer.synchronize()
    model, data = model_and_data()
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), model.named_parameters(), op=hvd.Adasum)
    model(data[0]).square().mean().backward()  # equal steps: Adasum makes their mean of them
    optimizer.step()
    alone, _ = model_and_data()
    alone(data[0]).square().mean().backward()
    for parameter, other in zip(model.parameters(), alone.parameters()):
        torch.testing.assert_close(parameter, other - 0.1 * other.grad, rtol=1e-5, atol=1e-6)
    model, data = model_and_data()
    given = torch.optim.SGD(model.parameters(), lr=0.1)
    torch.optim.lr_scheduler.StepLR(given, 1)  # replaces step() of the given optimizer
    optimizer = hvd.DistributedOptimizer(given)
    model(data[RANK]).sum().backward()
    optimizer.step()
    assert len({tuple(value) for value in hvd.allgather_object(model[2].weight[0].tolist())}) == 1
    for as_dense in (False, True):
        table = torch.nn.Embedding(5, 2, sparse=True)
        torch.nn.init.zeros_(table.weight)
        optimizer = hvd.DistributedOptimizer(torch.optim.SGD(table.parameters(), lr=1.0), sparse_as_dense=as_dense)
        table(torch.tensor([RANK, 4])).sum().backward()
        optimizer.step()
        equal(table.weight.grad.to_dense()[:, 0], torch.tensor([1 / SIZE] * SIZE + [0.0] * (4 - SIZE) + [1.0]))
        assert table.weight.grad.is_sparse
        optimizer.zero_grad()
        if RANK == 0:
            table(torch.tensor([4])).sum().backward()
        optimizer.step()
        equal(table.weight.grad.to_dense()[4], full(1.0 / SIZE, 2))
    first = hvd.add_process_set([0])
    model, data = model_and_data()
    optimizer = hvd.DistributedOptimizer(sgd(model.parameters()), process_set=first)
    model(data[RANK]).sum().backward()
    optimizer.step()
    assert len({tuple(value) for value in hvd.allgather_object(model[2].weight[0].tolist())}) == SIZE
    assert hvd.remove_process_set(first)
    hvd.shutdown()


@case(2)
def states_of_optimizers():
    hvd.init()
    model, data = model_and_data()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.5 if RANK else 0.25)
    if RANK == 0:  # as from a checkpoint
        model(data[0]).sum().backward()
        optimizer.step()
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)
    assert optimizer.param_groups[0]["lr"] == 0.25
    moments = [state["exp_avg"].flatten().tolist() for state in optimizer.state.values()]
    assert len(moments) == 4 and hvd.allgather_object(moments) == [moments] * 2
    assert all(state["step"].item() == 1 for state in optimizer.state.values())
    hvd.shutdown()


@case(2, 3)
def batch_normalisation():
    hvd.init()
    torch.manual_seed(3)
    batches = [torch.randn(rank + 2, 4, 5) for rank in range(SIZE)]
    scores = [torch.randn(rank + 2, 4, 5) for rank in range(SIZE)]
    one, all_ranks = torch.nn.BatchNorm1d(4), hvd.SyncBatchNorm(4)
    whole, mine = torch.cat(batches).requires_grad_(), batches[RANK].clone().requires_grad_()
    (one(whole) * torch.cat(scores)).sum().backward()
    output = all_ranks(mine)
    (output * scores[RANK]).sum().backward()
    begin = sum(len(batch) for batch in batches[:RANK])

    def close(a, b):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)

    close(mine.grad, whole.grad[begin:begin + len(mine)])
    close(hvd.allreduce(all_ranks.weight.grad, op=hvd.Sum), one.weight.grad)
    close(all_ranks.running_mean, one.running_mean)
    close(all_ranks.running_var, one.running_var)
    all_ranks.eval(), one.eval()
    close(all_ranks(mine), one(mine))
    hvd.shutdown()


@case(2)
def elastic_states():
    hvd.init()
    model, _ = model_and_data()
    state = hvd.elastic.TorchState(model=model, optimizer=torch.optim.SGD(model.parameters(), lr=1.0), epoch=RANK)
    resets, seen = [], []
    state.register_reset_callbacks([lambda: resets.append(1)])

    @hvd.elastic.run
    def train(state):
        seen.append(state.epoch)
        if len(seen) == 1:
            state.epoch = 5
            state.commit()
            state.epoch = 7
            with torch.no_grad():
                model[0].bias.fill_(9.0)
            hvd.allreduce(torch.ones(4 + RANK), name="differs")
        if len(seen) == 2:
            state.on_hosts_updated(0, None)
            state.commit()
        return "done"

    assert train(state) == "done"
    assert seen == [0, 5, 5] and len(resets) == 2 and model[0].bias.max() < 9
    sampler = hvd.elastic.ElasticSampler(list(range(10)), shuffle=False)
    assert len(list(sampler)) == 5
    sampler.record_batch(0, 2)
    hvd.elastic.TorchState(sampler=sampler).sync()
    assert sampler.processed_num == 4 and len(sampler) == 3
    hvd.shutdown()


@case(2)
def optimizers_go_on_from_a_commit():
    """An operation fails while gradients are being reduced: those are forgotten, and training goes on as if nothing had been."""
    hvd.init()
    for passes in (1, 2):
        model, data = model_and_data()
        optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), model.named_parameters(), backward_passes_per_step=passes)
        state = hvd.elastic.TorchState(model=model, optimizer=optimizer)
        turns = []

        @hvd.elastic.run
        def train(state):
            turns.append(1)
            for step in range(3):
                optimizer.zero_grad()
                for part in data[RANK].chunk(passes):
                    model(part).square().mean().div(passes).backward()
                    if len(turns) == 1 and step == 1:
                        hvd.allreduce(torch.ones(4 + RANK), name="differs")
                optimizer.step()

        train(state)
        assert len(turns) == 2
        for parameter, other in zip(model.parameters(), trained_alone(lambda parameters: torch.optim.SGD(parameters, lr=0.1))):
            torch.testing.assert_close(parameter, other, rtol=1e-6, atol=1e-6)
    hvd.shutdown()


main()
