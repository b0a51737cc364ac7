"""The journal of a job: a write-ahead log with one entry per image, readable after a SIGKILL.

48 bytes per image, in the order of the job: for a record its label and its length (int64,
little-endian) and the sha256 of its bytes, the input of a dataset's digest. For a quarantined image
the label is -1, and length and hash are those of the text `NAME<tab>REASON`, which follows in
UTF-8, padded with zeros to a multiple of 48 bytes.

Entries are written before their records, so the journal is never behind the data. On resuming, the
layout determines how many records are complete, and the journal is truncated to them. The first
invalid entry ends the journal.
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
_QUARANTINED: Final = -1
_BLOCK_ENTRIES: Final = 128
_MAX_LABEL: Final = 2**31 - 1
_MAX_BYTES: Final = 2**32 - 1
_MAX_TEXT_BYTES: Final = 1 << 16

Records = NDArray[np.void]
"""Entries of records that follow each other: `label`, `length`, `sha256`."""


class RecordEntry(NamedTuple):
    """An image that became a record."""

    label: int
    length: int
    sha256: bytes

    def encode(self) -> bytes:
        """The bytes of the entry."""
        return _ENTRY.pack(*self)


class QuarantineEntry(NamedTuple):
    """An image that was quarantined."""

    name: str
    """`wnid/name` of the source."""
    reason: str

    def encode(self) -> bytes:
        """The bytes of the entry."""
        text = f"{self.name}\t{self.reason}".encode()[:_MAX_TEXT_BYTES]
        return _ENTRY.pack(_QUARANTINED, len(text), hashlib.sha256(text).digest()) + text.ljust(
            _padded_size(len(text)), b"\0"
        )


Entry = RecordEntry | QuarantineEntry


class JournalProgress(NamedTuple):
    """The extent of a journal."""

    images: int
    records: int
    end: int
    """File offset after its last entry."""


def journal_progress(path: Path, records: int | None = None) -> JournalProgress:
    """Number of images and records in the journal; with `records`, up to the entry before the
    record of that number.
    """
    images = found = end = 0
    for run, end in read_runs(path, records):  # noqa: B007  the last one is returned
        if isinstance(run, QuarantineEntry):
            images += 1
        else:
            images, found = images + len(run), found + len(run)
    return JournalProgress(images, found, end)


def read_runs(
    path: Path, records: int | None = None
) -> Iterator[tuple[Records | QuarantineEntry, int]]:
    """All entries, consecutive records as one array, each with the file offset of its end; empty
    where there is no file.

    With `records` up to the entry before the record of that number.
    """
    try:
        journal = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return
    try:
        place = found = 0
        while True:
            block = os.pread(journal, _BLOCK_ENTRIES * _ENTRY.size, place)
            entries = np.frombuffer(block, _RECORDS, len(block) // _ENTRY.size)
            labels, lengths = entries["label"], entries["length"]
            valid = (labels >= 0) & (labels <= _MAX_LABEL) & (lengths > 0) & (lengths <= _MAX_BYTES)
            num_leading = len(entries) if valid.all() else int(valid.argmin())
            run = entries[: num_leading if records is None else min(num_leading, records - found)]
            if len(run):
                found, place = found + len(run), place + run.nbytes
                yield run, place
            if len(run) < _BLOCK_ENTRIES:
                entry, size = _read_quarantine_entry(journal, place)
                if entry is None:
                    return
                place += size
                yield entry, place
    finally:
        os.close(journal)


def read_entries(path: Path) -> Iterator[Entry]:
    """All entries, one by one."""
    for run, _ in read_runs(path):
        if isinstance(run, QuarantineEntry):
            yield run
        else:
            yield from (RecordEntry(*entry) for entry in _ENTRY.iter_unpack(run.tobytes()))


class Journal:
    """Appends to a journal after its byte `end`, with one write per call; used as a context
    manager.
    """

    def __init__(self, path: Path, end: int) -> None:
        self._descriptor = os.open(
            path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o666
        )
        os.ftruncate(self._descriptor, end)

    def append(self, new: Iterable[Entry]) -> None:
        """Append entries; raises OSError on failure, when a part may have been written."""
        data = b"".join([entry.encode() for entry in new])
        while data:
            data = data[os.write(self._descriptor, data) :]

    def __enter__(self) -> "Journal":
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._descriptor)


def _read_quarantine_entry(journal: int, place: int) -> tuple[QuarantineEntry | None, int]:
    head = os.pread(journal, _ENTRY.size, place)
    label, length, sha256 = _ENTRY.unpack(head) if len(head) == _ENTRY.size else (0, 0, b"")
    if label != _QUARANTINED or not 0 < length <= _MAX_TEXT_BYTES:
        return None, 0
    text = os.pread(journal, _padded_size(length), place + _ENTRY.size)
    if len(text) < _padded_size(length) or hashlib.sha256(text[:length]).digest() != sha256:
        return None, 0
    name, _, reason = text[:length].decode(errors="replace").partition("\t")
    return QuarantineEntry(name, reason), _ENTRY.size + len(text)


def _padded_size(size: int) -> int:
    return -(-size // _ENTRY.size) * _ENTRY.size
