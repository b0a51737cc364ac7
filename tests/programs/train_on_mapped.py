"""A training script whose samples come through mappings. Arguments: FOLDER HOW WORKERS STEPS
[passed_on | copied].

HOW: `memmap_at_random` reads rows of an array at random; `shared_library` calls a function of a
library that reads a part of its own data. With `passed_on` samples are parts of the memmap itself:
the data is read when a thread of the worker sends them. With `copied` they are copied by one call
that keeps the interpreter lock, and a step takes `FORWARD_S` besides. Prints how long the reads
took, in seconds, if they are made by the training process itself (WORKERS is 0).
"""

import ctypes
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from descent import Descent
from torch import nn
from torch.utils.data import DataLoader, Dataset

PART = 128 << 10
PASSED_ON = sys.argv[5:] == ["passed_on"]
COPIED = sys.argv[5:] == ["copied"]
FORWARD_S = 0.03


class Model(nn.Linear):
    """A layer that may take a known time."""

    def forward(self, sums: torch.Tensor) -> torch.Tensor:
        if COPIED:
            time.sleep(FORWARD_S)
        return super().forward(sums)


def stack(samples: list[Any]) -> list[Any]:
    """Nothing is copied."""
    return samples


class Mapped(Dataset):
    """Sums over parts of a file."""

    def __init__(self, path: Path, how: str) -> None:
        self.path, self.how, self.reader = path, how, None
        self.order = np.random.default_rng(0).permutation(path.stat().st_size // PART - 1)
        self.took_s = 0.0

    def __len__(self) -> int:
        return len(self.order)

    def __getitem__(self, index: int) -> Any:
        start, place = time.monotonic(), int(self.order[index])
        if self.how == "memmap_at_random":
            self.reader = (
                np.memmap(self.path, np.uint8, mode="r") if self.reader is None else self.reader
            )
            if PASSED_ON:
                return self.reader[place * PART : (place + 1) * PART]
            part = self.reader[place * PART : (place + 1) * PART]
            total = float(part.tobytes()[0] if COPIED else part.sum())
        else:
            self.reader = ctypes.CDLL(str(self.path)) if self.reader is None else self.reader
            total = float(self.reader.read_part(ctypes.c_long(place * PART), ctypes.c_long(PART)))
        self.took_s += time.monotonic() - start
        return torch.full((8,), total % 7)


if __name__ == "__main__":
    folder, how, workers, steps = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = Model(8, 2)
    optimizer = Descent(model.parameters(), 0.1)
    dataset = Mapped(folder / how, how)
    collate = stack if PASSED_ON else None
    for _, found in zip(
        range(steps),
        DataLoader(dataset, batch_size=2, num_workers=workers, collate_fn=collate),
        strict=False,
    ):
        sums = (
            torch.stack([torch.full((8,), float(part[0] % 7)) for part in found])
            if PASSED_ON
            else found
        )
        optimizer.zero_grad()
        model(sums).square().mean().backward()
        optimizer.step()
    print(dataset.took_s)
