"""Trains a small model on the CPU on bytes of files in two folders, one of them slow, with one
fault.

train_on_two_folders.py FAULT SLOW FAST STEPS WORKERS     FAULT is one of `FAULTS`. Several ranks exchange gradients by gloo. A file
of the slow folder is read from storage each time. Prints the seconds of the loop.
"""  # noqa: E501

import os
import sys
import time
from pathlib import Path

import numpy as np
import torch
from descent import Descent
from PIL import Image
from torch import nn
from torch.utils.data import DataLoader, Dataset

FAULTS = (
    "slow_rank_storage",
    "slow_rank_decode",
    "slow_rank_compute",
    "slow_file",
    "small_reads",
    "cold_reads",
    "cold_epoch",
)
BATCH = 4
PIECE = 2048
NUM_PIECES = 16
"""That are read for a sample, for `small_reads`."""


def read_cold(path: Path) -> bytes:
    """A file that is not in memory."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        return os.read(descriptor, 1 << 24)
    finally:
        os.close(descriptor)


class Samples(Dataset[torch.Tensor]):
    """What was read, as one row."""

    def __init__(self, fault: str, slow: Path, fast: Path, length: int, rank: int) -> None:
        self.fault, self.length, self.rank = fault, length, rank
        self.slow, self.fast = (sorted(folder.glob("*/*.JPEG")) for folder in (slow, fast))
        self.sizes = [path.stat().st_size for path in self.slow]
        self.opened: dict[int, int] = {}

    def __len__(self) -> int:
        return self.length

    def piece(self, number: int) -> bytes:
        """A few bytes of any file, which is kept open."""
        place = number * 7919 % len(self.slow)
        if place not in self.opened:
            self.opened[place] = os.open(self.slow[place], os.O_RDONLY)
            os.posix_fadvise(self.opened[place], 0, 0, os.POSIX_FADV_RANDOM)
        pages = max(1, self.sizes[place] // PIECE)
        return os.pread(self.opened[place], PIECE, number * 104_729 % pages * PIECE)

    def __getitem__(self, number: int) -> torch.Tensor:
        path = self.fast[number % len(self.fast)]
        if self.fault == "small_reads":
            content = b"".join(self.piece(number * NUM_PIECES + part) for part in range(NUM_PIECES))
        elif self.fault == "cold_epoch" or (self.fault == "slow_rank_decode" and self.rank == 1):
            for further in range(5):
                place = (number + further * 17) % len(self.fast)
                with Image.open(
                    (self.slow if self.fault == "cold_epoch" else self.fast)[place]
                ) as image:
                    content = image.convert("RGB").tobytes()
        elif self.fault == "cold_reads" or (self.fault == "slow_rank_storage" and self.rank == 1):
            content = read_cold(self.slow[number % len(self.slow)])
        else:
            content = path.read_bytes()
            if self.fault == "slow_file" and number % BATCH == 0:
                content += read_cold(self.slow[0])
        return torch.from_numpy(np.frombuffer(content, np.uint8, 256).astype(np.float32) / 255)


def main() -> None:
    """Train."""
    fault, slow, fast, steps, workers = (
        sys.argv[1],
        Path(sys.argv[2]),
        Path(sys.argv[3]),
        int(sys.argv[4]),
        int(sys.argv[5]),
    )
    assert fault in FAULTS, fault
    rank, ranks = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model: nn.Module = nn.Sequential(nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 1))
    if ranks > 1:
        torch.distributed.init_process_group("gloo")
        model = nn.parallel.DistributedDataParallel(model)
    optimizer = Descent(model.parameters(), 1e-4)
    times = 4000 if fault == "slow_rank_compute" and rank == 1 else 1
    began = time.perf_counter()
    epochs = 5 if fault == "cold_epoch" else 1
    dataset = Samples(fault, slow, fast, steps * BATCH // epochs, rank)
    loader = DataLoader(dataset, BATCH, num_workers=workers, persistent_workers=workers > 0)
    for _ in range(epochs):
        for batch in loader:
            optimizer.zero_grad()
            model(batch.repeat(times, 1)).square().mean().backward()
            optimizer.step()
    print(f"{time.perf_counter() - began:.3f}")
    if ranks > 1:
        torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
