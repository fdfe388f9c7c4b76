"""An optimizer whose gradients are reduced over the ranks while backward() still makes others."""
import contextlib
import functools
import warnings

import torch

from kolo.horovod.torch import basics
from kolo.horovod.torch.basics import global_process_set
from kolo.horovod.torch.compression import Compression
from kolo.horovod.torch.mpi_ops import (Adasum, Average, ReduceOp, Sum, allreduce_async_, compressed, grouped_allreduce_async_, sparse_allreduce_async,
                                        synchronize)


class _Unit:
    """Gradients that are reduced together: of one parameter, or of a group."""

    def __init__(self, name, parameters, passes):
        self.name, self.parameters, self.passes = name, parameters, passes
        self.sparse_dims = 0  # of the gradient, if the last one was sparse
        self.done()

    def done(self):
        self.left = dict.fromkeys(self.parameters, self.passes)  # backward passes until a gradient is complete
        self.finish = None  # waits for the reduction, and puts its result in place; None: it is not submitted

    def complete(self):
        return all(left <= 0 for left in self.left.values())


def _check_names(named_parameters, groups):
    """The parameters' names: those given, which must be different and name all, or their places."""
    parameters = [parameter for group in groups for parameter in group["params"]]
    if named_parameters is None:
        return {parameter: f"noname.{i}.{j}" for i, group in enumerate(groups) for j, parameter in enumerate(group["params"])}
    named = list(named_parameters)
    if any(not isinstance(pair, tuple) or len(pair) != 2 for pair in named):
        raise ValueError("named_parameters: pass pairs of a name and a parameter, as model.named_parameters() has them")
    names = [name for name, _ in named]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise ValueError(f"named_parameters: {', '.join(twice)} appear twice; names must differ")
    found = {parameter: name for name, parameter in named}
    missing = sum(parameter not in found for parameter in parameters)
    if missing:
        raise ValueError(f"named_parameters: {missing} of the optimizer's {len(parameters)} parameters have no name; name all, or none")
    return found


