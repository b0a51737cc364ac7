"""ioprof: what a deep-learning training job waits for, from the storage read to the GPU kernel, on one clock."""

from typing import TYPE_CHECKING, Any

from ioprof.record.span import span

if TYPE_CHECKING:
    from pathlib import Path

    from ioprof.profiling import profile as profile
    from ioprof.trace import Trace as Trace

__all__ = ["Trace", "load", "profile", "span"]
__version__ = "0.1.0"


def load(path: "Path | str") -> "Trace":
    """The trace of the run in the folder `path`; raises `RunError` where there is none."""
    from ioprof.trace import Trace

    return Trace.load(path)


def __getattr__(name: str) -> Any:
    if name == "Trace":  # lazy: the tables' library is heavy, and a recorded job does not need it
        from ioprof.trace import Trace

        return Trace
    if name == "profile":  # lazy: a job that is recorded from outside has no use for it
        from ioprof.profiling import profile

        return profile
    raise AttributeError(f"module 'ioprof' has no attribute {name!r}")
