"""A training script that reads whole recordings, and takes a short part of each.

Arguments: FOLDER WORKERS STEPS; `prepare FOLDER` makes the recordings: 64 files of 16-bit samples.
"""

import sys
from pathlib import Path

import numpy as np
import torch
from descent import Descent
from torch import nn
from torch.utils.data import DataLoader, Dataset

CLIPS, CLIP_BYTES, PART = 64, 1 << 20, 8 << 10


class Clips(Dataset):
    """Parts of recordings."""

    def __init__(self, folder: str) -> None:
        self.paths = sorted(Path(folder).glob("*.pcm"))

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> torch.Tensor:
        clip = np.fromfile(self.paths[index], np.int16)
        start = index * 4001 % (len(clip) - PART)
        return torch.from_numpy(clip[start : start + PART].copy())


def train(dataset: Dataset, values: int, workers: int, steps: int) -> None:
    """Steps of a small network, on two samples of so many values each."""
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model, done = nn.Linear(values, 2), 0
    optimizer = Descent(model.parameters(), 1e-12)
    while done < steps:
        for samples in DataLoader(dataset, batch_size=2, num_workers=workers, shuffle=True):
            optimizer.zero_grad()
            model(samples.float()).square().mean().backward()
            optimizer.step()
            done += 1
            if done == steps:
                break


if __name__ == "__main__":
    if sys.argv[1] == "prepare":
        for number in range(CLIPS):
            data = np.random.default_rng(number).bytes(CLIP_BYTES)
            Path(sys.argv[2], f"{number:03}.pcm").write_bytes(data)
    else:
        train(Clips(sys.argv[1]), PART, int(sys.argv[2]), int(sys.argv[3]))
