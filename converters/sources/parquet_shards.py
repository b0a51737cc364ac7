"""Parquet shards with a column of images and one of labels, the format of Hugging Face's datasets.

Labels are the numbers in the shards. Where the file names end in a wnid, as those of `imagenet-1k`
do, and the wnids sort like the labels, the classes are named by wnid; elsewhere by the label with
leading zeros, which sorts the same way.
"""

import re
import struct
from array import array
from bisect import bisect_right
from collections.abc import Iterable, Iterator
from itertools import accumulate
from pathlib import Path
from typing import Any, Final

import numpy as np

from ioprof.converters.sources.arrow_files import class_names, damaged_file
from ioprof.converters.sources.listing import Lines, ListingWriter
from ioprof.converters.sources.record_table import is_wnid_list
from ioprof.converters.sources.refusals import Refusals
from ioprof.converters.sources.source import Source, make_source
from ioprof.converters.sources.source_image import SourceImage
from ioprof.errors import CommandError, DatasetError
from ioprof.format.dataset import is_plain_name

_IMAGES: Final = ("image", "img", "jpg")
_LABELS: Final = ("label", "labels", "cls")
_SPLITS: Final = {"val": ("val", "validation"), "validation": ("validation", "val")}
_OF: Final = re.compile(r"(?P<split>.+?)-\d+-of-(?P<shards>\d+)(-\w+)?\.parquet")
_WNID: Final = re.compile(r"(?:^|_)(n\d{8})$")
_MAX_GROUP_BYTES: Final = 1 << 31
_MAX_CLASSES: Final = 10**6

_ROW: Final = struct.Struct("<IIq")  # file, row group, row; the name follows

Row = tuple[int, int, str, int]
"""Row group, row, file name of the image (may be empty), label."""


def open_parquet(path: Path, split: str, refusals: Refusals) -> Source | None:
    """The shard `path`, or the shards of the split in the folder `path` or its subfolder `data`, as
    a source.
    """
    files = _find_shards(path, split)
    if not files:
        return None
    rows = _Rows()
    names: list[str] = []
    for number, file in enumerate(files):
        parquet = _open_file(file)
        names = class_names(parquet.schema_arrow.metadata) or names
        rows.add(number, _read_rows(parquet, str(file.absolute()), refusals))
    num_classes = max(len(names), 1 + max(rows.labels, default=0))
    if num_classes > _MAX_CLASSES:
        raise DatasetError(
            f"{path}: a label of {num_classes - 1}; the column does not hold class labels"
        )
    classes = (
        names if is_wnid_list(names) and len(names) == num_classes else rows.classes(num_classes)
    )
    images, places = ListingWriter("parquet"), [str(file.absolute()) for file in files]
    for label, of_class in rows.by_label():
        images.add_class(classes[label], _images(classes[label], places, of_class))
    readable = {wnid: " ".join(name.split()) for wnid, name in zip(classes, names, strict=False)}
    match = _OF.fullmatch(files[0].name)
    total = f" of {int(match['shards'])}" if match else ""
    name = path.name.encode(errors="replace").decode()
    description = f"{len(files)}{total} Parquet shards of {name}, shuffled by their row groups"
    return make_source(
        description,
        images,
        path,
        path,
        wnids=classes,
        class_names={} if classes is names else readable,
    )


def _find_shards(path: Path, split: str) -> list[Path]:
    if path.is_file():
        return [path] if path.suffix == ".parquet" else []
    found = next(
        filter(None, (_files(path, pattern) for pattern in ("*.parquet", "data/*.parquet"))), []
    )
    for prefix in _SPLITS.get(split, (split,)):
        of_split = [
            file
            for file in found
            if file.name.startswith(f"{prefix}-") or file.name == f"{prefix}.parquet"
        ]
        if of_split:
            return of_split
    if any(_OF.fullmatch(file.name) for file in found):
        raise CommandError(
            f"{path}: no shard of the split {split} ({found[0].name}, ...); give another with"
            " --split"
        )
    return found


def _files(path: Path, pattern: str) -> list[Path]:
    # to open a pipe would block
    return sorted(file for file in path.glob(pattern) if file.is_file())


def _open_file(file: Path) -> Any:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError:
        raise CommandError(
            f"{file}: Parquet needs pyarrow; install it with: pip install 'ioprof[parquet]'",
            exit_code=1,
        ) from None
    try:
        return pyarrow.parquet.ParquetFile(file)
    except (pyarrow.ArrowException, ValueError, OSError) as error:
        raise damaged_file(error, f"{file}: not a Parquet file that can be read") from None


def _find_columns(parquet: Any, file: str) -> tuple[str, str | None, str]:
    # Paths of the leaf columns: the image's bytes, its file name if there is one, the label.
    leaves = [parquet.schema.column(number).path for number in range(len(parquet.schema))]
    image = next((name for name in _IMAGES if name in leaves or f"{name}.bytes" in leaves), None)
    label = next((name for name in _LABELS if name in leaves), None)
    if image is None or label is None:
        raise DatasetError(
            f"{file}: no columns of images and labels ({', '.join(leaves)[:100]}); image.bytes and"
            " label are expected"
        )
    if image in leaves:
        return image, None, label
    return f"{image}.bytes", f"{image}.path" if f"{image}.path" in leaves else None, label


