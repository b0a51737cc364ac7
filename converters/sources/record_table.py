"""The records of foreign files, by class: each is a range of bytes in a file, with a label or the
name of a class.

Labels stay what they are. So a class is named by a wnid where all are known and sort like the
labels, and otherwise by the label with leading zeros, which sorts the same way.
"""

import re
import struct
from array import array
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

import numpy as np

from ioprof.converters.sources.listing import Lines, ListingWriter
from ioprof.converters.sources.refusals import Refusals
from ioprof.converters.sources.source import IMAGE_SUFFIXES, Source, make_source
from ioprof.converters.sources.source_image import SourceImage
from ioprof.errors import DatasetError
from ioprof.format.dataset import is_plain_name

MAX_CLASSES: Final = 10**6
_ROW: Final = struct.Struct("<IqqI")  # place, offset, size, group; the name follows
_WNID: Final = re.compile(r"n\d{8}")
_WNID_IN_NAME: Final = re.compile(r"(?:^|[_/])(n\d{8})(?:[_/.]|$)")
_NO_LABEL: Final = -1


class RecordTable:
    """All records of a source; only their labels are held in memory."""

    def __init__(self, kind: str, refusals: Refusals) -> None:
        self._kind, self._refusals = kind, refusals
        self._lines, self._labels, self._numbers = Lines(), array("q"), array("q")
        self._places: dict[str, int] = {}
        self._class_numbers: dict[str, int] = {}
        """Names of classes, where records have no labels, in the order in which they were found."""
        self._wnids: dict[int, str] | None = {}
        """Label → wnid; None: not every record has one, or a label has two."""

    def __len__(self) -> int:
        return len(self._labels)

    def add(
        self,
        place: str,
        offset: int,
        size: int,
        key: str,
        *,
        label: int | None = None,
        class_name: str = "",
        group: int = 0,
    ) -> None:
        """Add a record: `size` bytes at `offset` of the file `place`. It needs a label, or the name
        of its class, or both.
        """
        where = f"{place} ({key[:80]!r})"
        if label is not None and not 0 <= label < MAX_CLASSES:
            return self._refusals.add(
                f"{Path(place).name}/{key[:200]}",
                DatasetError(f"{where}: the label {label} is no class"),
            )
        if label is None and not is_plain_name(class_name):
            what = (
                f"the class {class_name[:40]!r} cannot be used as a name"
                if class_name
                else "no label, and no name of a class"
            )
            return self._refusals.add(
                f"{Path(place).name}/{key[:200]}", DatasetError(f"{where}: {what}")
            )
        self._lines.append(
            _ROW.pack(self._places.setdefault(place, len(self._places)), offset, size, group)
            + key.encode(errors="replace")
        )
        self._labels.append(_NO_LABEL if label is None else label)
        self._numbers.append(
            _NO_LABEL
            if label is not None
            else self._class_numbers.setdefault(class_name, len(self._class_numbers))
        )
        if label is not None and self._wnids is not None:
            wnid = class_name if _WNID.fullmatch(class_name) else _wnid_in(key)
            if not wnid or self._wnids.setdefault(label, wnid) != wnid:
                self._wnids = None
        return None

    def finish(self, description: str, path: Path, names: Iterable[str] = ()) -> Source:
        """The source; `names` are those of the classes by label, where the files list them. Raises
        `DatasetError`.
        """
        if not len(self):
            raise DatasetError(f"{path}: no images")
        labels, wnids, class_names = self._classes(str(path), [str(name) for name in names])
        images, places = ListingWriter(self._kind), list(self._places)
        order = np.argsort(labels, kind="stable")
        for numbers in np.split(order, np.flatnonzero(np.diff(labels[order])) + 1):
            wnid = wnids[int(labels[numbers[0]])]
            images.add_class(wnid, self._images(wnid, places, numbers.tolist()))
        return make_source(description, images, path, path, wnids=wnids, class_names=class_names)

    def _classes(
        self, where: str, names: list[str]
    ) -> tuple["np.ndarray[tuple[int], np.dtype[np.int64]]", list[str], dict[str, str]]:
        """Label of each record, names of the classes, and their readable names."""
        labels, numbers = np.array(self._labels, np.int64), np.array(self._numbers, np.int64)
        if (labels == _NO_LABEL).all():
            wnids = sorted(self._class_numbers)
            ranks = {name: rank for rank, name in enumerate(wnids)}
            return (
                np.array([ranks[name] for name in self._class_numbers], np.int64)[numbers],
                wnids,
                {},
            )
        if (labels == _NO_LABEL).any():
            raise DatasetError(
                f"{where}: some records have labels, and others only names of classes; convert them"
                " one by one"
            )
        count = max(len(names), 1 + int(labels.max()))
        if count > MAX_CLASSES:
            raise DatasetError(f"{where}: {count} classes, more than {MAX_CLASSES}")
        if is_wnid_list(names) and len(names) == count:
            return labels, names, {}
        found = self._wnids or {}
        # Lists for TensorFlow often begin with 1, since 0 is the background.
        for first in (0, 1):
            wnids = [found.get(label, "") for label in range(first, count)]
            if is_wnid_list(wnids) and labels.min() >= first:
                return labels - first, wnids, _readable(wnids, names[first:])
        wnids = numbered_classes(count)
        return labels, wnids, _readable(wnids, names)

    def _images(self, wnid: str, places: list[str], numbers: list[int]) -> Iterator[SourceImage]:
        seen: set[str] = set()
        for number in numbers:
            line = self._lines[number]
            place, offset, size, group = _ROW.unpack_from(line)
            name = line[_ROW.size :].decode(errors="replace").rpartition("/")[2]
            name = name if name.lower().endswith(IMAGE_SUFFIXES) else f"{name}.JPEG"
            if not is_plain_name(name) or name.startswith(".") or name in seen:
                stem = Path(places[place]).stem.encode(errors="replace").decode()
                name = f"{stem if is_plain_name(stem) and len(stem) < 100 else 'record'}_{number:08d}.JPEG"  # noqa: E501
            while name in seen:
                name = f"x{name}"
            seen.add(name)
            yield SourceImage(wnid, name, places[place], offset, size, self._kind, group)


def is_wnid_list(names: list[str]) -> bool:
    """Whether these are wnids, and sort like their labels."""
    return bool(names) and all(map(_WNID.fullmatch, names)) and names == sorted(set(names))


def numbered_classes(count: int) -> list[str]:
    """Names of so many classes: their labels, with leading zeros."""
    digits = len(str(count - 1))
    return [f"{label:0{digits}d}" for label in range(count)]


def _readable(wnids: list[str], names: list[str]) -> dict[str, str]:
    return {wnid: " ".join(name.split()) for wnid, name in zip(wnids, names, strict=False) if name}


def _wnid_in(key: str) -> str:
    found = _WNID_IN_NAME.search(key)
    return found[1] if found else ""
