"""`kept.json` in a spool folder: how much of it is kept, what was dropped, and the sums of that
(`ioprof record --keep`).
"""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Final

import msgspec
from msgspec import Meta

from ioprof.clock import Anchor
from ioprof.files import read_regular_file, write_atomically
from ioprof.ingest.job_sums import JobSums

KEPT: Final = "kept.json"
LOCK: Final = "kept.lock"
"""Locked while old events are dropped, and while a snapshot is copied (man flock)."""
_Number = Annotated[int, Meta(gt=-(1 << 62), lt=1 << 62)]


class KeptState(msgspec.Struct, tag_field="format", tag="ioprof.spool.kept/1"):
    """Times are CLOCK_MONOTONIC of the host that records."""

    host: str
    wall_offset_ns: _Number
    """Wall time minus CLOCK_MONOTONIC of that host."""
    keep_ns: _Number | None
    """None: all is kept, and this is a snapshot."""
    end_ns: _Number | None = None
    """The end of the window. None: the last end of a span."""
    ended: bool = True
    """False: a snapshot of a job that goes on."""
    dropped_until_ns: _Number = 0
    """No span that began at this time or later was dropped."""
    done: dict[str, dict[int, int]] = msgspec.field(default_factory=dict)
    """By file and active chunk, the last flush whose spans are in `sums`."""
    removing: list[str] = msgspec.field(default_factory=list)
    """Files all of whose spans are in `sums`."""
    removed: _Number = 0
    """Processes whose files were removed."""
    lost: _Number = 0
    """Spans that these lost."""
    sums: JobSums = msgspec.field(default_factory=JobSums)
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
        write_atomically(spool / KEPT, msgspec.json.encode(self, enc_hook=JobSums.to_dict) + b"\n")

    @classmethod
    def load(cls, spool: Path) -> "KeptState | None":
        """That of a spool; None: there is none, or a damaged one."""
        try:
            found = msgspec.json.decode(
                read_regular_file(spool / KEPT),
                type=cls,
                dec_hook=lambda _, sums: JobSums.from_dict(sums),
            )
        except (
            OSError,
            ValueError,
            KeyError,
            TypeError,
            AttributeError,
            OverflowError,
            RecursionError,
        ):
            return None
        found.removing = [name for name in found.removing if "/" not in name]
        return found


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
