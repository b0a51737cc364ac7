"""A training loop that decodes images itself; its DataLoader yields indices only, or there is none.

Arguments: TREE STEPS WORKERS; WORKERS -1: no DataLoader. Prints the seconds of decoding, the
seconds of the loop, and the last loss.
"""

import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from descent import Descent
from PIL import Image
from torch import nn
from torch.utils.data import DataLoader

BATCH = 4


def indices(count: int, workers: int) -> Iterator[torch.Tensor]:
    """Numbers of the images of each batch."""
    if workers < 0:
        return iter(torch.arange(count).split(BATCH))
    return iter(DataLoader(range(count), BATCH, num_workers=workers))


if __name__ == "__main__":
    torch.manual_seed(0)
    torch.set_num_threads(1)
    paths = sorted(Path(sys.argv[1]).glob("*/*.JPEG"))
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3, 2), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 2)
    )
    optimizer = Descent(model.parameters(), 0.1)
    began = time.perf_counter()
    decoding = 0.0
    for batch in indices(int(sys.argv[2]) * BATCH, int(sys.argv[3])):
        images = []
        for index in batch.tolist():
            with Image.open(paths[index % len(paths)]) as image:
                start = time.perf_counter()
                image.load()
                decoding += time.perf_counter() - start
                images.append(
                    torch.from_numpy(np.asarray(image.convert("RGB"))[:64, :64].copy())
                    .permute(2, 0, 1)
                    .float()
                    / 255
                )
        loss = nn.functional.cross_entropy(
            model(torch.stack(images)), torch.arange(len(images)) % 2
        )
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(f"{decoding:.3f} {time.perf_counter() - began:.3f} {loss.item():.9f}")
