"""Making datasets and reading them back, without the loaders."""

import contextlib
import json
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import lmdb

from ioprof.converters import ConvertOptions, convert
from ioprof.converters.job.image_converter import RecordData
from ioprof.converters.layouts.stored_records import StoredRecords
from ioprof.foreign.tensorprotos import decode
from ioprof.format.dataset import Dataset, read_index

FORMS: Final[dict[str, dict[str, Any]]] = {
    "files": {"layout": "files"},
    "lmdb": {"layout": "lmdb"},
    "lmdb in shards": {"layout": "lmdb", "shards": 3},
    "webdataset": {"layout": "webdataset", "shard_bytes": 1 << 16},
    "raw": {"layout": "files", "image": "rgb256", "encoding": "raw", "size": 24},
}
"""Options of datasets whose files are many, one, some, or large."""


def made(source: Path, destination: Path, **options: Any) -> Dataset:
    """Converted in this process, unless `workers` is given."""
    return convert(source, destination, ConvertOptions(**{"workers": 1, **options}))


def record_of(task: tuple[int, int]) -> RecordData:
    """What a worker makes of a byte and a length."""
    return RecordData.of(bytes([task[0]]) * task[1])


def tree(root: Path, images: dict[str, bytes]) -> Path:
    """A source: `wnid/name` → the file's bytes."""
    for name, data in images.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(data)
    return root


def records(dataset: Dataset) -> list[tuple[str, int, bytes]]:
    """Name, label and bytes of all records, in order, read from the disk."""
    if dataset.layout == "webdataset":
        return [record for shard in dataset.shard_paths() for record in _shard_records(shard)]
    if dataset.layout == "files":
        return [
            (Path(path).name, label, (dataset.path / path).read_bytes())
            for path, label in zip(*read_index(dataset), strict=True)
        ]
    # whose bytes their own tests compare with other libraries
    if dataset.layout in (
        "raw",
        "parquet",
    ):
        with contextlib.closing(StoredRecords(dataset)) as stored:
            return [tuple(record) for piece in stored.pieces() for record in stored.read(piece)]
    with (
        lmdb.open(str(dataset.data_path), readonly=True, lock=False) as environment,
        environment.begin(buffers=True) as transaction,
    ):
        found = [
            (bytes(key).decode().partition("_"), decode(value))
            for key, value in transaction.cursor()
        ]
        assert [f"{place:08d}" for place in range(len(found))] == [key[0] for key, _ in found]
        return [(key[2], label, bytes(image)) for key, (image, _, label) in found]


def _shard_records(shard: Path) -> Iterator[tuple[str, int, bytes]]:
    with tarfile.open(shard) as tar:
        members = [tar.extractfile(member).read() for member in tar]
    for image, label, about in zip(members[::3], members[1::3], members[2::3], strict=True):
        yield json.loads(about)["name"], int(label), image


def folder_bytes(folder: Path) -> dict[str, bytes]:
    """Everything in a folder."""
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }
