"""Batch normalisation over the batches of all ranks."""
import itertools

import torch
from torch.nn.modules.batchnorm import _BatchNorm

from kolo.horovod.torch import basics
from kolo.horovod.torch.mpi_ops import Sum, allreduce

_layers = itertools.count()


class SyncBatchNorm(_BatchNorm):
    """torch.nn.BatchNorm1d, 2d and 3d with the mean and variance of the batches of all ranks, whatever their sizes; on any device.

    Every rank calls the layers in the same order, forward and back.
    """

    def __init__(self, *arguments, **options):
        super().__init__(*arguments, **options)
        self._name = f"sync_batch_norm.{next(_layers)}"

    def _check_input_dim(self, input):
        if input.dim() < 2:
            raise ValueError(f"SyncBatchNorm: the input has {input.dim()} dimensions; pass 2 or more, batch and channels first")

    def _summed(self, values, what):
        return allreduce(values, op=Sum, name=f"{self._name}.{what}")

    def forward(self, input):
        self._check_input_dim(input)
        if not (self.training or self.running_mean is None) or basics.size() == 1:
            return super().forward(input)
        others = [dimension for dimension in range(input.dim()) if dimension != 1]
        shape = [1, -1] + [1] * (input.dim() - 2)
        values = input.float() if input.dtype in (torch.float16, torch.bfloat16) else input
        count = values.numel() // max(1, values.size(1))
        total = self._summed(torch.cat([values.sum(others), values.new_full((1,), count)]), "sum")
        n = total[-1].detach()
        if n <= 1:
            raise ValueError(f"SyncBatchNorm: {int(n)} values per channel on all ranks together; training needs 2 at least")
        mean = total[:-1] / n
        apart = values - mean.view(shape)
        variance = self._summed(apart.square().sum(others), "squares") / n
        if self.training and self.track_running_stats:
            with torch.no_grad():
                self.num_batches_tracked.add_(1)
                part = 1 / self.num_batches_tracked.item() if self.momentum is None else self.momentum
                self.running_mean.lerp_(mean.to(self.running_mean.dtype), part)
                self.running_var.lerp_((variance * n / (n - 1)).to(self.running_var.dtype), part)
        output = apart * (variance + self.eps).rsqrt().view(shape)
        if self.affine:
            output = output * self.weight.view(shape) + self.bias.view(shape)
        return output.to(input.dtype)
