"""Arrow files of Hugging Face's `save_to_disk` and of its cache, as a source: their images lie as
they are in the file.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from ioprof.converters.sources.foreign_files import find_shards, shown_name
from ioprof.converters.sources.record_table import RecordTable
from ioprof.converters.sources.refusals import Refusals
from ioprof.converters.sources.source import Source
from ioprof.errors import CommandError, DatasetError

_IMAGES: Final = ("image", "img", "jpg")
_LABELS: Final = ("label", "labels", "cls")


def open_arrow(path: Path, split: str, refusals: Refusals) -> Source | None:
    """The file `path`, or the files in the folder `path` that belong to `split`, as a source."""
    files = find_shards(path, split, (".arrow",))
    if not files:
        return None
    try:
        import pyarrow
    except ImportError:
        raise CommandError(
            f"{files[0]}: Arrow needs pyarrow; install it with: pip install 'ioprof[parquet]'",
            exit_code=1,
        ) from None
    table, names = RecordTable("file", refusals), list[str]()
    for file in files:
        where = str(file.absolute())
        try:
            names = _add_file(pyarrow, where, table, refusals) or names
        except (pyarrow.ArrowException, ValueError, OverflowError, OSError) as error:
            raise damaged_file(error, f"{file}: not an Arrow file that can be read") from None
    return table.finish(f"{len(files)} Arrow files of {shown_name(path)}", path, names)


def damaged_file(error: Exception, what: str) -> Exception:
    """The error for a file that pyarrow cannot read: it raises OSError without a number for damaged
    content.
    """
    if isinstance(error, OSError) and error.errno is not None:
        return error
    return DatasetError(f"{what} ({' '.join(str(error).split())[:100]}); get the file again")


def class_names(metadata: dict[bytes, bytes] | None) -> list[str]:
    """The classes that Hugging Face's metadata lists, in the order of their labels; empty without a
    list.
    """
    try:
        features = json.loads((metadata or {}).get(b"huggingface", b"{}"))["info"]["features"]
        names = next(features[name]["names"] for name in _LABELS if name in features)
    except (ValueError, KeyError, TypeError, StopIteration, RecursionError):
        return []
    return names if isinstance(names, list) and all(isinstance(name, str) for name in names) else []


def _add_file(pyarrow: Any, where: str, table: RecordTable, refusals: Refusals) -> list[str]:
    with pyarrow.memory_map(where) as source:
        size = source.size()
        if not size:
            return []
        start = _base_address(source, size)
        number = 0
        names: list[str] = []
        for batch in _batches(pyarrow, source):
            batch.validate(full=True)
            names = names or class_names(batch.schema.metadata)
            for offset, length, label, name in _records(pyarrow, batch, where, start, size):
                key = name or f"{Path(where).stem}_{number:08d}"
                if offset < 0 or label is None:
                    what = "has no bytes in the file" if offset < 0 else "has no label"
                    refusals.add(key, DatasetError(f"{where}: record {number} {what}"))
                else:
                    table.add(where, offset, length, key, label=label)
                number += 1
        return names


def _base_address(source: Any, size: int) -> int:
    """Where the map of a file begins in memory."""
    source.seek(0)
    address: int = source.read_buffer(size).address
    source.seek(0)
    return address


def _batches(pyarrow: Any, source: Any) -> Iterator[Any]:
    source.seek(0)
    if source.read(6) == b"ARROW1":
        with pyarrow.ipc.open_file(source) as reader:
            yield from (reader.get_batch(number) for number in range(reader.num_record_batches))
        return
    source.seek(0)
    with pyarrow.ipc.open_stream(source) as reader:
        yield from reader


def _records(
    pyarrow: Any, batch: Any, where: str, start: int, size: int
) -> Iterator[tuple[int, int, int | None, str]]:
    """Offset (-1: none) and length of each image, its label and its name."""
    names = batch.schema.names
    image = next((name for name in _IMAGES if name in names), None)
    label = next((name for name in _LABELS if name in names), None)
    if (
        image is None
        or label is None
        or not pyarrow.types.is_integer(batch.schema.field(label).type)
    ):
        raise DatasetError(
            f"{where}: no columns of images and labels ({', '.join(names)[:100]}); image and label"
            " are expected"
        )
    images, paths = batch.column(image), [None] * batch.num_rows
    if pyarrow.types.is_struct(images.type):
        fields = [field.name for field in images.type]
        if "bytes" not in fields:
            raise DatasetError(
                f"{where}: the column {image} has no bytes ({', '.join(fields)[:100]})"
            )
        if "path" in fields:
            paths = images.field("path").to_pylist()
        valid, images = images.is_valid().to_pylist(), images.field("bytes")
    else:
        valid = [True] * batch.num_rows
    is_large = pyarrow.types.is_large_binary(images.type)
    if not (is_large or pyarrow.types.is_binary(images.type)):
        raise DatasetError(f"{where}: the images are {images.type}, not bytes")
    _, offsets, data = images.buffers()
    labels = batch.column(label).to_pylist()
    if data is None:
        yield from (
            (-1, 0, each, str(path or "")) for each, path in zip(labels, paths, strict=True)
        )
        return
    first = data.address - start
    if not 0 <= first <= size - data.size:
        raise CommandError(
            f"{where}: compressed Arrow files cannot be read at random; save the data again without"
            " compression"
        )
    places = (
        memoryview(offsets)
        .cast("q" if is_large else "i")[images.offset : images.offset + batch.num_rows + 1]
        .tolist()
    )
    present = images.is_valid().to_pylist()
    for row in range(batch.num_rows):
        offset = first + places[row] if valid[row] and present[row] else -1
        yield (
            offset,
            places[row + 1] - places[row],
            labels[row],
            str(paths[row] or "").rpartition("/")[2],
        )
