"""DistributedDataParallel with callbacks for when a bucket of gradients is ready and when its
exchange is done.
"""

from collections.abc import Callable

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

BucketDone = Callable[[int, int], None]
"""Called with the bucket's index and its length in bytes."""


def exchanging(model: nn.Module, ready: BucketDone, done: BucketDone) -> DistributedDataParallel:
    """`model` in DistributedDataParallel, averaging as it does by default, with `ready` and `done`
    called around each exchange.
    """
    parallel = DistributedDataParallel(model)

    def exchange(_: object, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:  # type: ignore[name-defined]
        index, num_bytes = bucket.index(), bucket.buffer().nbytes
        ready(index, num_bytes)
        buffer = bucket.buffer().div_(dist.get_world_size())
        work = dist.all_reduce(buffer, async_op=True).get_future()

        def finish(future: torch.futures.Future[list[torch.Tensor]]) -> torch.Tensor:
            done(index, num_bytes)
            return future.value()[0]

        averaged: torch.futures.Future[torch.Tensor] = work.then(finish)
        return averaged

    parallel.register_comm_hook(None, exchange)
    return parallel
