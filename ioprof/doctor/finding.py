"""The input of a check, `Surroundings`, and its result, `Finding`."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

STATES: Final = ("ok", "limited", "missing")
"""Fully available; available in part, or at a cost; not available."""


@dataclass(frozen=True)
class Finding:
    """Whether one of ioprof's sources of measurements is available on this machine."""

    name: str
    state: str
    """One of `STATES`."""
    seen: str
    """The observation."""
    means: str
    """The consequence for a run's report."""
    to_type: str = ""
    """The command or the setting that would change it; empty only if the state is "ok"."""


@dataclass(frozen=True)
class Surroundings:
    """The input of the checks, filled in by the command line."""

    environment: Mapping[str, str]
    """The environment that a job started here would inherit."""
    package: Path
    """The folder of the installed package ioprof."""
    python: str
    """The interpreter that runs ioprof."""
    paths: tuple[Path, ...]
    """Existing files or folders with training data, or for it."""
    proc: Path = Path("/proc")
    sys: Path = Path("/sys")

    def kernel_setting(self, name: str) -> str | None:
        """The value of a sysctl, e.g. `kernel.perf_event_paranoid`; None where the kernel does not
        have it.
        """
        return content(self.proc / "sys" / name.replace(".", "/"))


def content(path: Path) -> str | None:
    """The content of a small text file, without surrounding whitespace; None if it cannot be
    read.
    """
    try:
        return path.read_text(errors="replace").strip()
    except OSError:
        return None


def ok(name: str, seen: str, means: str) -> Finding:
    """A fully available source."""
    return Finding(name, "ok", seen, means)


def limited(name: str, seen: str, means: str, to_type: str) -> Finding:
    """A source that is available in part, or at a cost."""
    return Finding(name, "limited", seen, means, to_type)


def failed(name: str, error: Exception) -> Finding:
    """A check that raised an exception."""
    seen = f"the check failed: {str(error) or type(error).__name__}"
    return limited(
        name, seen, "not known before a run; the run's report shows it", "ioprof doctor --json"
    )


def missing(name: str, seen: str, means: str, to_type: str) -> Finding:
    """A source that is not available."""
    return Finding(name, "missing", seen, means, to_type)
