"""Reads blocks of a file at a steady rate, and writes when it ended: FILE READS_PER_S SECONDS END
[--workers N].

Without workers the main thread reads. With workers it is a training loop whose DataLoader reads:
500 reads per batch. END is a file that gets CLOCK_MONOTONIC at the end, in nanoseconds, and the
number of reads.
"""

import argparse
import os
import time
from pathlib import Path

BLOCK = 64
READS_PER_BATCH = 500


def read_for(descriptor: int, reads: int, reads_per_s: float, begin_s: float) -> None:
    """Read that often; the read of number n is not made before `begin_s` + n / `reads_per_s`."""
    for number in range(reads):
        os.pread(descriptor, BLOCK, number % 1000 * BLOCK)
        if (
            number % 100 == 99
            and (ahead_s := begin_s + number / reads_per_s - time.monotonic()) > 0
        ):
            time.sleep(ahead_s)


def read_alone(path: str, reads_per_s: float, seconds: float) -> int:
    """Read in the main thread."""
    descriptor, reads = os.open(path, os.O_RDONLY), round(reads_per_s * seconds)
    read_for(descriptor, reads, reads_per_s, time.monotonic())
    return reads


def train(path: str, reads_per_s: float, seconds: float, workers: int) -> int:
    """Train on batches whose samples each read many blocks."""
    import torch

    class Blocks(torch.utils.data.Dataset):  # type: ignore[type-arg,misc]
        def __len__(self) -> int:
            return round(reads_per_s * seconds / READS_PER_BATCH)

        def __getitem__(self, index: int) -> torch.Tensor:
            descriptor = os.open(path, os.O_RDONLY)
            read_for(descriptor, READS_PER_BATCH - 1, reads_per_s / workers, time.monotonic())
            os.close(descriptor)
            return torch.ones(8)

    torch.set_num_threads(1)
    model = torch.nn.Linear(8, 1)
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    dataset = Blocks()
    for batch in torch.utils.data.DataLoader(dataset, batch_size=1, num_workers=workers):
        optimizer.zero_grad()
        model(batch).sum().backward()
        optimizer.step()
    return len(dataset) * READS_PER_BATCH


def main() -> None:
    """Read, then say when that ended."""
    parser = argparse.ArgumentParser()
    parser.add_argument("file")
    parser.add_argument("rate", type=float)
    parser.add_argument("seconds", type=float)
    parser.add_argument("end", type=Path)
    parser.add_argument("--workers", type=int, default=0)
    options = parser.parse_args()
    if options.workers:
        reads = train(options.file, options.rate, options.seconds, options.workers)
    else:
        reads = read_alone(options.file, options.rate, options.seconds)
    options.end.write_text(f"{time.monotonic_ns()} {reads}")


if __name__ == "__main__":
    main()
