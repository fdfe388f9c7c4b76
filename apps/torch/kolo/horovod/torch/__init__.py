"""Horovod's API for PyTorch on kolo: `import kolo.horovod.torch as hvd` instead of `import horovod.torch as hvd`."""
from kolo.horovod.exceptions import HorovodInternalError, HostsUpdatedInterrupt, InvalidArgumentError, NameInFlightError
from kolo.horovod.torch.basics import *  # noqa: F401,F403
from kolo.horovod.torch.compression import Compression
from kolo.horovod.torch.mpi_ops import (Adasum, Average, Max, Min, Product, ReduceOp, Sum, allgather, allgather_async, allreduce, allreduce_,
                                        allreduce_async, allreduce_async_, alltoall, alltoall_async, barrier, broadcast, broadcast_, broadcast_async,
                                        broadcast_async_, grouped_allgather, grouped_allgather_async, grouped_allreduce, grouped_allreduce_,
                                        grouped_allreduce_async, grouped_allreduce_async_, grouped_reducescatter, grouped_reducescatter_async, join,
                                        poll, reducescatter, reducescatter_async, sparse_allreduce_async, synchronize)
from kolo.horovod.torch.functions import (allgather_object, broadcast_object, broadcast_object_fn, broadcast_optimizer_state, broadcast_parameters)
from kolo.horovod.torch.optimizer import DistributedOptimizer
from kolo.horovod.torch.sync_batch_norm import SyncBatchNorm
from kolo.horovod.torch import elastic
