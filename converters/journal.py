"""What a job has done, image by image, in a file that a SIGKILL leaves readable.

48 bytes per image, in the order of the job: for a record its label and its length (int64, little-endian) and the sha256 of its
bytes, just what a dataset's digest is taken of. For an image that was left out the label is -1, and length and hash are those of
the text `NAME<tab>REASON`, which follows in UTF-8, filled up with zeros to a multiple of 48 bytes.

Entries are written before the records themselves, so the journal is never behind the data; how much of it is really there the
layout says when it is opened again, and the journal is cut to that. What is no entry ends the journal.
"""

import hashlib
import os
import struct
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

_ENTRY: Final = struct.Struct("<qq32s")
_RECORDS: Final = np.dtype([("label", "<i8"), ("length", "<i8"), ("sha256", "V32")])
_LEFT_OUT: Final = -1
_BLOCK_ENTRIES: Final = 128
_MAX_LABEL: Final = 2**31 - 1
_MAX_BYTES: Final = 2**32 - 1
_MAX_TEXT_BYTES: Final = 1 << 16

Records = NDArray[np.void]
"""Entries of records that follow each other: `label`, `length`, `sha256`."""


class Recorded(NamedTuple):
    """An image that became a record."""

    label: int
    length: int
    sha256: bytes

    def encoded(self) -> bytes:
        """As it stands in the journal."""
        return _ENTRY.pack(*self)


class Quarantined(NamedTuple):
    """An image that was left out."""

    name: str
    """`wnid/name` of the source."""
    reason: str

    def encoded(self) -> bytes:
        """As it stands in the journal."""
        text = f"{self.name}\t{self.reason}".encode()[:_MAX_TEXT_BYTES]
        return _ENTRY.pack(_LEFT_OUT, len(text), hashlib.sha256(text).digest()) + text.ljust(_padded(len(text)), b"\0")


Entry = Recorded | Quarantined


class Told(NamedTuple):
    """How far a journal goes."""

    images: int
    records: int
    end: int
    """Where in the file its last entry ends."""


def told(path: Path, records: int | None = None) -> Told:
    """How many images and records the journal tells of, up to what follows its first so many records."""
    images = found = end = 0
    for run, place in runs(path, records):
        left_out = isinstance(run, Quarantined)
        images, found, end = images + (1 if left_out else len(run)), found + (0 if left_out else len(run)), place
    return Told(images, found, end)


def runs(path: Path, records: int | None = None) -> Iterator[tuple[Records | Quarantined, int]]:
    """Every entry, records in arrays, up to the one before the record of the number `records`; with the place of its end.

    Nothing if there is no file.
    """
    try:
        journal = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return
    try:
        place = found = 0
        while True:
            block = os.pread(journal, _BLOCK_ENTRIES * _ENTRY.size, place)
            run = _leading_records(block)[: None if records is None else records - found]
            if len(run):
                found, place = found + len(run), place + run.nbytes
                yield run, place
            if len(run) < _BLOCK_ENTRIES:
                entry, size = _quarantined(journal, place)
                if entry is None:
                    return
                place += size
                yield entry, place
    finally:
        os.close(journal)


def entries(path: Path) -> Iterator[Entry]:
    """Every entry."""
    for run, _ in runs(path):
        if isinstance(run, Quarantined):
            yield run
        else:
            yield from (Recorded(*entry) for entry in _ENTRY.iter_unpack(run.tobytes()))


class Journal:
    """Appends to a journal, behind its byte `end`, each call by one write; used as a context manager."""

    def __init__(self, path: Path, end: int) -> None:
        self._descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o666)
        os.ftruncate(self._descriptor, end)

    def append(self, new: Iterable[Entry]) -> None:
        """Raises OSError when it cannot be written; a part of it may have been."""
        data = b"".join([entry.encoded() for entry in new])
        while data:
            data = data[os.write(self._descriptor, data) :]

    def __enter__(self) -> "Journal":
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._descriptor)


def _leading_records(block: bytes) -> Records:
    found = np.frombuffer(block, _RECORDS, len(block) // _ENTRY.size)
    labels, lengths = found["label"], found["length"]
    good = (labels >= 0) & (labels <= _MAX_LABEL) & (lengths > 0) & (lengths <= _MAX_BYTES)
    return found if good.all() else found[: int(good.argmin())]


def _quarantined(journal: int, place: int) -> tuple[Quarantined | None, int]:
    head = os.pread(journal, _ENTRY.size, place)
    label, length, sha256 = _ENTRY.unpack(head) if len(head) == _ENTRY.size else (0, 0, b"")
    if label != _LEFT_OUT or not 0 < length <= _MAX_TEXT_BYTES:
        return None, 0
    text = os.pread(journal, _padded(length), place + _ENTRY.size)
    if len(text) < _padded(length) or hashlib.sha256(text[:length]).digest() != sha256:
        return None, 0
    name, _, reason = text[:length].decode(errors="replace").partition("\t")
    return Quarantined(name, reason), _ENTRY.size + len(text)


def _padded(size: int) -> int:
    return -(-size // _ENTRY.size) * _ENTRY.size
