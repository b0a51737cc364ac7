"""What every source of samples returns: per subject, values by the names of `ioprof.series`."""

from typing import Final

Subject = tuple[int | None, int]
"""A process by its pid and its start (clock ticks since boot; a pid alone is reused), or `HOST`."""

Readings = dict[Subject, dict[str, float]]
"""Values by name, per subject; a name that is missing could not be read."""

HOST: Final[Subject] = (None, 0)
"""Whose series those are that belong to no process."""


def read_bytes(path: str) -> bytes:
    """The content of a file of /proc or /sys; OSError if there is none or it may not be read."""
    with open(path, "rb", buffering=0) as file:
        return file.readall() or b""
