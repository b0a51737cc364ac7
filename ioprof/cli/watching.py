"""What watches a job from outside, in the process that starts it: page faults and samples, beside what the job records itself."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ioprof.errors import CaptureError
from ioprof.record import preload, recorder
from ioprof.record.call_cost import cost_per_call_ns
from ioprof.record.faults import FaultRecorder
from ioprof.record.samplers import Sampler


class Watching:
    """Page faults and samples of a job; `facts()` is whole after the `block`."""

    def __init__(self) -> None:
        self._facts: dict[str, Any] = {}

    def facts(self) -> dict[str, Any]:
        """What goes into `run["capture"]`: what was recorded by what, at what cost, and why what was not, or not all of it."""
        return self._facts

    @contextmanager
    def block(self, spool: Path) -> Iterator[None]:
        """Watch what this thread starts in the block."""
        with self._recording_faults(spool), self._sampling(spool):
            yield

    @contextmanager
    def _recording_faults(self, spool: Path) -> Iterator[None]:
        try:
            faults = FaultRecorder(spool)
        except CaptureError as error:
            self._facts["faults"] = {"by": None, "reason": str(error)}
            yield
            return
        try:
            yield
        finally:
            found = faults.stop()
            self._facts["faults"] = {"by": "perf events", "reason": None, **found}
            if found["error"]:
                what = f"page faults are missing at its end: {found['error']}"
                self._facts["damaged"] = [{"file": Path(found["path"]).name, "what": what}]

    @contextmanager
    def _sampling(self, spool: Path) -> Iterator[None]:
        try:
            sampler = Sampler(str(spool)).start()
        except OSError as error:
            self._facts["samplers"] = {"reason": f"{error.filename or spool}: {error.strerror or error}"}
            yield
            return
        try:
            yield
        finally:
            sampler.stop()
            self._facts["samplers"] = sampler.facts()


def capture_facts(*, hooks: bool) -> dict[str, Any]:
    """What is known before a job begins of how it will be recorded, for `run["capture"]`."""
    library = preload.library()
    return {
        "native": recorder.uses_native(),
        "library": library is not None,
        "hooks": hooks,
        "reads": library is not None or not hooks,
        "reads_by": None if library is not None or hooks else "ioprof's own loaders",
        "ns_per_span": recorder.cost_per_span_ns(),
        "ns_per_call": cost_per_call_ns(os.environ),
    }
