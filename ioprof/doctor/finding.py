"""What a check is given, and what it returns."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

STATES: Final = ("ok", "limited", "missing")
"""Seen in full; seen in part, or at a price; not seen."""


@dataclass(frozen=True)
class Finding:
    """One thing that ioprof looks at, and whether this machine lets it."""

    name: str
    state: str
    """One of `STATES`."""
    seen: str
    """What was found here."""
    means: str
    """What follows for a run's report."""
    to_type: str = ""
    """The command or the setting that would change it; never empty unless the state is "ok"."""


@dataclass(frozen=True)
class Surroundings:
    """What the checks look at; the command line fills it in."""

    environment: Mapping[str, str]
    """As a job started here would inherit it."""
    package: Path
    """The folder of the installed package ioprof."""
    python: str
    """The interpreter that runs ioprof."""
    paths: tuple[Path, ...]
    """Existing files or folders that training data is, or will be, read from."""
    proc: Path = Path("/proc")
    sys: Path = Path("/sys")

    def kernel_setting(self, name: str) -> str | None:
        """The value of a sysctl, e.g. `kernel.perf_event_paranoid`; None where the kernel has none of that name."""
        return content(self.proc / "sys" / name.replace(".", "/"))


def content(path: Path) -> str | None:
    """What is in a small text file, without blanks around it; None if it cannot be read."""
    try:
        return path.read_text(errors="replace").strip()
    except OSError:
        return None


def ok(name: str, seen: str, means: str) -> Finding:
    """Seen in full."""
    return Finding(name, "ok", seen, means)


def limited(name: str, seen: str, means: str, to_type: str) -> Finding:
    """Seen in part, or at a price."""
    return Finding(name, "limited", seen, means, to_type)


def untried(name: str, error: Exception) -> Finding:
    """Not known, since the trial itself failed."""
    seen = f"could not be tried: {str(error) or type(error).__name__}"
    return limited(name, seen, "not known before a run; its report will say", "ioprof doctor --json")


def missing(name: str, seen: str, means: str, to_type: str) -> Finding:
    """Not seen."""
    return Finding(name, "missing", seen, means, to_type)
