"""The job that job_cost.py measures: torch's DataLoader, Pillow's decode, random crops, a small network on the CPU.

    python benchmarks/training.py TREE WORKERS BEGIN SECONDS

Prints, of SECONDS from the monotonic time BEGIN on (0: after the first epoch), with what lies between epochs: samples per second,
and milliseconds of CPU per sample, of this process and its workers.
"""

import sys
import time
from pathlib import Path

import numpy as np
import psutil
import torch
from PIL import Image
from torch import nn
from torch.utils.data import DataLoader, Dataset

CROP = 160


class Tree(Dataset):
    """Images of class folders, a random crop of each."""

    def __init__(self, root: str) -> None:
        self.paths = sorted(Path(root).glob("*/*.JPEG"))

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        with Image.open(self.paths[index]) as image:
            pixels = np.asarray(image.convert("RGB").resize((CROP, CROP)))
        return torch.from_numpy(pixels.copy()).permute(2, 0, 1), index % 10


def main() -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = nn.Sequential(nn.Conv2d(3, 8, 5, 4), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 10))
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    loader = DataLoader(Tree(sys.argv[1]), batch_size=16, shuffle=True, num_workers=int(sys.argv[2]), persistent_workers=True)
    begin, seconds = float(sys.argv[3]), float(sys.argv[4])
    started, start, cpu_s, samples, num_epochs = False, 0.0, 0.0, 0, 0
    while True:
        for images, labels in loader:
            loss = nn.functional.cross_entropy(model(images.float() / 255), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            now = time.monotonic()
            if not started and now >= begin and num_epochs > 0:
                started, start, cpu_s = True, now, cpu_seconds()
            elif started:
                samples += len(images)
                if now - start >= seconds:
                    print(samples / (now - start), (cpu_seconds() - cpu_s) / samples * 1e3)
                    return
        num_epochs += 1


def cpu_seconds() -> float:
    """Of this process and its living children."""
    here = psutil.Process()
    return sum(process.cpu_times().user + process.cpu_times().system for process in (here, *here.children()))


if __name__ == "__main__":
    main()
