"""One job of `random_jobs.py`: a training on the CPU with faults of known kinds and sizes.

    python random_job.py SPEC.json FOLDER

Prints one line of JSON: the seconds from the first batch that is asked for to the end of the last
epoch, the steps, and the seconds before the first batch. Without a fault, a sample takes some
microseconds, and a step what `compute_rows` says: it computes two halves of them, and one of them
where `is_fast`, so that it asks for memory in pieces of the same size.
"""

import asyncio
import fcntl
import gc
import json
import logging
import mmap
import multiprocessing
import os
import socket
import sys
import threading
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from contextlib import closing
from multiprocessing.pool import ThreadPool
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, IterableDataset, get_worker_info

SPEC: dict[str, Any] = json.loads(Path(sys.argv[1]).read_text())
FOLDER = Path(sys.argv[2])
BATCH, SAMPLES = SPEC["batch"], SPEC["samples"]
FAULTS: dict[str, float] = SPEC["faults"]
"""Milliseconds by the name of a fault: of a sample, of a step, or of an epoch."""
MATRIX = np.random.default_rng(0).random((64, 64))
RANK = int(os.environ.get("RANK", "0"))
STALL_EVERY, RARE_EVERY = 40, 50


def spin(seconds: float) -> None:
    """Compute in Python for as much CPU time: other threads of the process cannot meanwhile."""
    until_s = time.thread_time() + seconds
    value = 0
    while time.thread_time() < until_s:
        for _ in range(200):
            value = value * 31 % 1009


def multiply(seconds: float) -> None:
    """Compute in NumPy for as much CPU time."""
    until_s = time.thread_time() + seconds
    while time.thread_time() < until_s:
        for _ in range(20):
            MATRIX @ MATRIX


def copy_memory(seconds: float) -> None:
    """Copy arrays that no cache of the processor holds, for as much CPU time."""
    source = np.ones(1 << 20)
    until_s = time.thread_time() + seconds
    while time.thread_time() < until_s:
        source.copy()


# -------------------------------------------------------------------------------------- of a sample


class Cache:
    """What a process has made before."""

    def __init__(self) -> None:
        self.known: set[int] = set()


CACHE = Cache()
LOCK = multiprocessing.Lock()
THREAD_LOCK = threading.Lock()


