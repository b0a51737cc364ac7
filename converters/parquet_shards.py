"""Parquet shards with a column of images and one of labels, as Hugging Face's datasets are distributed.

Labels are the numbers in the shards. Where the names of the files end in a wnid, as those of `imagenet-1k` do, and the wnids have
the order of the labels, they name the classes; elsewhere the label does, in digits of equal number, which sort as it does.
"""

import json
import re
import struct
from array import array
from bisect import bisect_right
from collections.abc import Iterable, Iterator
from itertools import accumulate
from pathlib import Path
from typing import Any, Final

import numpy as np

from ioprof.converters.listing import Lines, ListingWriter
from ioprof.converters.origin import Source, made_source
from ioprof.converters.source_image import SourceImage
from ioprof.dataset import is_plain_name
from ioprof.errors import CommandError, DatasetError

_IMAGES: Final = ("image", "img", "jpg")
_LABELS: Final = ("label", "labels", "cls")
_SPLITS: Final = {"val": ("val", "validation"), "validation": ("validation", "val")}
_OF: Final = re.compile(r"(?P<split>.+?)-\d+-of-(?P<shards>\d+)(-\w+)?\.parquet")
_WNID: Final = re.compile(r"(?:^|_)(n\d{8})$")
_MAX_GROUP_BYTES: Final = 1 << 31
_MAX_CLASSES: Final = 10**6

_ROW: Final = struct.Struct("<IIq")  # file, row group, row; the name follows

Row = tuple[int, int, str, int]
"""Row group, row, name of the image's file (may be empty), label."""


def open_parquet(path: Path, split: str) -> Source | None:
    """The source that is the shard `path`, or the shards of the split in the folder `path`, or in `data` in it."""
    files = _files(path, split)
    if not files:
        return None
    rows = _Rows()
    names: list[str] = []
    for number, file in enumerate(files):
        opened = _opened(file)
        names = _class_names(opened) or names
        rows.add(number, _rows(opened, str(file.absolute())))
    num_classes = max(len(names), 1 + max(rows.labels, default=0))
    if num_classes > _MAX_CLASSES:
        raise DatasetError(f"{path}: a label of {num_classes - 1}; these are no classes")
    classes = rows.classes(num_classes)
    images, places = ListingWriter("parquet"), [str(file.absolute()) for file in files]
    for label, of_class in rows.by_label():
        images.add_class(classes[label], _images(classes[label], places, of_class))
    class_names = {wnid: " ".join(name.split()) for wnid, name in zip(classes, names, strict=False)}
    return made_source(_description(files, path), images, path, path, wnids=classes, class_names=class_names)


def _files(path: Path, split: str) -> list[Path]:
    if path.is_file():
        return [path] if path.suffix == ".parquet" else []
    found = sorted(path.glob("*.parquet")) or sorted(path.glob("data/*.parquet"))
    for prefix in _SPLITS.get(split, (split,)):
        of_split = [file for file in found if file.name.startswith(f"{prefix}-") or file.name == f"{prefix}.parquet"]
        if of_split:
            return of_split
    if any(_OF.fullmatch(file.name) for file in found):
        raise CommandError(f"{path}: no shard of the split {split} ({found[0].name}, ...); give another with --split")
    return found


def _description(files: list[Path], path: Path) -> str:
    match = _OF.fullmatch(files[0].name)
    of = f" of {int(match['shards'])}" if match else ""
    return f"{len(files)}{of} Parquet shards of {path.name.encode(errors='replace').decode()}, shuffled by their row groups"


def _opened(file: Path) -> Any:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError:
        raise CommandError(f"{file}: Parquet needs pyarrow; install it with: pip install 'ioprof[parquet]'", exit_code=1) from None
    try:
        return pyarrow.parquet.ParquetFile(file)
    except (pyarrow.ArrowException, ValueError) as error:
        raise DatasetError(f"{file}: not a Parquet file that can be read ({str(error)[:100]}); get the file again") from None


def _columns(opened: Any, file: str) -> tuple[str, str | None, str]:
    # Paths of the leaves: the image's bytes, the name of its file if there is one, the label.
    leaves = [opened.schema.column(number).path for number in range(len(opened.schema))]
    image = next((name for name in _IMAGES if name in leaves or f"{name}.bytes" in leaves), None)
    label = next((name for name in _LABELS if name in leaves), None)
    if image is None or label is None:
        raise DatasetError(
            f"{file}: no columns of images and labels ({', '.join(leaves)[:100]}); image.bytes and label are expected"
        )
    if image in leaves:
        return image, None, label
    return f"{image}.bytes", f"{image}.path" if f"{image}.path" in leaves else None, label


