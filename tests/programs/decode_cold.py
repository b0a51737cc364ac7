"""Decodes files that are read meanwhile: decode_cold.py make FOLDER, or decode_cold.py run FOLDER.

`run` has a DataLoader's worker decode the files one after the other, each in a span of the user's
own, named for its library. It prints for each the library, a sum of what was decoded, and the
processor's time in seconds.
"""

import importlib
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
from torch.utils.data import DataLoader, Dataset

from ioprof import span

LIBRARIES = (
    ("pyarrow.dataset", "data.parquet"),
    ("h5py", "data.h5"),
    ("zarr", "data.zarr"),
    ("numpy", "data.npz"),
)


def make(folder: Path) -> None:
    """About 2 MB for each library that is installed, compressed to about two thirds of its size."""
    values = np.random.default_rng(0).integers(0, 40, (12, 256 << 10), np.uint8)
    np.savez_compressed(
        folder / "data.npz", **{f"part {number}": part for number, part in enumerate(values)}
    )
    try:
        import pyarrow as pa
        import pyarrow.parquet

        columns = {f"column {number}": part for number, part in enumerate(values)}
        pa.parquet.write_table(
            pa.table(columns), folder / "data.parquet", compression="gzip", use_dictionary=False
        )
    except ImportError:
        pass
    try:
        import h5py

        with h5py.File(folder / "data.h5", "w") as file:
            file.create_dataset("x", data=values, chunks=(1, 256 << 10), compression="gzip")
    except ImportError:
        pass
    try:
        import zarr

        codec = zarr.codecs.GzipCodec(level=5)
        options = {
            "shape": values.shape,
            "chunks": (1, 256 << 10),
            "dtype": "u1",
            "compressors": codec,
        }
        zarr.create_array(str(folder / "data.zarr"), **options)[:] = values
    except ImportError:
        pass


class Files(Dataset[Any]):
    """An item is the data of a library; 0 where there is none."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __len__(self) -> int:
        return len(LIBRARIES)

    def __getitem__(self, number: int) -> tuple[int, float]:
        library, name = LIBRARIES[number]
        if not (self.folder / name).exists():
            return 0, 0.0
        begin_s = time.process_time()
        with span("use", library):
            found = getattr(self, library.partition(".")[0])()
        return found, time.process_time() - begin_s

    def pyarrow(self) -> int:
        """As a table."""
        import pyarrow.parquet  # which reads by pyarrow.dataset

        table = pyarrow.parquet.read_table(
            self.folder / "data.parquet", use_threads=False, pre_buffer=False
        )
        return sum(int(column.to_numpy().sum()) for column in table.columns)

    def h5py(self) -> int:
        """Chunk by chunk."""
        import h5py

        with h5py.File(self.folder / "data.h5") as file:
            return sum(int(file["x"][row].sum()) for row in range(12))

    def zarr(self) -> int:
        """Chunk by chunk."""
        import zarr

        array = zarr.open(str(self.folder / "data.zarr"), mode="r")
        return sum(int(array[row].sum()) for row in range(12))

    def numpy(self) -> int:
        """Part by part."""
        with np.load(self.folder / "data.npz") as file:
            return sum(int(file[name].sum()) for name in file.files)


if __name__ == "__main__":
    if sys.argv[1] == "make":
        make(Path(sys.argv[2]))
    else:
        for library, name in LIBRARIES:
            if Path(sys.argv[2], name).exists():
                importlib.import_module(library)  # in a span of decoding this would be decoding
        for (library, _), (found, cpu_s) in zip(
            LIBRARIES,
            DataLoader(Files(Path(sys.argv[2])), batch_size=None, num_workers=1),
            strict=True,
        ):
            print(library, found, cpu_s)
