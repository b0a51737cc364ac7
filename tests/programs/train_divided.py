"""A model divided between two ranks: as stages of a pipeline, or with the parameters in parts
(FSDP). One process per rank.

    RANK=0 python train_divided.py pipeline|fsdp STORE

One rank is slow in the forward pass: of a pipeline the first stage, for each microbatch; of FSDP
rank 1. Rank 1 of a pipeline prints what it measured itself: for how long per step it had no
microbatch to compute, up to its last forward pass. All print their losses.
"""

import json
import os
import sys
import time

import torch
import torch.distributed as dist
from descent import Descent
from torch import nn

STEPS, MICROBATCHES, SLOW_S, BATCH, WIDTH = 8, 4, 0.03, 16, 64


class Timed(nn.Module):
    """A layer that takes `seconds` more in its forward pass, and notes when it is called and when
    it returns."""

    def __init__(self, seconds: float) -> None:
        super().__init__()
        self.layer, self.seconds = nn.Linear(WIDTH, WIDTH), seconds
        self.calls: list[tuple[int, int]] = []

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        entered = time.monotonic_ns()
        if self.seconds:
            time.sleep(self.seconds)
        made = torch.relu(self.layer(features))
        self.calls.append((entered, time.monotonic_ns()))
        return made


def train_stages(rank: int) -> tuple[list[float], list[int]]:
    """Losses, which rank 1 has, and its waits in nanoseconds."""
    from torch.distributed.pipelining import PipelineStage, ScheduleGPipe

    layer = Timed(SLOW_S if rank == 0 else 0.0)
    schedule = ScheduleGPipe(
        PipelineStage(layer, rank, 2, torch.device("cpu")),
        MICROBATCHES,
        loss_fn=nn.functional.mse_loss,
    )
    optimizer = Descent(layer.parameters(), 0.1)
    samples, targets = torch.randn(BATCH, WIDTH), torch.zeros(BATCH, WIDTH)
    losses, waits = [], []
    for _ in range(STEPS):
        layer.calls.clear()
        begun, found = time.monotonic_ns(), []
        if rank == 0:
            schedule.step(samples)
        else:
            schedule.step(target=targets, losses=found)
            losses.append(float(torch.stack(found).mean()))
            before = [begun, *(end for _, end in layer.calls[:-1])]
            waits.append(
                sum(start - end for (start, _), end in zip(layer.calls, before, strict=True))
            )
        optimizer.step()
        optimizer.zero_grad()
    return losses, waits


def train_sharded(rank: int) -> tuple[list[float], list[int]]:
    """Losses of this rank's own samples."""
    from torch.distributed.fsdp import fully_shard

    first, second = Timed(SLOW_S if rank == 1 else 0.0), Timed(0.0)
    model = nn.Sequential(first, second)
    for layer in model:
        fully_shard(layer)
    fully_shard(model)
    optimizer = Descent(model.parameters(), 0.1)
    samples, losses = torch.randn(2, BATCH, WIDTH)[rank], []
    for _ in range(STEPS):
        loss = model(samples).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(float(loss.detach()))
    return losses, []


def main() -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    rank = int(os.environ["RANK"])
    dist.init_process_group("gloo", init_method=f"file://{sys.argv[2]}", rank=rank, world_size=2)
    losses, waits = (train_stages if sys.argv[1] == "pipeline" else train_sharded)(rank)
    # not mixed with the other rank's
    os.write(1, (json.dumps({"rank": rank, "losses": losses, "waits": waits}) + "\n").encode())
    dist.barrier()


if __name__ == "__main__":
    main()
