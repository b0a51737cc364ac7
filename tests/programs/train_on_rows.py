"""A training whose data set reads a row group of a Parquet file for each sample, by pyarrow's
threads in the training process.

Arguments: FILE STEPS HOW. HOW: `fetch`, in a DataLoader without workers; `step`, a DataLoader hands
out indices and another thread reads the rows in each step; `both`, a thread of the program's own
reads another file, FILE.other, all the time as well. Prints the bytes that pyarrow read from the
file.
"""

import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import torch
from descent import Descent
from torch import nn
from torch.utils.data import DataLoader, Dataset

PATH, STEPS, HOW = Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3]


class Rows(Dataset):
    """Item i is the mean of row group i; `num_bytes` counts what a group has in the file."""

    def __init__(self) -> None:
        self.file = pq.ParquetFile(PATH)
        self.num_bytes = 0

    def __len__(self) -> int:
        return self.file.num_row_groups

    def read(self, index: int) -> torch.Tensor:
        table = self.file.read_row_group(index, use_threads=True)
        group = self.file.metadata.row_group(index)
        self.num_bytes += sum(
            group.column(place).total_compressed_size for place in range(group.num_columns)
        )
        # to_numpy() would import pandas
        values = [np.frombuffer(column.chunk(0).buffers()[1]) for column in table.columns]
        return torch.from_numpy(np.array([column.mean() for column in values], np.float32))

    def __getitem__(self, index: int) -> torch.Tensor | int:
        return index if HOW == "step" else self.read(index)


def read_all_the_time(done: threading.Event) -> None:
    """Read another file in pieces of 64 kB until that is set."""
    while not done.wait(0.0005):
        with open(f"{PATH}.other", "rb", buffering=0) as file:
            while file.read(65_536) and not done.wait(0.0005):
                pass


if __name__ == "__main__":
    torch.manual_seed(0)
    torch.set_num_threads(1)
    rows, done = Rows(), threading.Event()
    reader = threading.Thread(target=read_all_the_time, args=(done,))
    if HOW == "both":
        reader.start()
    model = nn.Sequential(
        nn.Linear(4, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 1)
    )
    optimizer = Descent(model.parameters(), 0.01)
    with ThreadPoolExecutor(1) as pool:
        for step, batch in enumerate(DataLoader(rows, batch_size=2, shuffle=True, num_workers=0)):
            if HOW == "step":
                batch = torch.stack(list(pool.map(rows.read, batch.tolist())))
            for _ in range(5):  # long enough for the thread beside it to read between fetches, too
                model(torch.randn(256, 4)).sum().backward()
            loss = model(batch).pow(2).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if step + 1 == STEPS:
                break
    done.set()
    if HOW == "both":
        reader.join()
    print(rows.num_bytes)
