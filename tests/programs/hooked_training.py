"""Small training jobs as people write them, on the CPU; which one is an argument.

python hooked_training.py parallel | images FOLDER | inference | adversarial | interrupted | dali
"""

import itertools
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from descent import Descent
from PIL import Image
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, DistributedSampler

STEPS = 12


class Numbers(Dataset[torch.Tensor]):
    """As many items as there are steps."""

    def __init__(self, length: int) -> None:
        self.length = length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, number: int) -> torch.Tensor:
        return torch.full((64,), float(number) / 100)


class Images(Dataset[torch.Tensor]):
    """The images of a folder, as often as they are asked for."""

    def __init__(self, folder: str, length: int) -> None:
        self.paths, self.length = sorted(Path(folder).iterdir()), length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, number: int) -> torch.Tensor:
        with Image.open(self.paths[number % len(self.paths)]) as image:
            return (
                torch.from_numpy(np.asarray(image.crop((0, 0, 8, 8)).convert("RGB")))
                .float()
                .mean((0, 1))
            )


def train(model: torch.nn.Module, loader: Any, optimizer: torch.optim.Optimizer) -> None:
    """The usual loop."""
    for batch in loader:
        optimizer.zero_grad()
        model(batch).sum().backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()


def parallel() -> None:
    """Two ranks, each with a worker; they also sum something by themselves, in two ways."""
    dist.init_process_group("gloo")
    model = DistributedDataParallel(
        torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.ReLU(), torch.nn.Linear(256, 1))
    )
    data = Numbers(STEPS * 8)
    loader = DataLoader(data, batch_size=4, num_workers=1, sampler=DistributedSampler(data))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for batch in loader:
        loss = model(batch).sum()
        optimizer.zero_grad()
        loss.backward()
        total = loss.detach().clone()
        dist.all_reduce(total)
        work = dist.all_reduce(total, async_op=True)
        assert isinstance(work, dist.Work)
        work.wait()
        optimizer.step()
    dist.barrier()
    dist.destroy_process_group()


def images(folder: str) -> None:
    """Decoding takes far longer than anything else."""
    loader = DataLoader(Images(folder, STEPS * 4), batch_size=4, num_workers=1)
    model = torch.nn.Linear(3, 1)
    train(model, loader, Descent(model.parameters(), lr=0.01))


def inference() -> None:
    """No optimizer: two epochs of batches."""
    loader = DataLoader(Numbers(STEPS * 4), batch_size=4, num_workers=1)
    model = torch.nn.Linear(64, 1)
    with torch.no_grad():
        for batch in itertools.chain(loader, loader):
            model(batch)


def adversarial() -> None:
    """Two optimizers that take turns, gradients of two batches for each step, and a look at other
    data every few steps."""
    generator, critic = torch.nn.Linear(64, 64), torch.nn.Linear(64, 1)
    first, second = (
        torch.optim.Adam(model.parameters(), lr=0.001) for model in (generator, critic)
    )
    validation = DataLoader(Numbers(4), batch_size=4)
    batches = iter(DataLoader(Numbers(STEPS * 8), batch_size=4))
    for step in range(STEPS):
        for _ in range(2):
            critic(generator(next(batches))).sum().backward()
        first.step()
        critic(generator(torch.ones(64))).sum().backward()
        second.step()
        if step % 5 == 4:
            with torch.no_grad():
                for batch in validation:
                    critic(batch)


def interrupted() -> None:
    """Ctrl-C arrives while the job waits for a batch."""

    class Slow(Numbers):
        def __getitem__(self, number: int) -> torch.Tensor:
            if number == 8:
                os.kill(os.getppid(), signal.SIGINT)
                time.sleep(60)
            return super().__getitem__(number)

    model = torch.nn.Linear(64, 1)
    train(
        model,
        DataLoader(Slow(STEPS * 4), batch_size=4, num_workers=1),
        Descent(model.parameters(), lr=0.01),
    )


def dali() -> None:
    """Batches from DALI, on the CPU: through its iterator, then by hand."""
    from nvidia.dali import Pipeline, fn
    from nvidia.dali.plugin.pytorch import DALIGenericIterator

    def pipeline() -> Any:
        made = Pipeline(batch_size=4, num_threads=1, device_id=None)
        with made:
            made.set_outputs(fn.random.uniform(range=[0, 1], shape=[64]))
        made.build()
        return made

    model = torch.nn.Linear(64, 1)
    optimizer = Descent(model.parameters(), lr=0.01)
    train(
        model,
        (batch[0]["data"] for batch in DALIGenericIterator([pipeline()], ["data"], size=STEPS * 4)),
        optimizer,
    )
    by_hand = pipeline()
    train(
        model,
        (torch.from_numpy(np.asarray(by_hand.run()[0].as_array())) for _ in range(STEPS)),
        optimizer,
    )


if __name__ == "__main__":
    torch.manual_seed(0)
    globals()[sys.argv[1]](*sys.argv[2:])
