"""Makes the data that `ways_of_reading.py` reads. Arguments: FOLDER WAYS... Prints the ways whose
data was made; those whose library is missing are left out. A way without a format of its own reads
random bytes.
"""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np

SIZE = 12 << 20


def random_bytes(count: int = SIZE) -> bytes:
    return np.random.default_rng(1).bytes(count)


def rows(count: int, num_bytes: int) -> list[bytes]:
    data = random_bytes(count * num_bytes)
    return [data[place * num_bytes : (place + 1) * num_bytes] for place in range(count)]


def make_arrow(path: Path) -> None:
    import pyarrow as pa

    table = pa.table({"data": rows(120, SIZE // 120)})
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table, max_chunksize=10)


def make_parquet(path: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    table = pa.table({"data": rows(120, SIZE // 120)})
    pq.write_table(table, path, compression=None, row_group_size=10, use_dictionary=False)


def make_hdf5(path: Path) -> None:
    import h5py

    with h5py.File(path, "w") as file:
        data = np.frombuffer(random_bytes(), np.uint8).reshape(-1, 64 << 10)
        file.create_dataset("data", data=data, chunks=(1, 64 << 10))


def make_zarr(path: Path) -> None:
    import zarr

    data = np.frombuffer(random_bytes(), np.uint8).reshape(-1, 64 << 10)
    array = zarr.create_array(
        str(path), shape=data.shape, chunks=(16, 64 << 10), dtype=data.dtype, compressors=None
    )
    array[:] = data


def make_safetensors(path: Path) -> None:
    from safetensors.numpy import save_file

    data = np.frombuffer(random_bytes(), np.uint8)
    save_file({f"part{number}": part for number, part in enumerate(np.split(data, 12))}, path)


def make_lmdb(path: Path) -> None:
    import lmdb

    with (
        lmdb.open(str(path), subdir=False, map_size=4 * SIZE) as environment,
        environment.begin(write=True) as transaction,
    ):
        for number, row in enumerate(rows(SIZE // 60_000, 60_000)):
            transaction.put(b"%08d" % number, row)


def make_litdata(path: Path) -> None:
    from litdata.streaming.writer import BinaryWriter

    path.mkdir()
    writer = BinaryWriter(str(path), chunk_bytes=4 << 20)
    for number, row in enumerate(rows(SIZE // 60_000, 60_000)):
        writer[number] = row
    writer.done()
    writer.merge()


def make_mds(path: Path) -> None:
    from streaming import MDSWriter

    with MDSWriter(out=str(path), columns={"data": "bytes"}, size_limit=4 << 20) as writer:
        for row in rows(SIZE // 60_000, 60_000):
            writer.write({"data": row})


def make_library(path: Path) -> None:
    """A library with 12 MB of data, of which functions read each page."""
    source = path.with_name("shared_library.c")
    source.write_text(
        f"__attribute__((used)) const unsigned char data[{SIZE}] = {{1, [{SIZE - 1}] = 1}};\nlong"
        " read_all(void) { volatile const unsigned char *p = data; long sum = 0;\nfor (long i ="
        f" 0; i < {SIZE}; i += 4096) sum += p[i]; return sum; }}\nlong read_part(long start, long"
        " size) { volatile const unsigned char *p = data + start; long sum = 0;\nfor (long i = 0;"
        " i < size; i += 4096) sum += p[i]; return sum; }\n"
    )
    subprocess.run(["cc", "-shared", "-fPIC", "-o", path, source], check=True)
    with open(path, "r+b") as file:  # pages of zeros may be holes, which no device delivers
        file.seek(0)
        file.write(path.read_bytes())


MAKE: dict[str, Callable[[Path], None]] = {
    "arrow": make_arrow,
    "parquet": make_parquet,
    "hdf5": make_hdf5,
    "zarr": make_zarr,
    "safetensors": make_safetensors,
    "lmdb_in_order": make_lmdb,
    "lmdb_at_random": make_lmdb,
    "litdata": make_litdata,
    "mds": make_mds,
    "shared_library": make_library,
}

if __name__ == "__main__":
    for way in sys.argv[2:]:
        try:
            MAKE.get(way, lambda path: path.write_bytes(random_bytes()))(Path(sys.argv[1], way))
            print(way, flush=True)
        except Exception as error:  # a library that is missing, or does not work with the others
            print(f"{way} cannot be made: {error!r}", file=sys.stderr, flush=True)
    os.sync()
    os._exit(0)  # libraries leave threads that do not end