def slow_request(index: int, seconds: float, *, stalls: bool) -> None:
    """Ask the server; of some requests it stalls."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(str(FOLDER / "server"))
        takes_s = seconds * STALL_EVERY * (index % STALL_EVERY == 0) if stalls else seconds
        connection.sendall(b"%.6f\n" % takes_s)
        assert connection.recv(16)


def holding(lock: Any, seconds: float) -> None:
    """Wait for something that only one at a time may use."""
    with lock:
        time.sleep(seconds)


def with_file_lock(seconds: float) -> None:
    """The same, by a lock of a file."""
    with open(FOLDER / "lock", "wb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        time.sleep(seconds)


def read_file(index: int, seconds: float) -> None:
    """Read a file of so many pieces, each of which takes a system call."""
    pieces = max(1, int(seconds * 1e3 * 40))
    with open(FOLDER / "data", "rb", buffering=0) as file:
        for piece in range(pieces):
            file.seek((index * 7919 + piece) % 1000 * 16_384)
            file.read(16_384)


def make(index: int, epoch: int) -> torch.Tensor:
    """A sample, with what its faults cost."""
    for name, milliseconds in FAULTS.items():
        cost_of_sample(name, milliseconds / 1e3, index, epoch)
    return torch.full((64,), float(index % 7))


def cost_of_sample(name: str, seconds: float, index: int, epoch: int) -> None:
    """What one fault costs a sample."""
    worker = get_worker_info()
    if name == "sleep":
        time.sleep(seconds)
    elif name == "cpu":
        multiply(seconds)
    elif name == "python":
        spin(seconds)
    elif name == "memory":
        copy_memory(seconds)
    elif name == "reads":
        read_file(index, seconds)
    elif name in ("server", "stalls"):
        slow_request(index, seconds, stalls=name == "stalls")
    elif name == "process_lock":
        holding(LOCK, seconds)
    elif name == "thread_lock":
        holding(THREAD_LOCK, seconds)
    elif name == "file_lock":
        with_file_lock(seconds)
    elif name in ("cache", "dying_cache") and index not in CACHE.known:
        CACHE.known.add(index)
        time.sleep(seconds)
    elif name == "rare" and index % RARE_EVERY == 0:
        time.sleep(seconds * RARE_EVERY)
    elif name == "one_worker" and worker is not None and worker.id == 0:
        time.sleep(seconds * worker.num_workers)
    elif name == "growth":
        time.sleep(seconds * 2 * (epoch + index / SAMPLES) / SPEC["epochs"])
    elif name == "two_phases" and index < SAMPLES // 2:
        time.sleep(seconds * 2)
    elif name == "many_threads":
        torch.set_num_threads(16)
        torch.randn(256, 256) @ torch.randn(256, 256)


class Samples(Dataset[torch.Tensor]):
    """Samples by their index."""

    epoch = 0

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> torch.Tensor:
        return make(index, self.epoch)


class Stream(IterableDataset[torch.Tensor]):
    """Samples in order; with the fault `one_shard` the first worker has them all."""

    epoch = 0

    def __iter__(self) -> Iterator[torch.Tensor]:
        worker = get_worker_info()
        number, workers = (0, 1) if worker is None else (worker.id, worker.num_workers)
        if "one_shard" in FAULTS:
            if number == 0:
                yield from (self._slow(index) for index in range(SAMPLES))
            return
        yield from (make(index, self.epoch) for index in range(number, SAMPLES, workers))

    def _slow(self, index: int) -> torch.Tensor:
        time.sleep(FAULTS["one_shard"] / 1e3)
        return make(index, self.epoch)


def collate(samples: list[torch.Tensor]) -> torch.Tensor:
    """A batch; with the fault `collate` it takes Python."""
    if "collate" in FAULTS:
        spin(FAULTS["collate"] / 1e3)
    return torch.stack(samples)


def batch_of(epoch: int, first: int) -> torch.Tensor:
    """Of pools: a batch in one task."""
    return collate([make(first + each, epoch) for each in range(BATCH)])


class Slow(torch.utils.data.Sampler[int]):
    """A sampler that takes Python for each index."""

    def __len__(self) -> int:
        return SAMPLES

    def __iter__(self) -> Iterator[int]:
        for index in range(SAMPLES):
            spin(FAULTS["sampler"] / 1e3)
            yield index


# ----------------------------------------------------------------------------------------- the loop


def batches() -> Iterator[Iterable[torch.Tensor]]:
    """The batches of each epoch."""
    workers, loop = SPEC["workers"], SPEC["loop"]
    firsts = range(0, SAMPLES - BATCH + 1, BATCH)
    if loop in ("loader", "iterable"):
        data: Any = Samples() if loop == "loader" else Stream()
        ahead = {"prefetch_factor": SPEC["prefetch"]} if workers else {}
        loader = DataLoader(
            data,
            BATCH,
            sampler=Slow() if "sampler" in FAULTS and loop == "loader" else None,
            num_workers=workers,
            persistent_workers=SPEC["persistent"] and workers > 0,
            collate_fn=collate,
            drop_last=True,
            **ahead,
        )
        for epoch in range(SPEC["epochs"]):
            data.epoch = epoch
            yield loader
    elif loop == "thread_pool":
        with ThreadPool(max(1, workers)) as pool:
            for epoch in range(SPEC["epochs"]):
                yield pool.imap(lambda first, epoch=epoch: batch_of(epoch, first), firsts)
    elif loop == "executor":
        with ThreadPoolExecutor(max(1, workers)) as executor:
            for epoch in range(SPEC["epochs"]):
                yield executor.map(lambda first, epoch=epoch: batch_of(epoch, first), firsts)
    elif loop == "process_pool":
        with ProcessPoolExecutor(max(1, workers)) as processes:
            for epoch in range(SPEC["epochs"]):
                yield processes.map(batch_of, [epoch] * len(firsts), firsts)
    elif loop == "asyncio":
        for epoch in range(SPEC["epochs"]):
            yield by_tasks(epoch, list(firsts))
    else:  # plain
        for epoch in range(SPEC["epochs"]):
            yield (batch_of(epoch, first) for first in firsts)


def by_tasks(epoch: int, firsts: list[int]) -> Iterator[torch.Tensor]:
    """Batches of threads that an event loop awaits, as many at a time as there are workers."""
    # not asyncio.Runner, whose run() makes a text of its task, tensors included, each time
    with closing(asyncio.new_event_loop()) as loop:
        workers = max(1, SPEC["workers"])

        async def some(part: list[int]) -> list[torch.Tensor]:
            return await asyncio.gather(*(asyncio.to_thread(batch_of, epoch, at) for at in part))

        for place in range(0, len(firsts), workers):
            yield from loop.run_until_complete(some(firsts[place : place + workers]))


def serve() -> None:
    """A server that answers each request after the time that it names, several at a time."""
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(FOLDER / "server"))
        listener.listen(64)
        while True:
            connection, _ = listener.accept()
            threading.Thread(target=answer, args=(connection,), daemon=True).start()


def answer(connection: socket.socket) -> None:
    with connection:
        time.sleep(float(connection.recv(64)))
        connection.sendall(b"done")


def prepare() -> None:
    """What the job needs, and what its start-up takes."""
    with open(FOLDER / "data", "wb") as file:
        file.truncate(1000 * 16_384)
    if {"server", "stalls"} & FAULTS.keys():
        multiprocessing.get_context("fork").Process(target=serve, daemon=True).start()
        while not (FOLDER / "server").exists():
            time.sleep(0.01)
    if "start_up" in FAULTS:
        spin(FAULTS["start_up"] / 1e3)


class Loop:
    """The training loop of a rank."""

    def __init__(self) -> None:
        torch.set_num_threads(1)
        self.model: nn.Module = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 1))
        if SPEC["ranks"] > 1:
            torch.distributed.init_process_group("gloo")
            self.model = nn.parallel.DistributedDataParallel(self.model)
        self.optimizer = torch.optim.SGD(self.model.parameters(), 0.01)
        rows = SPEC["compute_rows"] // 2
        self.work = [torch.randn(rows, 64) for _ in range(1 if SPEC["is_fast"] else 2)]
        self.log = logging.getLogger("job")
        self.log.addHandler(logging.StreamHandler(open(FOLDER / f"log{RANK}", "w")))  # noqa: SIM115
        self.steps = 0
        held = int(FAULTS.get("gc", 0) * 2_500)  # a collection takes about 0.4 us for each
        self.garbage = [{"a": [number]} for number in range(held)]

    def step(self, batch: torch.Tensor) -> None:
        """One step, with what its faults cost."""
        self.optimizer.zero_grad()
        inputs = [torch.cat([batch, part]) for part in self.work]
        loss = torch.stack([self.model(part).square().mean() for part in inputs]).sum()
        loss.backward()
        self.optimizer.step()
        self.steps += 1
        for name, milliseconds in FAULTS.items():
            self.cost_of_step(name, milliseconds / 1e3, loss)

    def cost_of_step(self, name: str, seconds: float, loss: torch.Tensor) -> None:
        """What one fault costs a step."""
        if name == "metric":
            spin(seconds)
        elif name == "logging":
            for _ in range(max(1, int(seconds * 1e3))):
                self.log.info("%f", loss.item())
                os.fsync(self.log.handlers[0].stream.fileno())  # type: ignore[attr-defined]
        elif name == "gc":
            gc.collect()
        elif name == "copies":
            copy_memory(seconds)
        elif name == "slow_rank" and RANK == 1:
            spin(seconds)
        elif name == "map" and self.steps % 4 == 0:
            with open(FOLDER / "data", "rb") as file, mmap.mmap(file.fileno(), 0, prot=1) as data:
                sum(data[::4096][: int(seconds * 1e6)])

    def end_epoch(self) -> None:
        """What comes after an epoch."""
        if "validation" in FAULTS:
            self.model.eval()
            with torch.no_grad():
                for batch in DataLoader(Samples(), BATCH, num_workers=0):
                    self.model(batch)
                    time.sleep(FAULTS["validation"] / 1e3 * BATCH / SAMPLES)
            self.model.train()
        if "checkpoint" in FAULTS:
            self.save(FAULTS["checkpoint"] / 1e3)

    def save(self, seconds: float) -> None:
        """Write a checkpoint again and again until it took so long."""
        until_s = time.monotonic() + seconds
        while time.monotonic() < until_s:
            with open(FOLDER / f"checkpoint{RANK}", "wb") as file:
                torch.save({"model": self.model.state_dict(), "more": torch.zeros(1 << 20)}, file)
                os.fsync(file.fileno())


def main() -> None:
    """Train."""
    began_s = time.monotonic()
    if RANK == 0:
        prepare()
    loop = Loop()
    first_s = time.monotonic()
    for batches_of_epoch in batches():
        for number, batch in enumerate(batches_of_epoch):
            if "discarded" in FAULTS and number % 2:
                continue
            loop.step(batch)
        loop.end_epoch()
        if "dying_cache" in FAULTS and SPEC["workers"] == 0:
            CACHE.known.clear()
    seconds = time.monotonic() - first_s
    said = {"seconds": seconds, "steps": loop.steps, "before": first_s - began_s, "rank": RANK}
    sys.stdout.write(json.dumps(said) + "\n")
    sys.stdout.flush()
    if SPEC["ranks"] > 1:
        torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
