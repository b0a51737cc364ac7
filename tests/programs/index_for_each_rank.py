"""A rank of a training that reads all of an index past the page cache before it trains, as each of
the others does. Arguments: FOLDER STEPS; `prepare FOLDER` makes the index.
"""

import mmap
import os
import sys
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
from descent import Descent
from torch import nn

INDEX_BYTES, PIECE = 32 << 20, 1 << 20


def read_direct(path: Path) -> int:
    """Sum of the first bytes of the pieces of a file."""
    buffer, total = mmap.mmap(-1, PIECE), 0
    file = os.open(path, os.O_RDONLY | os.O_DIRECT)
    while os.readv(file, [buffer]):
        total += buffer[0]
    os.close(file)
    return total


if __name__ == "__main__":
    if sys.argv[1] == "prepare":
        data = np.random.default_rng(0).bytes(INDEX_BYTES)
        Path(sys.argv[2], "train.index").write_bytes(data)
        sys.exit()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    entries = read_direct(Path(sys.argv[1], "train.index"))
    model = nn.parallel.DistributedDataParallel(nn.Linear(512, 512))
    optimizer = Descent(model.parameters(), 1e-9)
    for _ in range(int(sys.argv[2])):
        optimizer.zero_grad()
        model(torch.full((64, 512), float(entries))).square().mean().backward()
        optimizer.step()
    dist.destroy_process_group()
