"""A plain training script for extrapolation.py: `extrapolation_job.py FOLDER RECORDS EPOCHS STEPS`.

Trains a small network on JPEGs of FOLDER, of which RECORDS are one epoch, with two workers that are
started anew in each; a step waits 100 ms for a device that is a clock. Validates on a tenth of them
and saves the weights at the end of each epoch. STEPS: 0, or after so many it stops.
"""

import sys
import time
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import nn
from torch.utils.data import DataLoader, Dataset

BATCH = 16
SIZE = 64
DEVICE_S = 0.1


class Images(Dataset[tuple[torch.Tensor, int]]):
    """So many images, those of the folder again and again."""

    def __init__(self, paths: list[Path], number: int) -> None:
        self.paths, self.number = paths, number

    def __len__(self) -> int:
        return self.number

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        path = self.paths[index % len(self.paths)]
        with Image.open(path) as image:
            pixels = np.asarray(image.convert("RGB").resize((SIZE, SIZE)), np.float32)
        return torch.from_numpy(pixels.transpose(2, 0, 1).copy()), index % 10


def main(folder: str, records: int, epochs: int, steps: int) -> None:
    """Train."""
    paths = sorted(Path(folder).rglob("*.JPEG"))
    training, validation = Images(paths, records), Images(paths, records // 10)
    torch.set_num_threads(1)
    model = nn.Sequential(
        nn.Conv2d(3, 8, 5, 4), nn.ReLU(), nn.Conv2d(8, 16, 5, 2), nn.ReLU(), nn.Flatten()
    )
    model.append(nn.LazyLinear(10))
    optimizer = torch.optim.SGD(model.parameters(), 1e-4)
    made = 0
    for epoch in range(epochs):
        model.train()
        for images, labels in DataLoader(training, BATCH, shuffle=True, num_workers=2):
            loss = nn.functional.cross_entropy(model(images), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            time.sleep(DEVICE_S)
            made += 1
            if made == steps:
                return
        model.eval()
        with torch.no_grad():
            for images, _ in DataLoader(validation, BATCH, num_workers=2):
                model(images)
        torch.save(model.state_dict(), f"weights-{epoch}.pt")


if __name__ == "__main__":
    main(sys.argv[1], *map(int, sys.argv[2:]))
