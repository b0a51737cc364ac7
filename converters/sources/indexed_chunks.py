"""MosaicML's MDS shards and LitData's chunks, as sources: files of samples, whose `index.json` says
what a sample is.

Both begin with the number of samples and their places (uint32 each). A sample begins with the sizes
of its values (uint32 each, of MDS only of those without a fixed size), and the values follow. Only
integers and bytes are read; nothing is unpickled.
"""

import json
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from ioprof.converters.sources.foreign_files import inside, mapped, read_index, shown_name
from ioprof.converters.sources.record_table import RecordTable
from ioprof.converters.sources.refusals import Refusals
from ioprof.converters.sources.source import Source
from ioprof.errors import CommandError, DatasetError

INDEX: Final = "index.json"
_IMAGES: Final = ("image", "img", "jpg", "jpeg", "data", "x", "0")
_LABELS: Final = ("label", "class", "cls", "target", "class_index", "y", "1")
_NAMES: Final = ("name", "filename", "path", "key", "__key__", "id")
_WNIDS: Final = ("wnid", "synset")
_IMAGE_ENCODINGS: Final = ("jpeg", "png", "bytes", "image")
_NUMBERS: Final = {
    "int": "<q",
    "int64": "<q",
    "uint64": "<Q",
    "int32": "<i",
    "uint32": "<I",
    "int16": "<h",
    "uint16": "<H",
    "int8": "<b",
    "uint8": "<B",
}
_TEXTS: Final = ("str", "text")
_MAX_SAMPLES: Final = 10**8
_MAX_COLUMNS: Final = 256
_MAX_TEXT_BYTES: Final = 4096


@dataclass(frozen=True)
class Columns:
    """The values of a sample."""

    names: tuple[str, ...]
    encodings: tuple[str, ...]
    sizes: tuple[int, ...]
    """Bytes of a value; 0: its size is stored before it."""

    def place(self, wanted: Sequence[str], encodings: Sequence[str]) -> int | None:
        """Index of the first of the wanted columns that has one of the encodings; else of the only
        one with such an encoding.
        """
        plain = [encoding.partition(":")[0] for encoding in self.encodings]
        for name in wanted:
            for index, column in enumerate(self.names):
                if column.lower() == name and plain[index] in encodings:
                    return index
        fitting = [index for index, encoding in enumerate(plain) if encoding in encodings]
        return fitting[0] if len(fitting) == 1 and wanted in (_IMAGES, _LABELS) else None


def open_mds(path: Path, split: str, refusals: Refusals) -> Source | None:
    """The MDS folder `path`, or its folder of the split, as a source."""
    index = _find_index(path, split, "shards")
    if index is None:
        return None
    keys = read_index(index)
    table, shards = RecordTable("file", refusals), keys["shards"]
    for shard in shards if isinstance(shards, list) else ():
        if not isinstance(shard, dict) or shard.get("format") != "mds" or shard.get("version") != 2:
            raise DatasetError(f"{index}: a shard that is not of the format mds, version 2")
        raw = shard.get("raw_data")
        file = inside(index.parent, raw.get("basename") if isinstance(raw, dict) else None, index)
        if shard.get("compression") and not file.is_file():
            raise CommandError(
                f"{index}: compressed shards cannot be read at random; unpack them first"
            )
        columns = _mds_columns(index, shard)
        _add_chunk(file, columns, _count(shard.get("samples"), index), table, refusals)
    return table.finish(f"{len(shards)} MDS shards of {shown_name(path)}", path)


def open_litdata(path: Path, split: str, refusals: Refusals) -> Source | None:
    """The folder `path` of LitData's chunks, or its folder of the split, as a source."""
    index = _find_index(path, split, "chunks")
    if index is None:
        return None
    keys = read_index(index)
    config, chunks = keys.get("config"), keys["chunks"]
    if not isinstance(config, dict) or not isinstance(chunks, list):
        raise DatasetError(f"{index}: no list of chunks with their configuration")
    for key in ("compression", "encryption"):
        if config.get(key):
            raise CommandError(
                f"{index}: chunks with {key} cannot be read at random; optimize the data again"
                " without it"
            )
    columns = _litdata_columns(index, config)
    table = RecordTable("file", refusals)
    for chunk in chunks:
        if not isinstance(chunk, dict):
            raise DatasetError(f"{index}: a chunk is {str(chunk)[:60]!r}")
        file = inside(index.parent, chunk.get("filename"), index)
        _add_chunk(file, columns, _count(chunk.get("chunk_size"), index), table, refusals)
    return table.finish(f"{len(chunks)} LitData chunks of {shown_name(path)}", path)


def _find_index(path: Path, split: str, key: str) -> Path | None:
    if path.name == INDEX:
        path = path.parent
    for index in (path / split / INDEX, path / INDEX):
        if index.is_file() and isinstance(read_index(index).get(key), list):
            return index
    return None


def _count(value: object, index: Path) -> int:
    if type(value) is not int or not 0 <= value <= _MAX_SAMPLES:
        raise DatasetError(f"{index}: a number of samples is {str(value)[:40]!r}")
    return value


