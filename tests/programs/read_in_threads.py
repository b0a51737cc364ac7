"""A training loop that takes its samples from a pool of threads, with no loader: they read and
decode, it waits for the results.

Arguments: TREE STEPS AHEAD BUSY_MS. AHEAD is how many batches are submitted before they are used,
BUSY_MS the time that the loop itself runs Python in each step. Prints the seconds of waiting for
results, the seconds of the loop, and the last loss.
"""

import sys
import time
from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import numpy as np
import torch
from descent import Descent
from PIL import Image
from torch import nn

BATCH = 4


def load(path: Path) -> torch.Tensor:
    """The corner of an image."""
    with Image.open(path) as image:
        return (
            torch.from_numpy(np.asarray(image.convert("RGB"))[:64, :64].copy())
            .permute(2, 0, 1)
            .float()
            / 255
        )


if __name__ == "__main__":
    torch.manual_seed(0)
    torch.set_num_threads(1)
    paths, steps, ahead = (
        sorted(Path(sys.argv[1]).glob("*/*.JPEG")),
        int(sys.argv[2]),
        int(sys.argv[3]),
    )
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3, 2), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 2)
    )
    optimizer = Descent(model.parameters(), 0.1)
    batches: deque[list[Future[torch.Tensor]]] = deque()
    began = time.perf_counter()
    waiting, submitted = 0.0, 0
    with ThreadPoolExecutor(2) as pool:
        for step in range(steps):
            while submitted < min(step + 1 + ahead, steps):
                first = submitted * BATCH
                batches.append(
                    [
                        pool.submit(load, paths[place % len(paths)])
                        for place in range(first, first + BATCH)
                    ]
                )
                submitted += 1
            start = time.perf_counter()
            images = [future.result() for future in batches.popleft()]
            waiting += time.perf_counter() - start
            until = time.perf_counter() + float(sys.argv[4]) / 1e3
            while time.perf_counter() < until:
                sum(range(1000))
            loss = nn.functional.cross_entropy(model(torch.stack(images)), torch.arange(BATCH) % 2)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    print(f"{waiting:.3f} {time.perf_counter() - began:.3f} {loss.item():.9f}")
