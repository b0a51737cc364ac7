"""Names and members of a source that cannot be used: with `--on-error fail` the first one stops the
work, else they are listed.
"""

from typing import NamedTuple

from ioprof.errors import DatasetError


class Refused(NamedTuple):
    """One file or member that was left out."""

    name: str
    """As it is printed: a name that cannot be used may hold control characters."""
    reason: str


class Refusals:
    """Collects what a source leaves out, or raises at the first."""

    def __init__(self, stops: bool = True) -> None:
        self._stops = stops
        self.found: list[Refused] = []

    def add(self, name: str, error: DatasetError) -> None:
        """Leave out `name`; raises `error` if that must stop the work."""
        if self._stops:
            raise error
        shown = name if name.isprintable() else repr(name)[1:-1]
        self.found.append(
            Refused(shown, " ".join(str(error).encode(errors="backslashreplace").decode().split()))
        )