def _mds_columns(index: Path, shard: dict[str, Any]) -> Columns:
    names, encodings, sizes = (
        shard.get(f"column_{key}") for key in ("names", "encodings", "sizes")
    )
    if not (isinstance(names, list) and isinstance(encodings, list) and isinstance(sizes, list)):
        raise DatasetError(f"{index}: a shard without columns")
    if not len(names) == len(encodings) == len(sizes) or len(names) > _MAX_COLUMNS:
        raise DatasetError(
            f"{index}: the columns of a shard have {len(names)} names and {len(sizes)} sizes"
        )
    if not all(isinstance(text, str) for text in [*names, *encodings]):
        raise DatasetError(f"{index}: a column of a shard has no name or encoding")
    if not all(size is None or (type(size) is int and 0 <= size < 1 << 32) for size in sizes):
        raise DatasetError(f"{index}: a size of a column is {str(sizes)[:60]}")
    return Columns(tuple(names), tuple(encodings), tuple(size or 0 for size in sizes))


def _litdata_columns(index: Path, config: dict[str, Any]) -> Columns:
    encodings = config.get("data_format")
    if (
        not isinstance(encodings, list)
        or not all(isinstance(each, str) for each in encodings)
        or len(encodings) > _MAX_COLUMNS
    ):
        raise DatasetError(f"{index}: no list of the formats of a sample's values")
    names = tuple(map(str, range(len(encodings))))
    try:  # the tree of a flat dict: [1, {"context": "[\"image\", \"label\"]", ...}]
        found = json.loads(json.loads(config["data_spec"])[1]["context"])
        if isinstance(found, list) and len(found) == len(encodings):
            names = tuple(map(str, found))
    except (ValueError, KeyError, TypeError, IndexError, RecursionError):
        pass  # a tuple: the values are known by their numbers
    return Columns(names, tuple(encodings), (0,) * len(encodings))


def _add_chunk(
    file: Path, columns: Columns, count: int, table: RecordTable, refusals: Refusals
) -> None:
    image = columns.place(_IMAGES, _IMAGE_ENCODINGS)
    label = columns.place(_LABELS, (*_NUMBERS, *_TEXTS))
    name, wnid = columns.place(_NAMES, _TEXTS), columns.place(_WNIDS, _TEXTS)
    if image is None or (label is None and wnid is None):
        shown = ", ".join(
            f"{each}: {kind}" for each, kind in zip(columns.names, columns.encodings, strict=True)
        )[:100]
        raise DatasetError(
            f"{file}: no columns of an encoded image and a label ({shown}); jpeg, png or bytes and"
            " int are expected"
        )
    where = str(file.absolute())
    with mapped(file) as content:
        places = _places(content, count, where)
        for number in range(count):
            try:
                values = _values(content, places[number], places[number + 1], columns.sizes)
                start, end = values[image]
                number_label, class_name = None, ""
                if label is not None and columns.encodings[label] not in _TEXTS:
                    number_label = _number(content, *values[label], columns.encodings[label])
                elif label is not None:
                    class_name = _text(content, *values[label])
                if wnid is not None:
                    class_name = _text(content, *values[wnid]) or class_name
                key = _text(content, *values[name]) if name is not None else ""
            except DatasetError as error:
                refusals.add(
                    f"{file.name}@{number}", DatasetError(f"{where}: sample {number}: {error}")
                )
                continue
            if (
                class_name.isascii()
                and class_name.isdigit()
                and len(class_name) < 10
                and number_label is None
            ):
                number_label, class_name = int(class_name), ""
            table.add(
                where,
                start,
                end - start,
                key or f"{file.stem}_{number:08d}",
                label=number_label,
                class_name=class_name,
            )


def _places(content: memoryview, count: int, where: str) -> tuple[int, ...]:
    head = 4 * (count + 2)
    if len(content) < head:
        raise DatasetError(f"{where}: cut short ({len(content)} bytes); get the file again")
    found, *places = struct.unpack_from(f"<{count + 2}I", content)
    if found != count:
        raise DatasetError(
            f"{where}: holds {found} samples, the index says {count}; get the files again"
        )
    if places and (places[0] < head or places != sorted(places) or places[-1] > len(content)):
        raise DatasetError(
            f"{where}: cut short, or damaged (places of its samples); get the file again"
        )
    return tuple(places)


def _values(
    content: memoryview, start: int, end: int, sizes: tuple[int, ...]
) -> list[tuple[int, int]]:
    """First and last place of each value of the sample."""
    num_variable = sizes.count(0)
    if end - start < 4 * num_variable:
        raise DatasetError(f"cut short ({end - start} bytes)")
    variable = iter(struct.unpack_from(f"<{num_variable}I", content, start))
    place, found = start + 4 * num_variable, []
    for fixed in sizes:
        size = fixed or next(variable)
        if size > end - place:
            raise DatasetError(f"damaged (a value of {size} bytes, {end - place} left)")
        found.append((place, place + size))
        place += size
    return found


def _number(content: memoryview, start: int, end: int, encoding: str) -> int:
    form = _NUMBERS[encoding.partition(":")[0]]
    if struct.calcsize(form) != end - start:
        raise DatasetError(f"a label of {end - start} bytes, as {encoding}")
    return int(struct.unpack_from(form, content, start)[0])


def _text(content: memoryview, start: int, end: int) -> str:
    return bytes(content[start : min(end, start + _MAX_TEXT_BYTES)]).decode(errors="replace")
