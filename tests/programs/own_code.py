"""Trains a tiny model with Python code of its own in the named place, and prints how long that took by its own stopwatch.

own_code.py PLACE STEPS WORKERS     PLACE: metric, logging, sleep, getitem, transform, index, calls, before, compute, sampler,
                                    several, which is four functions that take as long each; collate, tasks, futures and queue,
                                    where WORKERS are processes of a multiprocessing.Pool or of a
                                    ProcessPoolExecutor, or fill a queue; thread_tasks, thread_futures, where they are threads that
                                    compute by NumPy, and thread_python, where these compute in Python; pad, a collate function that
                                    pads in Python; gradients, between the backward pass and the optimizer's step, and closure, the
                                    same in a closure of the step
"""

import json
import logging
import multiprocessing
import os
import sys
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from functools import partial
from multiprocessing.pool import ThreadPool

import numpy as np
import torch
from descent import Descent
from torch.utils.data import DataLoader, Dataset

place, num_steps, num_workers = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
BATCH = 4
took = dict.fromkeys(("metric", "logging", "sleep", "index", "calls", "several", "before", "gradients", "closure"), 0.0)
log = logging.getLogger("own")
log.addHandler(logging.FileHandler(os.devnull))
log.setLevel(logging.INFO)


def busy(number: int) -> int:
    """Some 25 ms of Python."""
    found = 0
    for value in range(number):
        found += value * value % 7  # busy
    return found


def one(value: int) -> int:
    return value + 1  # one


def slow(sample: torch.Tensor) -> torch.Tensor:
    """A transform in pure Python."""
    busy(100_000)  # transform
    return sample


if place == "transform":
    from torchvision.transforms import Compose

    transform = Compose([slow])
else:
    transform = None


class Numbers(Dataset[torch.Tensor]):
    """Samples that are made by Python."""

    def __init__(self) -> None:
        if place == "index":
            began = time.perf_counter()
            self.index = [busy(100) for _ in range(80_000)]  # index
            took["index"] += time.perf_counter() - began

    def __len__(self) -> int:
        return num_steps * BATCH

    def __getitem__(self, number: int) -> torch.Tensor:
        if place == "getitem":
            busy(100_000)  # getitem
        sample = torch.full((8,), float(number))
        return sample if transform is None else transform(sample)


class Chosen(torch.utils.data.Sampler[int]):
    """The numbers of all samples; some 10 ms of Python for each."""

    def __len__(self) -> int:
        return num_steps * BATCH

    def __iter__(self) -> Iterator[int]:
        for number in range(len(self)):
            sum(value * value % 7 for value in range(100_000))  # sampler
            yield number


def collate(samples: list[torch.Tensor]) -> torch.Tensor:
    """A batch of them, after some Python."""
    for value in range(600_000):
        value * value % 7  # collate
    return torch.stack(samples)


def pad(samples: list[torch.Tensor]) -> torch.Tensor:
    """A batch of them, each as long as the longest, value by value."""
    padded = torch.zeros(len(samples), 8)
    for row, sample in enumerate(samples):
        for place in range(2_000):
            padded[row, place % 8] = sample[place % 8]  # pad
    return padded


def make(number: int) -> list[list[float]]:
    """A batch, in a process or thread of its own."""
    busy(400_000)  # tasks
    return [[float(number)] * 8] * BATCH


def accuracy() -> int:
    return sum(value * value % 7 for value in range(100_000))


def histogram() -> int:
    return sum(value * value % 5 for value in range(100_000))


def averages() -> int:
    return sum(value * value % 3 for value in range(100_000))


def norms() -> int:
    return sum(value * value % 11 for value in range(100_000))


def sort(number: int) -> list[list[float]]:
    """A batch, in a thread: some 70 ms of NumPy, without the interpreter's lock."""
    np.sort(np.random.default_rng(number).random(800_000))  # sort
    return [[float(number)] * 8] * BATCH


def fill(queue: "multiprocessing.Queue[list[list[float]]]", first: int) -> None:
    """A part of the batches, in a process of its own."""
    for number in range(first, num_steps, num_workers):
        queue.put(make(number))


def batches() -> Iterable[torch.Tensor]:
    """Of a DataLoader, a pool or a queue."""
    if place in ("tasks", "thread_tasks"):
        with multiprocessing.Pool(num_workers) if place == "tasks" else ThreadPool(num_workers) as pool:
            yield from map(torch.tensor, pool.imap(make if place == "tasks" else sort, range(num_steps)))
    elif place in ("futures", "thread_futures", "thread_python"):
        with (ProcessPoolExecutor if place == "futures" else ThreadPoolExecutor)(num_workers) as executor:
            yield from map(torch.tensor, executor.map(sort if place == "thread_futures" else make, range(num_steps)))
    elif place == "queue":
        queue: multiprocessing.Queue[list[list[float]]] = multiprocessing.Queue(2)
        for first in range(num_workers):
            multiprocessing.Process(target=fill, args=(queue, first), daemon=True).start()
        for _ in range(num_steps):
            yield torch.tensor(queue.get())  # queue
    else:
        sampler, joins = Chosen() if place == "sampler" else None, {"collate": collate, "pad": pad}.get(place)
        yield from DataLoader(Numbers(), BATCH, sampler=sampler, collate_fn=joins, num_workers=num_workers)


def watch(model: torch.nn.Module) -> None:
    """Looks at the gradients, as dashboards show them."""
    began = time.perf_counter()
    for _ in range(10):
        for parameter in model.parameters():
            np.histogram(np.resize(parameter.grad.numpy(), 10_000), bins=64, range=(-1, 1))  # watch
    took[place] += time.perf_counter() - began


def compute(model: torch.nn.Module, optimizer: torch.optim.Optimizer, rows: torch.Tensor) -> torch.Tensor:
    """The loss and its gradients."""
    optimizer.zero_grad()
    loss: torch.Tensor = model(rows).square().mean()
    loss.backward()
    if place in ("gradients", "closure"):
        watch(model)
    return loss


def main() -> None:
    """Train."""
    model = torch.nn.Linear(8, 1)
    optimizer = Descent(model.parameters(), lr=1e-4)
    if place == "compute":
        model = torch.nn.Sequential(torch.nn.Linear(8, 512), *(torch.nn.Linear(512, 512) for _ in range(8)))
    began = time.perf_counter()
    for batch in batches():
        start = time.perf_counter()
        if place == "before":
            sorted(range(60_000), key=lambda value: value * 7919 % 60_013)  # before
            took["before"] += time.perf_counter() - start
        closure = partial(compute, model, optimizer, batch.repeat(50, 1) if place == "compute" else batch)
        if place == "closure":
            loss = optimizer.step(closure)
        else:
            loss = closure()
            optimizer.step()
        start = time.perf_counter()
        if place == "metric":
            sorted(range(60_000), key=lambda value: value * 7919 % 60_013)  # metric
        elif place == "logging":
            for number in range(1500):
                log.info("step %d of %s", number, loss)  # logging
        elif place == "sleep":
            time.sleep(0.05)  # sleep
        elif place == "several":
            accuracy(), histogram(), averages(), norms()
        elif place == "calls":
            value = 0
            for _ in range(300_000):
                value = one(value)  # calls
        if place in took and place not in ("before", "gradients", "closure"):
            took[place] += time.perf_counter() - start
    print(json.dumps({"place": place, "took_s": took, "loop_s": time.perf_counter() - began}))


if __name__ == "__main__":
    main()