def _read_rows(parquet: Any, file: str, refusals: Refusals) -> Iterator[Row]:
    _, path, label = _find_columns(parquet, file)
    first = 0
    for group in range(parquet.num_row_groups):
        if parquet.metadata.row_group(group).total_byte_size > _MAX_GROUP_BYTES:
            raise DatasetError(
                f"{file}: a row group of more than {_MAX_GROUP_BYTES} bytes cannot be held in"
                " memory; write smaller ones"
            )
        table = _read_group(parquet, file, group, [label, path] if path else [label])
        try:
            labels = table.column(label).to_pylist()
            paths = (
                [
                    (entry or {}).get("path")
                    for entry in table.column(path.partition(".")[0]).to_pylist()
                ]
                if path
                else [None] * len(labels)
            )
        except (
            ValueError
        ) as error:  # such as a name that is no UTF-8, which pyarrow does not check before
            raise damaged_file(
                error, f"{file}: row group {group} has values that cannot be read"
            ) from None
        for row, (value, name) in enumerate(zip(labels, paths, strict=True), start=first):
            if not isinstance(value, int) or not 0 <= value < 1 << 63:
                what = (
                    f"{file}: row {row} has the label {str(value)[:20]}; a split without labels"
                    " cannot be converted"
                )
                refusals.add(f"{Path(file).name}@{row}", DatasetError(what))
                continue
            yield group, row, str(name or "").rpartition("/")[2], value
        first += len(labels)


def _read_group(parquet: Any, file: str, group: int, columns: list[str]) -> Any:
    import pyarrow

    try:
        return parquet.read_row_group(group, columns=columns, use_threads=False)
    except (pyarrow.ArrowException, ValueError, OSError) as error:
        raise damaged_file(error, f"{file}: row group {group} cannot be read") from None


class _Rows:
    """All rows; only their labels are held in memory."""

    def __init__(self) -> None:
        self.labels = array("q")
        self._lines = Lines()
        self._wnids: dict[int, str] | None = {}
        """Label → wnid from the file names; None: the file names hold no consistent wnids."""

    def add(self, file: int, rows: Iterable[Row]) -> None:
        """Add the rows of a file; files are added in ascending order of their numbers."""
        for group, row, name, label in rows:
            self._lines.append(_ROW.pack(file, group, row) + name.encode())
            self.labels.append(label)
            match = _WNID.search(Path(name).stem) if self._wnids is not None else None
            if (
                match is None
                or self._wnids is None
                or self._wnids.setdefault(label, match[1]) != match[1]
            ):
                self._wnids = None

    def classes(self, num_classes: int) -> list[str]:
        """Names of the classes, in the order of their labels."""
        wnids = [(self._wnids or {}).get(label, "") for label in range(num_classes)]
        if all(wnids) and wnids == sorted(set(wnids)):
            return wnids
        digits = len(str(num_classes - 1))
        return [f"{label:0{digits}d}" for label in range(num_classes)]

    def by_label(self) -> Iterator[tuple[int, Iterator[tuple[int, int, int, str]]]]:
        """Each label, with file, row group, row and name of its rows in order."""
        labels = np.array(self.labels, np.int64)
        order = np.argsort(labels, kind="stable")
        for numbers in (
            np.split(order, np.flatnonzero(np.diff(labels[order])) + 1) if len(order) else []
        ):
            lines = (self._lines[int(number)] for number in numbers)
            yield (
                int(labels[numbers[0]]),
                ((*_ROW.unpack_from(line), line[_ROW.size :].decode()) for line in lines),
            )


def _images(
    wnid: str, files: list[str], rows: Iterable[tuple[int, int, int, str]]
) -> Iterator[SourceImage]:
    seen: set[str] = set()
    for number, group, row, name in rows:
        plain, file = name, files[number]
        if not is_plain_name(name) or name in seen:
            plain = f"{Path(file).stem.encode(errors='replace').decode()}_{row:08d}.JPEG"
        seen.add(plain)
        yield SourceImage(wnid, plain, file, row, group=group + 1)


class ParquetReader:
    """Reads images from the shards. Caches the last row group, since the images of a group are read
    one after the other.
    """

    def __init__(self) -> None:
        self._files: dict[str, tuple[Any, str, list[int]]] = {}
        self._at: tuple[str, int] = ("", -1)
        self._group: Any = None

    def read(self, image: SourceImage) -> bytes:
        """The bytes of the image's file; a null value gives no bytes, which is a bad image."""
        if image.file not in self._files:
            parquet = _open_file(Path(image.file))
            sizes = (
                parquet.metadata.row_group(group).num_rows
                for group in range(parquet.num_row_groups)
            )
            self._files[image.file] = (
                parquet,
                _find_columns(parquet, image.file)[0],
                [0, *accumulate(sizes)][:-1],
            )
        parquet, column, starts = self._files[image.file]
        group = bisect_right(starts, image.offset) - 1
        if self._at != (image.file, group):
            self._group = None  # frees its memory before the next group is read
            table = _read_group(parquet, image.file, group, [column])
            array = table.column(0).combine_chunks()
            self._group, self._at = (
                (array.field("bytes") if "." in column else array),
                (image.file, group),
            )
        row = image.offset - starts[group]
        if row >= len(self._group):
            rows = len(self._group)
            raise DatasetError(
                f"{image.file}: row group {group} has {rows} rows, fewer than announced; get the"
                " file again"
            )
        try:
            data = self._group[row].as_py()
        except ValueError as error:
            raise damaged_file(error, f"{image.file}: row {image.offset} cannot be read") from None
        if data is not None and not isinstance(data, bytes):
            raise DatasetError(
                f"{image.file}: the image of row {image.offset} is {type(data).__name__}, not bytes"
            )
        return data or b""

    def close(self) -> None:
        """Close the shards."""
        while self._files:
            self._files.popitem()[1][0].close()
        self._at, self._group = ("", -1), None
