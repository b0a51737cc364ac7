"""A training script that takes rows of 512 bytes at random places from an array in a mapped file.

Arguments: FOLDER WORKERS STEPS; `prepare FOLDER` makes the array.
"""

import sys
from pathlib import Path

import numpy as np
import torch
from slices_of_clips import train
from torch.utils.data import Dataset

ROWS, ROW_BYTES = 1 << 18, 512


class Rows(Dataset):
    """Rows of an array."""

    def __init__(self, path: Path) -> None:
        self.path, self.rows = path, None

    def __len__(self) -> int:
        return ROWS

    def __getitem__(self, index: int) -> torch.Tensor:
        if self.rows is None:
            self.rows = np.memmap(self.path, np.uint8, "r", shape=(ROWS, ROW_BYTES))
        return torch.from_numpy(self.rows[index].copy())


if __name__ == "__main__":
    if sys.argv[1] == "prepare":
        data = np.random.default_rng(0).bytes(ROWS * ROW_BYTES)
        Path(sys.argv[2], "rows.npy").write_bytes(data)
    else:
        train(Rows(Path(sys.argv[1], "rows.npy")), ROW_BYTES, int(sys.argv[2]), int(sys.argv[3]))
