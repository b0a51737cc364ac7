"""A training script whose workers each read the whole log, and keep every n-th line of it.

Arguments: FOLDER WORKERS PASSES HOW: `discard` what others take, `divide` by ranges of bytes, or
`select` of a stream without an end, in which each line is compressed and decompressed first;
`prepare FOLDER` makes the log.
"""

import sys
import zlib
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import torch
from descent import Descent
from torch import nn
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

LINES, VALUES = 3000, 1000


class Lines(IterableDataset):
    """One sample per line."""

    def __init__(self, path: Path, how: str) -> None:
        self.path, self.how = path, how

    def __iter__(self) -> Iterator[torch.Tensor]:
        worker = get_worker_info()
        if self.how == "select":
            yield from islice(self.parsed(), worker.id, None, worker.num_workers)
        first, last = 0, LINES
        if self.how == "divide":
            first = LINES * worker.id // worker.num_workers
            last = LINES * (worker.id + 1) // worker.num_workers
        with open(self.path, "rb") as file:
            length = len(file.readline())
            file.seek(first * length)
            for number in range(first, last):
                values = [float(value) for value in file.readline().split()]
                if self.how == "divide" or number % worker.num_workers == worker.id:
                    yield torch.tensor(values)

    def parsed(self) -> Iterator[torch.Tensor]:
        """All lines, again and again."""
        while True:
            with open(self.path, "rb") as file:
                for line in file:
                    text = zlib.decompress(zlib.compress(16 * line))[: len(line)]
                    yield torch.tensor([float(value) for value in text.split()])


def train(dataset: IterableDataset, workers: int, passes: int) -> None:
    """Steps of a small network, as many as one copy of all lines has."""
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = nn.Linear(VALUES, 2)
    optimizer = Descent(model.parameters(), 1e-12)
    for _ in range(passes):
        loader = DataLoader(dataset, batch_size=50, num_workers=workers)
        for samples in islice(loader, LINES // 50):
            optimizer.zero_grad()
            model(samples).square().mean().backward()
            optimizer.step()


if __name__ == "__main__":
    log = Path(sys.argv[2 if sys.argv[1] == "prepare" else 1], "log.txt")
    if sys.argv[1] == "prepare":
        log.write_text((" ".join(["0.125"] * VALUES) + "\n") * LINES)
    else:
        train(Lines(log, sys.argv[4]), int(sys.argv[2]), int(sys.argv[3]))
