"""Reads files in many ways. Arguments: `all` DEVICE FOLDER WAYS... or `read` WAY FOLDER.

`all` forks a process for each way, one after the other, and prints a line of JSON for each: the
way, its process, and the bytes that the block device delivered meanwhile (kernel documentation,
block/stat: the third number, in sectors of 512). FOLDER has a folder or a file for each way.
Libraries are imported before the fork, so that reading them, from another device, is not counted.
"""

import ctypes
import importlib
import json
import mmap
import os
import random
import sys
from pathlib import Path

RANDOM = random.Random(0)
PAGE = mmap.PAGESIZE


def descriptor(path: Path, flags: int = 0) -> tuple[int, int]:
    return os.open(path, os.O_RDONLY | flags), path.stat().st_size


def shuffled(count: int) -> list[int]:
    return RANDOM.sample(range(count), count)


def read_in_order(path: Path) -> None:
    file, _ = descriptor(path)
    while os.read(file, 128 << 10):
        pass


def read_small(path: Path) -> None:
    with open(path, "rb") as file:
        while file.read(5000):
            pass


def read_at_random(path: Path) -> None:
    file, size = descriptor(path)
    for place in shuffled(size // 40_000):
        os.lseek(file, place * 40_000, os.SEEK_SET)
        os.read(file, 40_000)


def pread(path: Path) -> None:
    file, size = descriptor(path)
    for place in range(0, size, 100_000):
        os.pread(file, 100_000, place)


def preadv(path: Path) -> None:
    file, size = descriptor(path)
    parts = [bytearray(30_000), bytearray(70_000)]
    for place in shuffled(size // 100_000):
        os.preadv(file, parts, place * 100_000)


def readv(path: Path) -> None:
    file, _ = descriptor(path)
    parts = [bytearray(30_000), bytearray(70_000)]
    while os.readv(file, parts):
        pass


def ranges_with_gaps(path: Path) -> None:
    """Every second 20 kB in order, each by a descriptor of its own, as readers of shards do."""
    for place in range(0, path.stat().st_size, 40_000):
        with open(path, "rb") as file:
            file.seek(place)
            file.read(20_000)


def stdio(path: Path) -> None:
    libc = ctypes.CDLL(None)
    libc.fopen.restype = ctypes.c_void_p
    stream = ctypes.c_void_p(libc.fopen(str(path).encode(), b"rb"))
    buffer = ctypes.create_string_buffer(50_000)
    while libc.fread(buffer, 1, 50_000, stream):
        pass


def sendfile(path: Path) -> None:
    file, size = descriptor(path)
    with open(os.devnull, "wb") as sink:
        done = 0
        while done < size:
            done += os.sendfile(sink.fileno(), file, done, 1 << 20)


def copy_file_range(path: Path) -> None:
    file, _ = descriptor(path)
    with open(path.with_name("copy"), "wb") as sink:
        while os.copy_file_range(file, sink.fileno(), 1 << 20):
            pass


def direct(path: Path) -> None:
    file, size = descriptor(path, os.O_DIRECT)
    buffer = mmap.mmap(-1, 1 << 20)
    for place in range(0, size, 1 << 20):
        os.preadv(file, [buffer], place)


def fadvise(path: Path) -> None:
    file, size = descriptor(path)
    for place in range(0, size, 1 << 20):
        os.posix_fadvise(file, place, 1 << 20, os.POSIX_FADV_WILLNEED)
        os.pread(file, 1 << 20, place)


def fromfile(path: Path) -> None:
    import numpy as np

    np.fromfile(path, np.uint8)


def memmap_in_order(path: Path) -> None:
    import numpy as np

    array = np.memmap(path, np.uint8, mode="r")
    for start in range(0, len(array), 100_000):
        array[start : start + 100_000].sum()


def memmap_at_random(path: Path) -> None:
    import numpy as np

    array = np.memmap(path, np.uint8, mode="r")
    for place in shuffled(len(array) // 50_000):
        array[place * 50_000 : place * 50_000 + 20_000].sum()


def touch(mapped: mmap.mmap, pages: list[int]) -> None:
    for page in pages:
        mapped[page * PAGE]


def mapped(path: Path, flags: int = mmap.MAP_SHARED) -> tuple[mmap.mmap, int]:
    file, size = descriptor(path)
    return mmap.mmap(file, size, flags, mmap.PROT_READ), size // PAGE


def mmap_random(path: Path) -> None:
    memory, pages = mapped(path)
    memory.madvise(mmap.MADV_RANDOM)
    touch(memory, shuffled(pages)[: pages // 2])


def mmap_sequential(path: Path) -> None:
    memory, pages = mapped(path)
    memory.madvise(mmap.MADV_SEQUENTIAL)
    touch(memory, list(range(pages)))


def mmap_willneed(path: Path) -> None:
    memory, pages = mapped(path)
    memory.madvise(mmap.MADV_WILLNEED)
    touch(memory, list(range(pages)))


def mmap_populate(path: Path) -> None:
    memory, pages = mapped(path, mmap.MAP_SHARED | mmap.MAP_POPULATE)
    touch(memory, list(range(pages)))


def arrow(path: Path) -> None:
    import pyarrow as pa

    with pa.memory_map(str(path)) as source:
        table = pa.ipc.open_file(source).read_all()
        for row in shuffled(len(table)):
            table["data"][row].as_buffer().to_pybytes()


def parquet(path: Path) -> None:
    import pyarrow.parquet as pq

    with pq.ParquetFile(path) as file:
        for group in shuffled(file.num_row_groups):
            file.read_row_group(group)


def hdf5(path: Path) -> None:
    import h5py

    with h5py.File(path) as file:
        data = file["data"]
        for row in shuffled(len(data)):
            data[row]


def zarr(path: Path) -> None:
    import zarr

    data = zarr.open_array(str(path), mode="r")
    for row in range(0, data.shape[0], 16):
        data[row : row + 16]


def safetensors(path: Path) -> None:
    from safetensors import safe_open

    with safe_open(str(path), framework="numpy") as file:
        for name in sorted(file.keys()):
            file.get_tensor(name).sum()


def environment(path: Path):
    import lmdb

    return lmdb.open(str(path), subdir=False, readonly=True, lock=False)


def lmdb_in_order(path: Path) -> None:
    with environment(path).begin() as transaction:
        sum(len(value) for _, value in transaction.cursor())


def lmdb_at_random(path: Path) -> None:
    with environment(path).begin() as transaction:
        keys = list(transaction.cursor().iternext(values=False))
        for place in shuffled(len(keys)):
            transaction.get(keys[place])


def litdata(path: Path) -> None:
    import litdata as ld

    dataset = ld.StreamingDataset(str(path))
    for index in shuffled(len(dataset)):
        dataset[index]


def mds(path: Path) -> None:
    from streaming import StreamingDataset

    dataset = StreamingDataset(local=str(path), shuffle=False, batch_size=1)
    for index in shuffled(len(dataset)):
        dataset[index]


def shared_library(path: Path) -> None:
    # the dynamic linker's own calls are not seen: recording of a forked process begins with another
    # call
    path.stat()
    ctypes.CDLL(str(path)).read_all()


WAYS = {
    read.__name__: read
    for read in (
        read_in_order,
        read_small,
        read_at_random,
        pread,
        preadv,
        readv,
        ranges_with_gaps,
        stdio,
        sendfile,
        copy_file_range,
        direct,
        fadvise,
        fromfile,
        memmap_in_order,
        memmap_at_random,
        mmap_random,
        mmap_sequential,
        mmap_willneed,
        mmap_populate,
        arrow,
        parquet,
        hdf5,
        zarr,
        safetensors,
        lmdb_in_order,
        lmdb_at_random,
        litdata,
        mds,
        shared_library,
    )
}


LIBRARIES = {
    "fromfile": ("numpy",),
    "memmap_in_order": ("numpy",),
    "memmap_at_random": ("numpy",),
    "arrow": ("pyarrow", "pyarrow.ipc"),
    "parquet": ("pyarrow.parquet",),
    "hdf5": ("h5py",),
    "zarr": ("zarr",),
    "safetensors": ("safetensors", "safetensors.numpy"),
    "lmdb_in_order": ("lmdb",),
    "lmdb_at_random": ("lmdb",),
    "litdata": ("litdata",),
    "mds": ("streaming",),
}


def delivered(device: str) -> int:
    return int(Path("/sys/class/block", device, "stat").read_text().split()[2]) * 512


def import_libraries(ways: list[str]) -> None:
    for way in ways:
        for name in LIBRARIES.get(way, ()):
            importlib.import_module(name)


def run_all(device: str, folder: Path, ways: list[str]) -> None:
    import_libraries(ways)
    for way in ways:
        before = delivered(device)
        child = os.fork()
        if not child:
            WAYS[way](folder / way)
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0, way
        print(
            json.dumps({"way": way, "pid": child, "device": delivered(device) - before}), flush=True
        )


if __name__ == "__main__":
    if sys.argv[1] == "all":
        run_all(sys.argv[2], Path(sys.argv[3]), sys.argv[4:])
    else:
        WAYS[sys.argv[2]](Path(sys.argv[3], sys.argv[2]))
