"""The layout `raw`: all records in one file, one after the other, and an index of 24 bytes for
each.
"""

import contextlib
import os

import numpy as np

from ioprof.converters.layouts.interface import Record, Target, write_all
from ioprof.format.record_index import ENTRY


class RawLayout:
    """The index is written after the record, and the name in between: every entry of the index is
    complete.
    """

    shards = None

    def __init__(self, target: Target, start: int = 0) -> None:
        base = target.folder / target.split
        self._paths = [
            base.with_name(f"{base.name}{suffix}") for suffix in (".bin", ".names", ".index")
        ]
        self._descriptors: list[int] = []
        for path in self._paths:
            self._descriptors.append(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666))
        self._durable, self._end = self._drop_incomplete(start)

    def num_durable(self) -> int:
        """Number of records in the index."""
        return self._durable

    def add(self, record: Record) -> None:
        """Write the next record; raises OSError on failure."""
        entry = np.array((self._end, len(record.data), record.label, 0, 0), ENTRY)
        for descriptor, data in zip(
            self._descriptors,
            (record.data, f"{record.name}\n".encode(), entry.tobytes()),
            strict=True,
        ):
            write_all(descriptor, data)
        self._durable, self._end = self._durable + 1, self._end + len(record.data)

    def finish(self) -> None:
        """Nothing is left to be written."""

    def _drop_incomplete(self, start: int) -> tuple[int, int]:
        data, _, index = self._descriptors
        entries = np.fromfile(
            self._paths[2], ENTRY, min(start, os.fstat(index).st_size // ENTRY.itemsize)
        )
        lines = self._paths[1].read_bytes().split(b"\n")[:-1]
        ends = entries["offset"].astype(np.int64) + entries["length"]
        starts = np.concatenate([[0], ends[:-1]]) if len(ends) else ends
        follow = (
            (starts == entries["offset"])
            & (ends <= os.fstat(data).st_size)
            & (entries["file"] == 0)
        )
        whole = int(follow.argmin()) if len(follow) and not follow.all() else len(follow)
        whole = min(whole, len(lines))
        end = int(ends[whole - 1]) if whole else 0
        sizes = (end, sum(len(line) + 1 for line in lines[:whole]), whole * ENTRY.itemsize)
        for descriptor, size in zip(self._descriptors, sizes, strict=True):
            os.ftruncate(descriptor, size)
            os.lseek(descriptor, 0, os.SEEK_END)
        return whole, end

    def __enter__(self) -> "RawLayout":
        return self

    def __exit__(self, *_: object) -> None:
        while self._descriptors:
            with contextlib.suppress(OSError):
                os.close(self._descriptors.pop())
