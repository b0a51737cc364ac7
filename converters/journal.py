"""What a job has done, image by image, in a file that a SIGKILL leaves readable.

A line per image, in the order of the job: `r LABEL LENGTH SHA256` for a record, `q NAME<tab>REASON` for an image that was left out.
Lines are written before the records themselves, so the journal is never behind the data; how much of it is really there the
layout says when it is opened again, and the journal is cut to that. A line that is not whole ends the journal.
"""

import os
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final, NamedTuple

_RECORDED: Final = re.compile(rb"r (\d{1,10}) (\d{1,18}) ([0-9a-f]{64})\n")
_QUARANTINED: Final = re.compile(rb"q ([^\t\n\0]+)\t([^\t\n\0]*)\n")


class Recorded(NamedTuple):
    """An image that became a record."""

    label: int
    length: int
    sha256: bytes

    def line(self) -> bytes:
        """Of the journal."""
        return b"r %d %d %s\n" % (self.label, self.length, self.sha256.hex().encode())


class Quarantined(NamedTuple):
    """An image that was left out."""

    name: str
    """`wnid/name` of the source."""
    reason: str

    def line(self) -> bytes:
        """Of the journal."""
        return f"q {self.name}\t{self.reason}\n".encode()


Entry = Recorded | Quarantined


def entries(path: Path) -> Iterator[tuple[Entry, int]]:
    """Every entry with the place of its end in the file; nothing for a file that is not there."""
    try:
        stream = path.open("rb")
    except FileNotFoundError:
        return
    place = 0
    with stream:
        for line in stream:
            entry = _parsed(line)
            if entry is None:
                return
            place += len(line)
            yield entry, place


def num_records(path: Path) -> int:
    """How many of the entries are records."""
    return sum(isinstance(entry, Recorded) for entry, _ in entries(path))


def num_entries(path: Path) -> int:
    """How many images the journal tells of."""
    return sum(1 for _ in entries(path))


def first_entries(path: Path, records: int) -> Iterator[Entry]:
    """The entries up to the one before the record of the number `records`; then the file is cut there."""
    end = found = 0
    for entry, place in entries(path):
        if isinstance(entry, Recorded):
            if found == records:
                break
            found += 1
        yield entry
        end = place
    if path.exists():
        os.truncate(path, end)


class Journal:
    """Appends to a journal, each call by one write; used as a context manager."""

    def __init__(self, path: Path) -> None:
        self._descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o666)

    def append(self, new: Iterable[Entry]) -> None:
        """Raises OSError when it cannot be written; a part of it may have been."""
        data = b"".join(entry.line() for entry in new)
        while data:
            data = data[os.write(self._descriptor, data) :]

    def __enter__(self) -> "Journal":
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._descriptor)


def _parsed(line: bytes) -> Entry | None:
    if match := _RECORDED.fullmatch(line):
        return Recorded(int(match[1]), int(match[2]), bytes.fromhex(match[3].decode()))
    if match := _QUARANTINED.fullmatch(line):
        try:
            return Quarantined(match[1].decode(), match[2].decode())
        except UnicodeDecodeError:
            return None
    return None
