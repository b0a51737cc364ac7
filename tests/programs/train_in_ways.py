"""Trains, or infers, on the CPU in one of several ways, and prints the samples and batches that its
own counters saw.

train_in_ways.py WAY BATCHES WORKERS [SECONDS]     WAY is one of `WAYS`, SECONDS what a sample takes.
"""  # noqa: E501

import sys
import time
from collections.abc import Iterator

import torch
from descent import Descent
from torch import nn
from torch.utils.data import DataLoader, Dataset, IterableDataset

WAYS = (
    "plain",
    "accumulate",
    "two_optimizers",
    "inference",
    "iterable",
    "varying",
    "two_loaders",
    "epochs",
)
BATCH = 4
ACCUMULATE = 4
"""Batches per step of the optimizer, for `accumulate`."""


class Samples(Dataset[torch.Tensor]):
    """Rows, each of which takes some time to make."""

    def __init__(self, length: int, seconds: float = 0.002) -> None:
        self.length, self.seconds = length, seconds

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, number: int) -> torch.Tensor:
        time.sleep(self.seconds)
        return torch.full((256,), float(number % 7))


class Labelled(Samples):
    """The second dataset of a job."""


class Stream(IterableDataset[torch.Tensor]):
    """Rows one after the other, of each worker as many."""

    def __init__(self, length: int) -> None:
        self.length = length

    def __iter__(self) -> Iterator[torch.Tensor]:
        for number in range(self.length):
            time.sleep(0.002)
            yield torch.full((256,), float(number % 7))


class Growing:
    """A batch sampler whose batches grow from 2 to 8 samples and begin anew."""

    def __init__(self, batches: int) -> None:
        self.batches = batches

    def __len__(self) -> int:
        return self.batches

    def __iter__(self) -> Iterator[list[int]]:
        for number in range(self.batches):
            yield list(range(2 + number % 7))


def loaders(way: str, batches: int, workers: int) -> list[DataLoader[torch.Tensor]]:
    """Those that the loop takes a batch of in turn."""
    if way == "iterable":
        return [
            DataLoader(Stream(batches * BATCH // max(workers, 1) + 1), BATCH, num_workers=workers)
        ]
    if way == "varying":
        return [DataLoader(Samples(64), batch_sampler=Growing(batches), num_workers=workers)]
    found = DataLoader(
        Samples(batches * BATCH, float(sys.argv[4]) if sys.argv[4:] else 0.002),
        BATCH,
        num_workers=workers,
    )
    if way == "two_loaders":
        return [found, DataLoader(Labelled(batches * 2, 0.02), 2, num_workers=workers)]
    return [found]


def main() -> None:
    """Train or infer, and print what was counted."""
    way, batches, workers = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    assert way in WAYS, way
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = nn.Sequential(nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 1))
    critic = nn.Linear(256, 1)
    optimizers = [Descent(model.parameters(), 1e-4)] if way != "inference" else []
    if way == "two_optimizers":
        optimizers.append(torch.optim.Adam(critic.parameters(), 1e-4))
    found = loaders(way, batches, workers)
    samples = number = 0
    began = time.perf_counter()
    for _ in range(3 if way == "epochs" else 1):
        for parts in zip(*found, strict=True):
            for part in parts:
                samples += len(part)
                loss = model(part).square().mean() + (
                    critic(part).square().mean() if way == "two_optimizers" else 0.0
                )
                if optimizers:
                    loss.backward()
            number += 1
            if way != "accumulate" or number % ACCUMULATE == 0:
                for optimizer in optimizers:
                    optimizer.step()
                    optimizer.zero_grad()
    print(f"{samples} {number * len(found)} {time.perf_counter() - began:.3f}")


if __name__ == "__main__":
    main()
