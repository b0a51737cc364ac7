"""Files that a recorder only appends to (samples, stacks, page faults), whose oldest part may be
dropped while it writes.

What is dropped becomes a hole, as in capture files (`dropping.py`), and `<file>.kept` has what the
rest needs to be read: a line with the place where the rest begins, then a state, as the format's
`Fold` made it. The writer does not notice. The state is replaced as a whole before the hole is
made, and says where the rest begins: a kill at any instant loses and doubles nothing.
"""

import os
import re
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from ioprof.files import (
    data_parts,
    open_regular_file,
    punch_hole,
    read_regular_file,
    write_atomically,
)

KEPT_SUFFIX: Final = ".kept"
LEAST_BYTES: Final = 8 << 10
"""What is dropped at once, at least: less is not worth the CPU time."""
_FIRST_LINE: Final = re.compile(rb"ioprof\.spool\.appended/1 (\d{1,18})\n")
_PLACES: Final = 64
"""How many places are remembered: a part is dropped when it is older than the window by at most
that fraction of it."""

Fold = Callable[[bytes, bytes, bytes, bytes], tuple[bytes, int]]
"""Of the file's header, the state of what was dropped before, the part that follows, and the folder
with a slash: the state of both, and how many bytes of the part it contains. The rest, read after
the state, gives what it would after all that was dropped.
"""


@dataclass(frozen=True)
class Appended:
    """The contents of a file of which the oldest part may have been dropped."""

    header: bytes
    state: bytes
    rest: bytes
    start: int
    """Where the rest begins in the file."""
    is_damaged: bool = False
    """The state of what was dropped cannot be read."""


def read_appended(path: Path, header_bytes: int = 0, until: int | None = None) -> Appended:
    """The contents up to a place; None: to the end. Raises OSError if the file cannot be read."""
    with open_regular_file(path) as file:
        descriptor = file.fileno()
        header = os.pread(descriptor, header_bytes, 0)
        state, start, is_damaged = _read_state(path, descriptor, header_bytes)
        end = os.fstat(descriptor).st_size if until is None else until
        pieces, place = [], start
        while place < end and (piece := os.pread(descriptor, end - place, place)):
            pieces.append(piece)
            place += len(piece)
        return Appended(header, state, b"".join(pieces), start, is_damaged)


def _read_state(path: Path, descriptor: int, header_bytes: int) -> tuple[bytes, int, bool]:
    try:
        data = read_regular_file(path.with_name(path.name + KEPT_SUFFIX))
    except FileNotFoundError:
        return b"", header_bytes, False
    except OSError:
        data = b""
    if found := _FIRST_LINE.match(data):
        return data[found.end() :], max(header_bytes, int(found[1])), False
    first = next(data_parts(descriptor, header_bytes, 1), (header_bytes, 0))[0]
    return b"", first, True


class AppendedFile:
    """Drops what is old from such a file."""

    def __init__(self, path: Path, fold: Fold, header_bytes: int = 0) -> None:
        self.path = path
        self._fold, self._header_bytes = fold, header_bytes
        self._folder = os.fsencode(os.path.realpath(path.parent)) + b"/"
        self._looks: deque[tuple[int, int]] = deque()
        """When the file had which size."""
        self._until = self._dropped = header_bytes
        """What is old enough ends there; what was dropped, there."""
        self._state_bytes = 0

    def look(self, now_ns: int, before_ns: int) -> bool:
        """Note how long the file is now: all of it was recorded before. Whether enough of it was
        before `before_ns`.
        """
        if not self._looks or now_ns - self._looks[-1][0] >= (now_ns - before_ns) // _PLACES:
            try:
                self._looks.append((now_ns, self.path.stat().st_size))
            except OSError:
                return False
        while self._looks and self._looks[0][0] < before_ns:
            self._until = max(self._until, self._looks.popleft()[1])
        return self._until - self._dropped >= max(LEAST_BYTES, self._state_bytes // 4)

    def drop(self) -> None:
        """Drop what is old enough. Raises OSError, such as on a full disk: then all is as
        before.
        """
        found = read_appended(self.path, self._header_bytes, self._until)
        state, used = self._fold(found.header, found.state, found.rest, self._folder)
        if not used:
            return
        end, name = found.start + used, self.path.name + KEPT_SUFFIX
        write_atomically(self.path.with_name(name), b"ioprof.spool.appended/1 %d\n" % end + state)
        self._dropped, self._state_bytes = end, len(state)
        descriptor = os.open(self.path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
        try:
            punch_hole(descriptor, self._header_bytes, end - self._header_bytes)
        finally:
            os.close(descriptor)
