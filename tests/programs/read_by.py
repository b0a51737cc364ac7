"""Reads all of a dataset by somebody's library, and prints the bytes that it handed out. Arguments:
HOW PATH.

HOW: spawn, persistent (torch's DataLoader on an image tree, one epoch and two), dali, dali-mmap (an
image tree), webdataset (a folder of tars), h5py, parquet (a folder of one such file), lmdb (an
environment).
"""

import sys
from pathlib import Path

HOW, PATH = sys.argv[1], Path(sys.argv[2])


class Files:
    """The bytes of each image of a tree."""

    def __init__(self, root: Path) -> None:
        self.paths = sorted(root.glob("*/*.JPEG"))

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> int:
        return len(self.paths[index].read_bytes())


def by_loader() -> int:
    """Two workers: one epoch of spawned ones, two of those that stay."""
    from torch.utils.data import DataLoader

    started = (
        {"multiprocessing_context": "spawn"} if HOW == "spawn" else {"persistent_workers": True}
    )
    loader = DataLoader(Files(PATH), batch_size=4, num_workers=2, **started)
    return sum(int(lengths.sum()) for _ in range(1 if HOW == "spawn" else 2) for lengths in loader)


def by_dali() -> int:
    """DALI's file reader, with and without memory maps."""
    from nvidia import dali

    pipeline = dali.Pipeline(batch_size=1, num_threads=1, device_id=None)
    with pipeline:
        pipeline.set_outputs(
            *dali.fn.readers.file(file_root=str(PATH), name="files", dont_use_mmap=HOW == "dali")
        )
    pipeline.build()
    return sum(pipeline.run()[0].at(0).nbytes for _ in range(pipeline.epoch_size("files")))


def by_webdataset() -> int:
    """The webdataset library, on plain tars."""
    import webdataset

    tars = [str(path) for path in sorted(PATH.rglob("*.tar"))]
    return sum(len(sample["jpg"]) for sample in webdataset.WebDataset(tars, shardshuffle=False))


def by_h5py() -> int:
    """Every data set of a file."""
    import h5py

    with h5py.File(PATH / "images.h5") as file:
        return sum(len(image[:]) for image in file.values())


def by_parquet() -> int:
    """Every row of a file, without memory maps."""
    import pyarrow.parquet as pq

    table = pq.read_table(PATH / "images.parquet", memory_map=False)
    return sum(len(image.as_buffer()) for image in table["image"])


def by_lmdb() -> int:
    """Every value, through the map."""
    import lmdb

    with (
        lmdb.open(str(PATH), readonly=True, lock=False, readahead=False) as environment,
        environment.begin() as transaction,
    ):
        return sum(len(value) for _, value in transaction.cursor())


READ = {
    "spawn": by_loader,
    "persistent": by_loader,
    "dali": by_dali,
    "dali-mmap": by_dali,
    "webdataset": by_webdataset,
    "h5py": by_h5py,
    "parquet": by_parquet,
    "lmdb": by_lmdb,
}

if __name__ == "__main__":
    print(READ[HOW]())
