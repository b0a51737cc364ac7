"""A training script that reads a group of 256 rows for each row that it takes, as from a Parquet
file whose rows are shuffled.

Arguments: FOLDER WORKERS STEPS; `prepare FOLDER` makes the file.
"""

import os
import sys
from pathlib import Path

import numpy as np
import torch
from slices_of_clips import train
from torch.utils.data import Dataset

GROUPS, ROWS, ROW_BYTES = 16, 256, 4096
GROUP_BYTES = ROWS * ROW_BYTES


class Rows(Dataset):
    """Rows of groups. The page cache keeps none of them: the data does not fit."""

    def __init__(self, path: Path) -> None:
        self.path, self.file = path, -1

    def __len__(self) -> int:
        return GROUPS * ROWS

    def __getitem__(self, index: int) -> torch.Tensor:
        if self.file < 0:
            self.file = os.open(self.path, os.O_RDONLY)
        group, row = divmod(index, ROWS)
        data = os.pread(self.file, GROUP_BYTES, group * GROUP_BYTES)
        os.posix_fadvise(self.file, 0, 0, os.POSIX_FADV_DONTNEED)
        return torch.frombuffer(bytearray(data), dtype=torch.uint8).view(ROWS, ROW_BYTES)[row]


if __name__ == "__main__":
    if sys.argv[1] == "prepare":
        data = np.random.default_rng(0).bytes(GROUPS * GROUP_BYTES)
        Path(sys.argv[2], "rows.bin").write_bytes(data)
    else:
        train(Rows(Path(sys.argv[1], "rows.bin")), ROW_BYTES, int(sys.argv[2]), int(sys.argv[3]))
