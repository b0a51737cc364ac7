"""A model divided between two ranks, one of which has a fault. Started by torchrun.

    train_in_parts.py slow-stage|stage-data|stage-alone|by-hand|sharded-data|sharded-exchange IMAGES STEPS

`slow-stage`: of a pipeline the first stage computes ten times as much. `stage-data`: it waits for
images that its one worker decodes many times. `stage-alone`: a pipeline of equal stages with as few
microbatches as stages. `by-hand`: equal stages that send each other whole batches, by torch's send
and recv. `sharded-data`: with sharded parameters rank 1 waits so. `sharded-exchange`: parameters of
32 MB, and hardly anything to compute with them.
"""  # noqa: E501

import sys
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
from descent import Descent
from PIL import Image
from torch import nn
from torch.utils.data import DataLoader, Dataset

WIDTH, BATCH = 64, 16


class Decoded(Dataset):
    """Images, each decoded several times."""

    def __init__(self, folder: str, count: int, times: int) -> None:
        self.paths, self.count, self.times = sorted(Path(folder).rglob("*.JPEG")), count, times

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> torch.Tensor:
        for _ in range(self.times):
            image = Image.open(self.paths[index % len(self.paths)]).convert("L")
        return torch.from_numpy(np.asarray(image)[:8, :8].reshape(WIDTH).astype(np.float32) / 255)


class Part(nn.Module):
    """Layers of a stage."""

    def __init__(self, repeats: int) -> None:
        super().__init__()
        self.layer, self.repeats = nn.Linear(WIDTH, WIDTH), repeats
        self.register_buffer("wide", torch.randn(WIDTH, 4096))

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        # first, so that gradients go through all that follows, also in the first stage
        features = torch.relu(self.layer(features))
        for _ in range(self.repeats):
            features = features + (features @ self.wide @ self.wide.T).tanh() * 1e-4
        return features


def batches(what: str, rank: int, steps: int) -> DataLoader:
    """Those of this rank; only the rank with the fault decodes for long."""
    slow = what.endswith("data") and rank == (0 if what.startswith("stage") else 1)
    return DataLoader(Decoded(sys.argv[2], BATCH * steps, 12 if slow else 1), BATCH, num_workers=1)


def train_stages(what: str, rank: int, steps: int) -> None:
    from torch.distributed.pipelining import PipelineStage, ScheduleGPipe

    repeats = 150 if what == "stage-alone" else 200 if what == "slow-stage" and rank == 0 else 20
    part = Part(repeats)
    stage = PipelineStage(part, rank, 2, torch.device("cpu"))
    schedule = ScheduleGPipe(
        stage, 2 if what == "stage-alone" else 8, loss_fn=nn.functional.mse_loss
    )
    optimizer = Descent(part.parameters(), 0.01)
    targets = torch.zeros(BATCH, WIDTH)
    for samples in batches(what, rank, steps) if rank == 0 else range(steps):
        schedule.step(samples) if rank == 0 else schedule.step(target=targets)
        optimizer.step()
        optimizer.zero_grad()


def train_by_hand(rank: int, steps: int) -> None:
    part = Part(150)
    optimizer = Descent(part.parameters(), 0.01)
    for _ in range(steps):
        if rank == 0:
            features = part(torch.randn(BATCH, WIDTH))
            dist.send(features.detach(), 1)
            gradients = torch.empty_like(features)
            dist.recv(gradients, 1)
            features.backward(gradients)
        else:
            received = torch.empty(BATCH, WIDTH)
            dist.recv(received, 0)
            received.requires_grad_()
            nn.functional.mse_loss(part(received), torch.zeros(BATCH, WIDTH)).backward()
            dist.send(received.grad, 0)
        optimizer.step()
        optimizer.zero_grad()


def train_sharded(what: str, rank: int, steps: int) -> None:
    from torch.distributed.fsdp import fully_shard

    wide = 1024 if what == "sharded-exchange" else WIDTH
    model = nn.Sequential(nn.Linear(WIDTH, wide), *(nn.Linear(wide, wide) for _ in range(8)))
    for layer in model:
        fully_shard(layer)
    fully_shard(model)
    optimizer = Descent(model.parameters(), 0.01)
    for samples in batches(what, rank, steps):
        model(samples).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()


def main() -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    what, steps = sys.argv[1], int(sys.argv[3])
    if what == "by-hand":
        train_by_hand(dist.get_rank(), steps)
    else:
        (train_sharded if what.startswith("sharded") else train_stages)(
            what, dist.get_rank(), steps
        )
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