def _in_groups(groups, num_groups, parameters):
    """Lists of parameters that are reduced together; those in none are reduced alone."""
    if isinstance(groups, int):
        num_groups, groups = groups, None
    if num_groups < 0:
        raise ValueError(f"num_groups={num_groups}: pass 0 for none, or more")
    if groups is None:
        count = min(num_groups, len(parameters))
        return [parameters[i * len(parameters) // count:(i + 1) * len(parameters) // count] for i in range(count)]
    groups = [list(group) for group in groups]
    flat = [parameter for group in groups for parameter in group]
    if any(not isinstance(parameter, torch.Tensor) for parameter in flat) or len(set(flat)) != len(flat):
        raise ValueError("groups: pass lists of parameters, each in one of them at most")
    return [group for group in ([parameter for parameter in group if parameter in set(parameters)] for group in groups) if group]


def _zeros(parameter, sparse_dims):
    """A gradient for one that was not made, of the kind that the other ranks have."""
    if not sparse_dims:
        return torch.zeros_like(parameter)
    return torch.sparse_coo_tensor(torch.empty(sparse_dims, 0, dtype=torch.long), parameter.new_empty(0, *parameter.shape[sparse_dims:]), parameter.shape,
                                   device=parameter.device, check_invariants=False)


class _Distributed:
    """What both kinds of optimizers have: it comes before the class of the optimizer they are made of."""

    def _begin(self, named_parameters, options):
        self._options = options
        self._parameter_names = _check_names(named_parameters, self.param_groups)
        self._synchronized = False
        self._should_synchronize = True

    @contextlib.contextmanager
    def skip_synchronize(self):
        """A step() in this context does not wait for, nor reduce, what synchronize() has reduced already."""
        self._should_synchronize = False
        try:
            yield
        finally:
            self._should_synchronize = True


class _Reducing(_Distributed):
    """Reduces gradients."""

    def _begin(self, named_parameters, options):
        super()._begin(named_parameters, options)
        self._units = {}
        if not options["process_set"].included():
            return
        parameters = [parameter for group in self.param_groups for parameter in group["params"] if parameter.requires_grad]
        passes = options["backward_passes_per_step"]
        for group in _in_groups(options["groups"], options["num_groups"], parameters):
            unit = _Unit(f"{self._parameter_names[group[0]]} and {len(group) - 1} more", group, passes)
            self._units.update(dict.fromkeys(group, unit))
        for parameter in parameters:
            self._units.setdefault(parameter, _Unit(self._parameter_names[parameter], [parameter], passes))
        if options["process_set"].size() > 1:
            self._hooks = [parameter.register_post_accumulate_grad_hook(self._arrived) for parameter in parameters]

    def _all_units(self):
        return dict.fromkeys(self._units.values())

    def set_backward_passes_per_step(self, passes):
        for unit in self._all_units():
            unit.passes = passes
            unit.done()

    def _arrived(self, parameter):
        unit = self._units[parameter]
        if unit.finish or unit.left[parameter] <= 0:
            raise AssertionError(f"'{self._parameter_names[parameter]}' got more gradients than backward_passes_per_step={unit.passes} before step(); "
                                 "raise that number, or call step() or synchronize() in between")
        unit.left[parameter] -= 1
        if unit.complete():
            self._submit(unit)

    def _submit(self, unit):
        options = self._options
        scales = {}
        if options["gradient_predivide_factor"] != 1:  # Average only
            factor = options["gradient_predivide_factor"]
            scales = {"prescale_factor": 1 / factor, "postscale_factor": factor / options["process_set"].size()}
        op = Sum if scales else options["op"]
        for parameter in unit.parameters:
            if parameter.grad is None:
                parameter.grad = _zeros(parameter, unit.sparse_dims)
        common = {"name": unit.name, "op": op, "process_set": options["process_set"]}
        as_dense = options["sparse_as_dense"] or len(unit.parameters) > 1
        if unit.parameters[0].grad.is_sparse and not as_dense:
            unit.sparse_dims = unit.parameters[0].grad.sparse_dim()
            unit.finish = functools.partial(self._finish_sparse, unit, sparse_allreduce_async(unit.parameters[0].grad, **(common | {"op": options["op"]})))
            return
        gradients = (parameter.grad.to_dense() if parameter.grad.is_sparse else parameter.grad for parameter in unit.parameters)
        kind = "allreduce" if len(unit.parameters) == 1 else "grouped_allreduce"
        tensors, contexts = compressed(kind, gradients, options["compression"], unit.name, options["process_set"])
        handle = (allreduce_async_(tensors[0], **common, **scales) if len(tensors) == 1 else grouped_allreduce_async_(tensors, **common, **scales))
        unit.finish = functools.partial(self._finish, unit, handle, tensors, contexts)

    def _finish(self, unit, handle, tensors, contexts):
        synchronize(handle)
        for parameter, tensor, context in zip(unit.parameters, tensors, contexts):
            result = self._options["compression"].decompress(tensor, context)
            if parameter.grad.is_sparse:  # some optimizers take no others
                parameter.grad = result.to_sparse(parameter.grad.sparse_dim())
            elif result.data_ptr() != parameter.grad.data_ptr():
                parameter.grad.copy_(result)

    def _finish_sparse(self, unit, function):
        unit.parameters[0].grad = function()

    @torch.no_grad()
    def synchronize(self):
        """Waits until all gradients are reduced. Those that this rank has not made count as they are, or as zeros: the other ranks wait for them."""
        units = self._all_units() if self._options["process_set"].included() and self._options["process_set"].size() > 1 else ()
        failure = None
        for unit in units:
            if not unit.finish:
                self._submit(unit)
        for unit in units:
            try:
                unit.finish()
            except Exception as error:  # the others are waited for, too: they use the gradients
                failure = failure or error
            unit.done()
        self._synchronized = True
        if failure:
            raise failure

    def step(self, closure=None):
        if self._should_synchronize:
            if self._synchronized:
                warnings.warn("optimizer.step() called without optimizer.skip_synchronize() context after optimizer.synchronize(): the gradients are "
                              "reduced once more, which takes time, and undoes what was done to them on one rank only")
            self.synchronize()
        self._synchronized = False
        return super().step(closure)

    def load_state_dict(self, *arguments, **options):
        """Forgets the gradients that are being reduced, too: they are of the state that is given up."""
        for unit in self._all_units():
            unit.done()
        self._synchronized = False
        return super().load_state_dict(*arguments, **options)

    def zero_grad(self, *arguments, **options):
        if any(unit.finish for unit in self._units.values()):
            raise AssertionError("optimizer.zero_grad() between loss.backward() and optimizer.step() or optimizer.synchronize(): gradients are being reduced")
        return super().zero_grad(*arguments, **options)


class _Delta(_Distributed):
    """Every rank takes a step of its own; how far the parameters went is combined by Adasum."""

    @torch.no_grad()
    def synchronize(self):
        """Nothing: there are no reduced gradients."""

    def step(self, closure=None):
        process_set = self._options["process_set"]
        if not process_set.included() or process_set.size() == 1:
            return super().step(closure)
        parameters = [parameter for group in self.param_groups for parameter in group["params"] if parameter.requires_grad]
        before = [parameter.detach().clone() for parameter in parameters]
        loss = super().step(closure)
        compression = self._options["compression"]
        with torch.no_grad():
            deltas = [compression.compress(parameter - start) for parameter, start in zip(parameters, before)]
            handles = [allreduce_async_(delta, name=f"delta of {self._parameter_names[parameter]}", op=Adasum, process_set=process_set)
                       for parameter, (delta, _) in zip(parameters, deltas)]
            for parameter, start, (delta, context), handle in zip(parameters, before, deltas, handles):
                synchronize(handle)
                parameter.copy_(start + compression.decompress(delta, context))
        return loss


def DistributedOptimizer(optimizer, named_parameters=None, compression=Compression.none, backward_passes_per_step=1, op=Average,
                         gradient_predivide_factor=1.0, num_groups=0, groups=None, sparse_as_dense=False, process_set=global_process_set):
    """An optimizer of the same class, with the same parameters and state, whose step() uses gradients reduced over the ranks.

    named_parameters          pairs as of model.named_parameters(); equal names on every rank
    backward_passes_per_step  gradients are added up for so many backward passes, and then reduced; not divided by it
    op                        Average, Sum, …; Adasum: every rank takes its own step, and these are combined
    gradient_predivide_factor  with Average: gradients are divided by it before they are added, and by size / it afterwards
    num_groups, groups        how many, or which, parameters are reduced together (sparse gradients among them as dense ones)
    sparse_as_dense           sparse gradients are made dense; otherwise those of all ranks are gathered
    process_set               on ranks that are not in it the optimizer is the given one
    """
    if gradient_predivide_factor != 1.0 and op != Average:
        raise ValueError(f"gradient_predivide_factor={gradient_predivide_factor} needs op=Average, and it is {ReduceOp(op).name}")
    if backward_passes_per_step < 1:
        raise ValueError(f"backward_passes_per_step={backward_passes_per_step}: pass 1 or more")
    kind = _Delta if op == Adasum else _Reducing
    made = type(optimizer.__class__.__name__, (kind, optimizer.__class__), {})
    distributed = made.__new__(made)
    distributed.__dict__.update((name, value) for name, value in optimizer.__dict__.items() if name != "step")  # a scheduler's: of the given optimizer
    basics.job()
    distributed._begin(named_parameters, {"compression": compression, "backward_passes_per_step": backward_passes_per_step, "op": op,
                                          "gradient_predivide_factor": gradient_predivide_factor, "num_groups": num_groups, "groups": groups,
                                          "sparse_as_dense": sparse_as_dense, "process_set": process_set})
    return distributed
