"""Trains a small model on the CPU for some seconds, in a job that has one fault outside of reading and decoding.

train_with_fault.py FAULT AMOUNT STEPS WORKERS     FAULT is one of `FAULTS`. Prints the seconds that the fault took by its own
stopwatch, where the training process can time it, and the seconds of the loop.
"""

import gc
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from descent import Descent
from torch import nn
from torch.utils.data import DataLoader, Dataset, Sampler

FAULTS = ("collect", "collect_in_worker", "sampler", "buckets", "batches", "multinomial", "index", "paths", "checkpoint",
          "pickling", "validation", "evaluation", "batch_of_validation", "worker_init", "spawn", "none")  # fmt: skip
BATCH = 4
took = {"fault": 0.0}


def timed(function: Callable[[], Any]) -> Any:
    """Call a function, and add its time to that of the fault."""
    began = time.perf_counter()
    result = function()
    took["fault"] += time.perf_counter() - began
    return result


class Samples(Dataset[torch.Tensor]):
    """Numbers, as rows."""

    def __init__(self, fault: str, amount: float, length: int) -> None:
        self.fault, self.length = fault, length
        self.kept: list[Any] = []
        if fault.startswith("collect"):
            gc.disable()  # else making them takes as long as the fault
            self.kept = [[number] for number in range(int(amount))]
            gc.enable()
        if fault == "index":
            self.kept = [self.parse(number) for number in range(int(amount))]  # index
        if fault == "paths":
            self.kept = [path for path in map(str, range(int(amount))) if not Path("/nowhere", path).exists()]  # paths

    @staticmethod
    def parse(number: int) -> int:
        """The label in a line of an index."""
        name, _, label = f"images/{number:012}.jpeg,{number % 1000}".partition(",")
        return int(label) if name.endswith(".jpeg") else -1

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, number: int) -> torch.Tensor:
        if self.fault == "collect_in_worker":
            gc.collect()
        return torch.full((1024,), float(number % 7))


class Slow(Sampler[int]):
    """Chooses each sample with much work."""

    def __init__(self, fault: str, amount: float, length: int) -> None:
        self.fault, self.amount, self.length = fault, amount, length
        self.weights = torch.ones(int(amount)) if fault == "multinomial" else None

    def __len__(self) -> int:
        return self.length

    def __iter__(self) -> Iterator[int]:
        for number in range(self.length):
            if self.weights is not None:
                yield int(torch.multinomial(self.weights, 1)) % self.length
            else:
                time.sleep(self.amount)
                yield number


class Buckets(Sampler[int]):
    """Orders the samples of an epoch by their lengths, all at once."""

    def __init__(self, amount: float, length: int) -> None:
        self.lengths, self.length = [number * 7919 % 10_007 for number in range(int(amount))], length

    def __len__(self) -> int:
        return self.length

    def __iter__(self) -> Iterator[int]:
        ordered = sorted(range(len(self.lengths)), key=lambda number: (self.lengths[number] // 10, number * 7 % 101))  # buckets
        return iter([number % self.length for number in ordered[: self.length]])


class Batches(Buckets):
    """Batches in that order, chosen before the first of them is asked for."""

    def __iter__(self) -> Iterator[Any]:
        chosen = list(super().__iter__())
        return iter([chosen[place : place + BATCH] for place in range(0, len(chosen), BATCH)])


class Pickled:
    """Takes a while to pickle."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    def __getstate__(self) -> dict[str, float]:
        time.sleep(self.seconds)  # pickle
        return {"seconds": self.seconds}


def start_worker(_: int) -> None:
    """Opens a large dataset."""
    time.sleep(amount)


def save(model: nn.Module, path: str) -> None:
    """A checkpoint."""
    state = {"model": model.state_dict(), "rest": Pickled(amount)}
    if fault == "checkpoint":
        state = {"model": model.state_dict(), "rest": torch.zeros(int(amount))}
    torch.save(state, path)  # save


def validate(model: nn.Module, batches: Iterator[torch.Tensor] | DataLoader[torch.Tensor]) -> None:
    """Forward passes without gradients."""
    model.eval()
    with torch.no_grad():
        for batch in batches:
            for _ in range(int(amount)):
                model(batch)
            if fault == "batch_of_validation":
                break
    model.train()


def main(folder: str) -> None:
    """Train."""
    length = steps * BATCH
    dataset = timed(lambda: Samples(fault, amount, length)) if fault in ("index", "paths") else Samples(fault, amount, length)
    if fault in ("worker_init", "spawn", "validation", "evaluation", "collect_in_worker", "buckets", "batches"):
        dataset.length = 4 * BATCH  # an epoch
    sampler: Sampler[int] | None = Slow(fault, amount, length) if fault in ("sampler", "multinomial") else None
    if fault == "buckets":
        sampler = Buckets(amount, dataset.length)
    loader = DataLoader(
        dataset, 1 if fault == "batches" else BATCH, num_workers=workers, sampler=sampler,
        batch_sampler=Batches(amount, dataset.length) if fault == "batches" else None,
        worker_init_fn=start_worker if fault == "worker_init" else None,
        multiprocessing_context="spawn" if fault == "spawn" else None, persistent_workers=fault in ("buckets", "batches"),
    )  # fmt: skip
    held_out = DataLoader(Samples("none", 0, 4 * BATCH), BATCH)
    model = nn.Sequential(nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, 1))
    optimizer = Descent(model.parameters(), 1e-4)
    began, done = time.perf_counter(), 0
    while done < steps:
        for batch in loader:
            optimizer.zero_grad()
            model(batch).square().mean().backward()
            optimizer.step()
            done += 1
            if fault == "collect":
                timed(gc.collect)
            elif fault in ("checkpoint", "pickling"):
                timed(lambda: save(model, f"{folder}/model.pt"))
            elif fault == "batch_of_validation":
                timed(lambda: validate(model, held_out))
        if fault == "validation":
            timed(lambda: validate(model, held_out))
        elif fault == "evaluation":
            timed(lambda: validate(model, (torch.rand(BATCH, 1024) for _ in range(4))))
    print(f"{took['fault']:.3f} {time.perf_counter() - began:.3f}")


fault, amount, steps, workers = sys.argv[1], float(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])
if __name__ == "__main__":
    assert fault in FAULTS, fault
    torch.manual_seed(0)
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as temporary:
        main(temporary)
