"""Trains a small model on the CPU whose input has one fault, and prints the seconds of its loop.

train_with_input.py FAULT STEPS WORKERS     FAULT is one of `FAULTS`. Several ranks exchange gradients by gloo, or, for
`local_sgd`, train alone and average their models every `AVERAGE_EVERY` steps.
"""  # noqa: E501

import os
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import torch
from descent import Descent
from torch import nn
from torch.utils.data import DataLoader, Dataset, default_collate, get_worker_info

FAULTS = (
    "collate",
    "slow_sample",
    "slow_worker",
    "large_messages",
    "large_tensors",
    "slow_rank",
    "slow_first_rank",
    "few_workers",
    "small_prefetch",
    "local_sgd",
    "views",
)
BATCH = 4
EVERY = 60
"""Of so many samples one is slow, for `slow_sample`."""
AVERAGE_EVERY, SLOW_STEPS = 8, 2
"""Steps, for `local_sgd`: between two averages, and at the begin of these those of rank 1 that are
slow."""
STEPS_S = {"small_prefetch": 0.06, "local_sgd": 0.03}
"""A step of `small_prefetch`: its workers make a batch in 0.4 s / `BURST` on average, which is less
on any machine. The other steps of `local_sgd` take longer than its slow samples do."""
ROWS = 100
"""How often the rows of a batch of `small_prefetch` are in it, so that a pass takes some 1 ms."""
RECORDING = (16, 300_000)
"""Channels and times of the file of which `views` takes crops: 19 MB, of which each sample has 16
kB."""
BURST = 12
"""Of so many batches one is slow, for `small_prefetch`."""


class Samples(Dataset[object]):
    """Rows, or what is sent as a whole."""

    def __init__(self, fault: str, length: int, rank: int) -> None:
        self.fault, self.length, self.rank = fault, length, rank
        self.path = Path(tempfile.gettempdir()) / f"recording-{os.getpid()}.npy"
        if fault == "views":
            np.save(self.path, np.zeros(RECORDING, np.float32))

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, number: int) -> object:
        info = get_worker_info()
        if self.fault == "slow_sample" and number % EVERY == EVERY - 1:
            time.sleep(0.4)
        if self.fault == "slow_worker":
            time.sleep(0.02 if info is not None and info.id == 1 else 0.001)
        if (self.fault, self.rank) in (("slow_rank", 1), ("slow_first_rank", 0)):
            time.sleep(0.02)
        if (self.fault, self.rank) == (
            "local_sgd",
            1,
        ) and number // BATCH % AVERAGE_EVERY < SLOW_STEPS:
            time.sleep(0.02)
        if self.fault == "few_workers":
            time.sleep(0.02)
        if self.fault == "small_prefetch" and number % (BURST * BATCH) == 0:
            time.sleep(0.4)
        if self.fault == "large_messages":
            return bytes(64_000_000)  # which is pickled into the pipe, as a tensor is not
        if self.fault == "large_tensors":
            # 256 MB, which are copied to shared memory when they are sent
            return torch.empty(64_000_000)
        if self.fault == "views":  # a new map for each sample
            return torch.from_numpy(np.load(self.path, mmap_mode="c")[:, number : number + 256])
        return torch.full((256,), float(number % 7))


def slow_collate(samples: list[torch.Tensor]) -> torch.Tensor:
    """Stacks them in a costly way."""
    time.sleep(0.04)
    return default_collate(samples)


def train_for(seconds: float, model: nn.Module, batch: torch.Tensor) -> None:
    """One forward and backward pass, of so many rows that it takes about so long on any machine."""
    rows = batch if not seconds else batch.repeat(ROWS, 1)
    # the backward pass takes twice as long as the forward pass
    ends = time.perf_counter() + seconds / 3
    loss = model(rows).square().mean()
    while time.perf_counter() < ends:
        loss = loss + model(rows).square().mean()
    loss.backward()


@torch.no_grad()
def average(model: nn.Module) -> None:
    """Give all ranks the mean of their models."""
    for parameter in model.parameters():
        torch.distributed.all_reduce(parameter)
        parameter /= torch.distributed.get_world_size()


def main() -> None:
    """Train."""
    fault, steps, workers = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    assert fault in FAULTS, fault
    rank, ranks = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model: nn.Module = nn.Sequential(nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 1))
    if fault == "slow_first_rank":  # whose statistics all ranks get in each forward pass
        model = nn.Sequential(nn.BatchNorm1d(256), model)
    if ranks > 1:
        torch.distributed.init_process_group("gloo")
        if fault != "local_sgd":
            model = nn.parallel.DistributedDataParallel(model)
    optimizer = Descent(model.parameters(), 1e-4)
    is_whole = fault in ("large_messages", "large_tensors")
    dataset = Samples(fault, steps if is_whole else steps * BATCH, rank)
    collate = {"collate": slow_collate, "views": list}.get(fault)
    prefetch = 1 if fault == "small_prefetch" else 2
    loader = DataLoader(
        dataset,
        None if is_whole else BATCH,
        num_workers=workers,
        collate_fn=collate,
        prefetch_factor=prefetch if workers else None,
    )
    least = STEPS_S.get(fault, 0.0)
    began = time.perf_counter()
    for number, batch in enumerate(loader, start=1):
        optimizer.zero_grad()
        train_for(
            least,
            model,
            (
                torch.zeros(BATCH, 256)
                if is_whole
                else torch.cat(batch)
                if fault == "views"
                else batch
            ),
        )
        optimizer.step()
        if fault == "local_sgd" and number % AVERAGE_EVERY == 0:
            average(model)
    print(f"{time.perf_counter() - began:.3f}")
    dataset.path.unlink(missing_ok=True)
    if ranks > 1:
        torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
