"""A training script that goes on after SKIPPED batches, which it loads and throws away.

Arguments: FOLDER WORKERS STEPS SKIPPED; `prepare FOLDER` makes the samples.
"""

import sys
from pathlib import Path

import numpy as np
import torch
from descent import Descent
from torch import nn
from torch.utils.data import DataLoader, Dataset

SAMPLES, SAMPLE_BYTES = 256, 128 << 10


class Samples(Dataset):
    """A file each."""

    def __init__(self, folder: str) -> None:
        self.paths = sorted(Path(folder).glob("*.bin"))

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.from_numpy(np.fromfile(self.paths[index], np.uint8))


if __name__ == "__main__":
    if sys.argv[1] == "prepare":
        for number in range(SAMPLES):
            data = np.random.default_rng(number).bytes(SAMPLE_BYTES)
            Path(sys.argv[2], f"{number:03}.bin").write_bytes(data)
        sys.exit()
    folder, workers, steps, skipped = sys.argv[1], *map(int, sys.argv[2:])
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = nn.Linear(SAMPLE_BYTES, 128)
    optimizer = Descent(model.parameters(), 1e-12)
    loader = DataLoader(Samples(folder), batch_size=2, num_workers=workers, shuffle=True)
    for number, samples in enumerate(loader):
        if number < skipped:
            continue
        optimizer.zero_grad()
        model(samples.float()).square().mean().backward()
        optimizer.step()
        if number + 1 == skipped + steps:
            break