def _rows(opened: Any, file: str) -> Iterator[Row]:
    _, path, label = _columns(opened, file)
    first = 0
    for group in range(opened.num_row_groups):
        if opened.metadata.row_group(group).total_byte_size > _MAX_GROUP_BYTES:
            raise DatasetError(
                f"{file}: a row group of more than {_MAX_GROUP_BYTES} bytes cannot be held in memory; write smaller ones"
            )
        table = _read(opened, file, group, [label, path] if path else [label])
        labels = table.column(label).to_pylist()
        paths = (
            [(entry or {}).get("path") for entry in table.column(path.partition(".")[0]).to_pylist()]
            if path
            else [None] * len(labels)
        )
        for row, (value, name) in enumerate(zip(labels, paths, strict=True), start=first):
            if not isinstance(value, int) or not 0 <= value < 1 << 63:
                raise DatasetError(f"{file}: row {row} has the label {str(value)[:20]}; a split without labels cannot be converted")
            yield group, row, str(name or "").rpartition("/")[2], value
        first += len(labels)


def _read(opened: Any, file: str, group: int, columns: list[str]) -> Any:
    import pyarrow

    try:
        return opened.read_row_group(group, columns=columns, use_threads=False)
    except (pyarrow.ArrowException, ValueError) as error:
        raise DatasetError(f"{file}: row group {group} cannot be read ({str(error)[:100]}); get the file again") from None


def _class_names(opened: Any) -> list[str]:
    try:
        features = json.loads((opened.schema_arrow.metadata or {}).get(b"huggingface", b"{}"))["info"]["features"]
        names = next(features[name]["names"] for name in _LABELS if name in features)
    except (ValueError, KeyError, TypeError, StopIteration, RecursionError):
        return []
    return names if isinstance(names, list) and all(isinstance(name, str) for name in names) else []


class _Rows:
    """All rows, of which only the labels are held in memory."""

    def __init__(self) -> None:
        self.labels = array("q")
        self._lines = Lines()
        self._wnids: dict[int, str] | None = {}
        """By label, as the names of the files say; null: they do not."""

    def add(self, file: int, rows: Iterable[Row]) -> None:
        """Those of a file; the numbers of files ascend."""
        for group, row, name, label in rows:
            self._lines.append(_ROW.pack(file, group, row) + name.encode())
            self.labels.append(label)
            match = _WNID.search(Path(name).stem) if self._wnids is not None else None
            if match is None or self._wnids is None or self._wnids.setdefault(label, match[1]) != match[1]:
                self._wnids = None

    def classes(self, num_classes: int) -> list[str]:
        """What the classes are called, in the order of their labels."""
        wnids = [(self._wnids or {}).get(label, "") for label in range(num_classes)]
        if all(wnids) and wnids == sorted(set(wnids)):
            return wnids
        digits = len(str(num_classes - 1))
        return [f"{label:0{digits}d}" for label in range(num_classes)]

    def by_label(self) -> Iterator[tuple[int, Iterator[tuple[int, int, int, str]]]]:
        """For each label: file, row group, row and name of its rows, in order."""
        labels = np.array(self.labels, np.int64)
        order = np.argsort(labels, kind="stable")
        for numbers in np.split(order, np.flatnonzero(np.diff(labels[order])) + 1) if len(order) else []:
            yield int(labels[numbers[0]]), (self._row(int(number)) for number in numbers)

    def _row(self, number: int) -> tuple[int, int, int, str]:
        line = self._lines[number]
        return *_ROW.unpack_from(line), line[_ROW.size :].decode()


def _images(wnid: str, files: list[str], rows: Iterable[tuple[int, int, int, str]]) -> Iterator[SourceImage]:
    seen: set[str] = set()
    for number, group, row, name in rows:
        plain, file = name, files[number]
        if not is_plain_name(name) or name in seen:
            plain = f"{Path(file).stem.encode(errors='replace').decode()}_{row:08d}.JPEG"
        seen.add(plain)
        yield SourceImage(wnid, plain, file, row, group=group + 1)


class ParquetReader:
    """Keeps the row group that was read last, since the images of a group are asked for one after the other."""

    def __init__(self) -> None:
        self._files: dict[str, tuple[Any, str, list[int]]] = {}
        self._at: tuple[str, int] = ("", -1)
        self._group: Any = None

    def read(self, image: SourceImage) -> bytes:
        """The bytes of the image's file; null bytes are none, and so a bad image."""
        opened, column, starts = self._file(image.file)
        group = bisect_right(starts, image.offset) - 1
        if self._at != (image.file, group):
            self._group = None  # before the next one is read
            table = _read(opened, image.file, group, [column])
            array = table.column(0).combine_chunks()
            self._group, self._at = (array.field("bytes") if "." in column else array), (image.file, group)
        data: bytes = self._group[image.offset - starts[group]].as_py() or b""
        return data

    def close(self) -> None:
        """Close the shards."""
        while self._files:
            self._files.popitem()[1][0].close()
        self._at, self._group = ("", -1), None

    def _file(self, file: str) -> tuple[Any, str, list[int]]:
        if file not in self._files:
            opened = _opened(Path(file))
            sizes = (opened.metadata.row_group(group).num_rows for group in range(opened.num_row_groups))
            self._files[file] = opened, _columns(opened, file)[0], [0, *accumulate(sizes)][:-1]
        return self._files[file]
