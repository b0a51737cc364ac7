"""All capture files of a job that is being recorded: which process wrote each, and what is new in
them.
"""

import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy.typing as npt

from ioprof.format.schema import RANK_SOURCES, ROLES, WRITERS
from ioprof.ingest.untrusted_values import text
from ioprof.watching.follower import Follower


class Who(NamedTuple):
    """A process of the job."""

    host: str
    pid: int
    rank: int | None
    """Its rank, or that of the rank which started it."""
    worker: int | None
    """Number of the loader worker in its rank; None: it is none."""


@dataclass
class News:
    """What one process recorded since the last look."""

    who: Who
    records: npt.NDArray[Any]
    """Spans, of `ioprof.format.layout.RECORD_DTYPE`."""
    strings: dict[int, bytes]
    """All strings of the file that the records refer to, by number."""
    skipped: int


@dataclass
class _File:
    follower: Follower
    strings: dict[int, bytes] = field(default_factory=dict)


class LiveSpool:
    """The capture files in a spool folder, followed from their beginning."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._files: dict[str, _File] = {}

    def look(self) -> Iterator[News]:
        """What is new, by capture file."""
        for name in self._names():
            self._files.setdefault(name, _File(Follower(self.folder / name)))
        looks = {name: file.follower.look() for name, file in self._files.items()}
        known = self._processes()
        for name, look in looks.items():
            file = self._files[name]
            file.strings.update(look.strings)
            header = file.follower.header
            if header is not None and (len(look.records) or look.skipped):
                yield News(known[_key(header)], look.records, file.strings, look.skipped)

    def close(self) -> None:
        """Close the files."""
        for file in self._files.values():
            file.follower.close()

    @property
    def lost(self) -> int:
        """Spans that found no room."""
        return sum(
            int(file.follower.header["lost"])
            for file in self._files.values()
            if file.follower.header is not None
        )

    @property
    def pids(self) -> set[int]:
        """The processes that have not ended their recording."""
        headers = [
            file.follower.header
            for file in self._files.values()
            if file.follower.header is not None
        ]
        return {int(header["pid"]) for header in headers if not header["closed"]}

    def _names(self) -> list[str]:
        try:
            with os.scandir(self.folder) as entries:
                return sorted(entry.name for entry in entries if entry.name.endswith(".ring"))
        except OSError:
            return []

    def _processes(self) -> dict[tuple[str, int], Who]:
        """Who wrote the files. A rank is that of the best source, as when the run folder is made;
        see `RANK_SOURCES`.
        """
        headers = [
            file.follower.header
            for file in self._files.values()
            if file.follower.header is not None
        ]
        ranks: dict[tuple[str, int], int] = {}
        sources = {
            _key(each): max(1, int(each["rank_source"]) or 1)
            for each in headers
            if _rank(each) is not None
        }
        best = min(sources.values(), default=len(RANK_SOURCES))
        for header in headers:
            rank = _rank(header)
            if rank is not None and sources[_key(header)] == best:
                ranks[_key(header)] = rank
        parents = {_key(each): (_key(each)[0], int(each["parent_pid"])) for each in headers}
        workers = {_key(each): int(each["worker"]) for each in headers if _is_worker(each)}
        found = {}
        for key in parents:
            above, rank = key, ranks.get(key)
            while (
                rank is None and above in parents and (above := parents[above]) not in (key, None)
            ):
                rank = ranks.get(above)
            found[key] = Who(*key, rank, workers.get(key))
        return found


def _key(header: Any) -> tuple[str, int]:
    return text(bytes(header["host"])), int(header["pid"])


def _rank(header: Any) -> int | None:
    rank = int(header["rank"])
    return rank if rank >= 0 else None


def _is_worker(header: Any) -> bool:
    of_spans = int(header["writer"]) == WRITERS.index("spans")
    return of_spans and int(header["role"]) == ROLES.index("worker") and int(header["worker"]) >= 0
