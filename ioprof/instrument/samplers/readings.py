"""Types of the values that sources of samples return: per subject, values by the names in
`ioprof.format.series`.
"""

import os
from typing import Final

Subject = tuple[int | None, int]
"""A process by its pid and start time (clock ticks since boot, because pids are reused), or
`HOST`."""

Readings = dict[Subject, dict[str, float]]
"""Values by name, per subject; a value that could not be read is missing."""

HOST: Final[Subject] = (None, 0)
"""The subject of series that belong to no process."""


_RECORD_BYTES: Final = 4096


def read_bytes(path: str) -> bytes:
    """The content of a file of /proc or /sys; raises OSError if it is missing or not readable."""
    with open(path, "rb", buffering=0) as file:
        return file.read()


def read_record(path: str) -> bytes:
    """The same for a file that the kernel makes in one piece (`single_open`), as most: a short read
    is its end.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)  # fewer system calls than `open`
    try:
        content = part = os.read(descriptor, _RECORD_BYTES)
        while len(part) == _RECORD_BYTES:
            part = os.read(descriptor, _RECORD_BYTES)
            content += part
        return content
    finally:
        os.close(descriptor)
