"""Trains a tiny model on features that a manager of multiprocessing keeps for all workers.

ask_manager.py STEPS WORKERS     Prints samples, batches and how long the loop took by its own stopwatch.
"""  # noqa: E501

import sys
import time
from multiprocessing import Manager
from multiprocessing.managers import DictProxy

import numpy as np
import torch
from descent import Descent
from torch import nn
from torch.utils.data import DataLoader, Dataset

num_steps, num_workers = int(sys.argv[1]), int(sys.argv[2])
BATCH, KEPT, WIDTH = 16, 40, 64


class Features(Dataset):
    """Of regions of images, which are averaged."""

    def __init__(self, kept: "DictProxy[int, np.ndarray]") -> None:
        self.kept = kept

    def __len__(self) -> int:
        return num_steps * BATCH

    def __getitem__(self, index: int) -> torch.Tensor:
        regions = self.kept[index % KEPT]
        return torch.from_numpy(regions[:8].mean(0))


def main() -> None:
    torch.manual_seed(0)
    with Manager() as manager:
        kept = manager.dict(
            {
                number: np.random.default_rng(number).random((1500, WIDTH), np.float32)
                for number in range(KEPT)
            }
        )
        loader = DataLoader(Features(kept), BATCH, num_workers=num_workers)
        model = nn.Linear(WIDTH, 1)
        optimizer = Descent(model.parameters(), lr=0.01)
        began = time.perf_counter()
        for inputs in loader:
            optimizer.zero_grad()
            model(inputs).square().mean().backward()
            optimizer.step()
        print(num_steps * BATCH, num_steps, time.perf_counter() - began)


if __name__ == "__main__":
    main()
