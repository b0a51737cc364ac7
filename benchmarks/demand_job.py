"""The job of `demand.py`: records of constant size, read in one of several ways, and a model whose
forward pass takes a known time.

    python benchmarks/demand_job.py make FOLDER WAY
    python benchmarks/demand_job.py WAY FOLDER

WAY is one of `WAYS`. The model waits instead of computing, so that the job needs little of the
processor.
"""

import os
import sys
import tarfile
import time
from collections.abc import Iterator
from io import BytesIO
from pathlib import Path
from typing import Any

import lmdb
import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, IterableDataset

WAYS = ("files", "lmdb-map", "lmdb-pread", "webdataset", "memmap", "memmap-whole")
RECORDS, RECORD_BYTES = 1280, 100_000
# Readers enough to keep the disk at work: one that waits for each page alone is bound by latency,
# whatever the rate.
BATCH, FORWARD_S, WORKERS = 8, 0.030, 4
EVERY = {"memmap": 4, "memmap-whole": 1}
"""Of a memmap, every fourth record is read, as by one of four ranks: readahead does not fetch what
later batches read."""


def make(folder: Path, way: str) -> None:
    """Write the records as one way of reading needs them."""
    random = np.random.default_rng(0)
    if way in EVERY:
        with (folder / "records.bin").open("wb") as whole:
            for _ in range(RECORDS * EVERY[way]):
                whole.write(random.bytes(RECORD_BYTES))
    elif way == "files":
        (folder / "files").mkdir()
        for number in range(RECORDS):
            (folder / "files" / f"{number:05d}").write_bytes(random.bytes(RECORD_BYTES))
    elif way == "webdataset":
        for shard in range(4):
            with tarfile.open(folder / f"shard-{shard}.tar", "w") as tar:
                for number in range(shard, RECORDS, 4):
                    header = tarfile.TarInfo(f"{number:05d}.bin")
                    header.size = RECORD_BYTES
                    tar.addfile(header, BytesIO(random.bytes(RECORD_BYTES)))
    else:
        with (
            lmdb.open(str(folder / "lmdb"), map_size=1 << 28) as environment,
            environment.begin(write=True) as writes,
        ):
            for number in range(RECORDS):
                writes.put(f"{number:05d}".encode(), random.bytes(RECORD_BYTES), append=True)


class Records(Dataset):
    """Records by number, in a random order."""

    def __init__(self, way: str, folder: Path) -> None:
        self.way, self.folder = way, folder
        self.order = np.random.default_rng(1).permutation(RECORDS)
        self.source: Any = None

    def __len__(self) -> int:
        return RECORDS

    def __getitem__(self, index: int) -> torch.Tensor:
        number = int(self.order[index])
        if self.way == "files":
            record = (self.folder / "files" / f"{number:05d}").read_bytes()
        elif self.way in EVERY:
            if self.source is None:
                self.source = np.memmap(self.folder / "records.bin", np.uint8, "r")
            place = number * EVERY[self.way]
            record = self.source[place * RECORD_BYTES : (place + 1) * RECORD_BYTES].tobytes()
        else:
            if self.source is None:
                environment = lmdb.open(
                    str(self.folder / "lmdb"), readonly=True, lock=False, readahead=False
                )
                self.source = environment.begin(buffers=True)
            value = self.source.get(f"{number:05d}".encode())
            record = bytes(value) if self.way == "lmdb-map" else self.pread(value)
        return torch.from_numpy(np.frombuffer(record, np.uint8)[:1024].copy())

    def pread(self, value: memoryview) -> bytes:
        """The bytes of a value by one read of the file, of which only the place is taken from the
        map.
        """
        path = str(self.folder / "lmdb" / "data.mdb")
        if not hasattr(self, "descriptor"):
            self.descriptor = os.open(path, os.O_RDONLY)
            mapped = next(
                line
                for line in Path("/proc/self/maps").read_text().splitlines()
                if line.endswith(path)
            )
            self.begin = int(mapped.split("-")[0], 16) - int(mapped.split()[2], 16)
        return os.pread(
            self.descriptor, len(value), np.frombuffer(value, np.uint8).ctypes.data - self.begin
        )


class Shards(IterableDataset):
    """Records of tars, by webdataset."""

    def __init__(self, folder: Path) -> None:
        import webdataset

        self.shards = webdataset.WebDataset(str(folder / "shard-{0..3}.tar"), shardshuffle=False)

    def __iter__(self) -> Iterator[torch.Tensor]:
        for sample in self.shards:
            yield torch.from_numpy(np.frombuffer(sample["bin"], np.uint8)[:1024].copy())


class Model(nn.Module):
    """One weight, and a forward pass that takes `FORWARD_S`."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(1))

    def forward(self, records: torch.Tensor) -> torch.Tensor:
        time.sleep(FORWARD_S)
        return (records.float().mean() * self.weight).sum()


def main() -> None:
    way, folder = sys.argv[1], Path(sys.argv[2])
    if way == "make":
        make(folder, sys.argv[3])
        return
    torch.set_num_threads(1)
    model = Model()
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    data = Shards(folder) if way == "webdataset" else Records(way, folder)
    for records in DataLoader(data, BATCH, num_workers=WORKERS, prefetch_factor=2):
        optimizer.zero_grad()
        model(records).backward()
        optimizer.step()


if __name__ == "__main__":
    main()
