"""`kept.json` in a spool folder: how much of it is kept, what was dropped, and the sums of that
(`ioprof record --keep`).
"""

import fcntl
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from ioprof.clock import Anchor
from ioprof.files import read_regular_file, write_atomically
from ioprof.ingest.job_sums import JobSums

KEPT: Final = "kept.json"
LOCK: Final = "kept.lock"
"""Locked while old events are dropped, and while a snapshot is copied (man flock)."""
_FORMAT: Final = "ioprof.spool.kept/1"


@dataclass
class KeptState:
    """Times are CLOCK_MONOTONIC of the host that records."""

    host: str
    wall_offset_ns: int
    """Wall time minus CLOCK_MONOTONIC of that host."""
    keep_ns: int | None
    """None: all is kept, and this is a snapshot."""
    end_ns: int | None = None
    """The end of the window. None: the last end of a span."""
    ended: bool = True
    """False: a snapshot of a job that goes on."""
    dropped_until_ns: int = 0
    """No span that began at this time or later was dropped."""
    done: dict[str, dict[int, int]] = field(default_factory=dict)
    """By file and active chunk, the last flush whose spans are in `sums`."""
    removing: list[str] = field(default_factory=list)
    """Files all of whose spans are in `sums`."""
    removed: int = 0
    """Processes whose files were removed."""
    lost: int = 0
    """Spans that these lost."""
    sums: JobSums = field(default_factory=JobSums)
    """Of all spans that were dropped."""

    def shift_ns(self, host: str, anchor: Anchor | None) -> int:
        """What to add to the times of a host, so that they are those of the host that records."""
        return 0 if host == self.host or anchor is None else anchor.offset_ns - self.wall_offset_ns

    def since_ns(self, last_ns: int | None) -> int | None:
        """Where the window begins; `last_ns` is the last end of a span. None: there is no span, or
        all is kept.
        """
        end_ns = self.end_ns if self.end_ns is not None else last_ns
        if self.keep_ns is None or end_ns is None:
            return None
        return max(end_ns - self.keep_ns, self.dropped_until_ns)

    def save(self, spool: Path) -> None:
        """Write it to the spool, whole or not at all. Raises OSError."""
        done = {
            name: {str(origin): flush for origin, flush in each.items()}
            for name, each in self.done.items()
        }
        facts = {name: getattr(self, name) for name in _FACTS}
        text = json.dumps({"format": _FORMAT, **facts, "done": done, "sums": self.sums.to_dict()})
        write_atomically(spool / KEPT, text + "\n")

    @classmethod
    def load(cls, spool: Path) -> "KeptState | None":
        """That of a spool; None: there is none, or a damaged one."""
        try:
            value = json.loads(read_regular_file(spool / KEPT))
            return cls._of(value) if value["format"] == _FORMAT else None
        except (
            OSError,
            ValueError,
            KeyError,
            TypeError,
            AttributeError,
            RecursionError,
            OverflowError,
        ):
            return None

    @classmethod
    def _of(cls, value: Mapping[str, Any]) -> "KeptState":
        keep_ns, end_ns = (
            None if value[name] is None else _time(value[name]) for name in ("keep_ns", "end_ns")
        )
        numbers = {
            name: _time(value[name])
            for name in ("wall_offset_ns", "dropped_until_ns", "removed", "lost")
        }
        done = {
            str(name): {int(key): int(flush) for key, flush in each.items()}
            for name, each in value["done"].items()
        }
        removing = [str(name) for name in value["removing"] if "/" not in str(name)]
        sums = JobSums.from_dict(value["sums"])
        found = cls(
            str(value["host"]),
            numbers["wall_offset_ns"],
            keep_ns,
            end_ns,
            bool(value["ended"]),
            numbers["dropped_until_ns"],
        )
        found.done, found.removing, found.removed, found.lost, found.sums = (
            done,
            removing,
            numbers["removed"],
            numbers["lost"],
            sums,
        )
        return found


_FACTS: Final = (
    "host",
    "wall_offset_ns",
    "keep_ns",
    "end_ns",
    "ended",
    "dropped_until_ns",
    "removing",
    "removed",
    "lost",
)


def _time(value: object) -> int:
    if not isinstance(value, int) or abs(value) >= 1 << 62:
        raise ValueError("not a time")
    return value


@contextmanager
def locked(spool: Path, *, wait: bool) -> Iterator[bool]:
    """Hold the spool's lock in the block; whether it is held, which without `wait` it may not
    be.
    """
    descriptor = os.open(spool / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        except BlockingIOError:
            yield False
            return
        yield True
    finally:
        os.close(descriptor)
