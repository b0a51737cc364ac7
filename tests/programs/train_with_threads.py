"""A training whose workers decode and transform; HOW says what each worker does to its own threads
and cores at its start.

Arguments: TREE WORKERS SECONDS HOW. HOW: `plain`; `affinity=N`, only core N may be used; `opencv=N`
or `torch=N`, N threads of that library, which transforms. Prints the number of steps.
"""

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

WHAT, _, NUMBER = sys.argv[4].partition("=")


def limit_worker(_: int) -> None:
    if WHAT == "affinity":
        os.sched_setaffinity(0, {int(NUMBER)})
    elif WHAT == "opencv":
        cv2.setNumThreads(int(NUMBER))
    elif WHAT == "torch":
        torch.set_num_threads(int(NUMBER))


def augment(pixels: np.ndarray) -> torch.Tensor:
    if WHAT == "opencv":
        large = cv2.GaussianBlur(cv2.resize(pixels, (1024, 1024)), (9, 9), 0)
        return torch.from_numpy(large[::32, ::32].copy()).permute(2, 0, 1).float() / 255
    if WHAT == "torch":
        large = torch.from_numpy(pixels.copy()).float().repeat(2, 2, 1)
        for _ in range(6):
            large = large.mul(1.01).sin_()
        return nn.functional.interpolate(large.permute(2, 0, 1)[None], (32, 32))[0]
    return (
        torch.from_numpy(np.asarray(Image.fromarray(pixels).resize((32, 32))))
        .permute(2, 0, 1)
        .float()
        / 255
    )


class Tree(Dataset):
    """Images of class folders, each many times."""

    def __init__(self, root: str) -> None:
        self.paths = sorted(Path(root).glob("*/*.JPEG"))

    def __len__(self) -> int:
        return 1000 * len(self.paths)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        with Image.open(self.paths[index % len(self.paths)]) as image:
            return augment(np.array(image.convert("RGB"))), index % 2


if WHAT == "opencv":
    import cv2

if __name__ == "__main__":
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3, 2), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 2)
    )
    optimizer = Descent(model.parameters(), 0.1)
    loader = DataLoader(
        Tree(sys.argv[1]), batch_size=4, num_workers=int(sys.argv[2]), worker_init_fn=limit_worker
    )
    steps, end = 0, time.monotonic() + float(sys.argv[3])
    for images, labels in loader:
        loss = nn.functional.cross_entropy(model(images), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        steps += 1
        if time.monotonic() > end:
            break
    print(steps)
