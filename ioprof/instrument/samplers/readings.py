"""Types of the values that sources of samples return: per subject, values by the names in `ioprof.series`."""

from typing import Final

Subject = tuple[int | None, int]
"""A process by its pid and start time (clock ticks since boot, because pids are reused), or `HOST`."""

Readings = dict[Subject, dict[str, float]]
"""Values by name, per subject; a value that could not be read is missing."""

HOST: Final[Subject] = (None, 0)
"""The subject of series that belong to no process."""


def read_bytes(path: str) -> bytes:
    """The content of a file of /proc or /sys; raises OSError if it is missing or not readable."""
    with open(path, "rb", buffering=0) as file:
        return file.readall() or b""
