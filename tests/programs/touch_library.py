"""A training loop on the CPU whose model first uses parts of a shared library in each step.

Arguments: LIBRARY STEPS. The library's pages are touched in a random order of blocks, as calls of
its functions would do. Prints the seconds of touching, the seconds of the loop, and the last loss.
"""

import ctypes
import random
import sys
import time

import torch
from descent import Descent
from torch import nn

BLOCK_BYTES = 1 << 18


class Model(nn.Module):
    """A linear layer behind some pages of the library."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(64, 2)
        self.touching = 0.0

    def forward(self, samples: torch.Tensor, addresses: list[int]) -> torch.Tensor:
        """Touch these addresses, then compute."""
        start = time.perf_counter()
        for address in addresses:
            ctypes.string_at(address, 1)
        self.touching += time.perf_counter() - start
        return self.linear(samples)


def blocks(library: str) -> list[int]:
    """An address in each block of the library's code."""
    ctypes.CDLL(library)
    with open("/proc/self/maps") as maps:
        for line in maps:
            if line.rstrip().endswith(library) and " r-xp " in line:
                start, end = (int(word, 16) for word in line.split()[0].split("-"))
                return list(range(start, end, BLOCK_BYTES))
    raise SystemExit(f"{library} is not mapped")


if __name__ == "__main__":
    torch.manual_seed(0)
    torch.set_num_threads(1)
    addresses, steps = blocks(sys.argv[1]), int(sys.argv[2])
    random.Random(0).shuffle(addresses)
    model = Model()
    optimizer = Descent(model.parameters(), 0.1)
    began = time.perf_counter()
    for step in range(steps):
        loss = nn.functional.cross_entropy(
            model(torch.ones(8, 64), addresses[step::steps]), torch.arange(8) % 2
        )
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(f"{model.touching:.3f} {time.perf_counter() - began:.3f} {loss.item():.9f}")
