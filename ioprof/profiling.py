"""Records a part of a script or notebook from within it.

    with ioprof.profile("runs/first"):
        train()

What the hooks see is recorded as under `ioprof record`, of this process and of workers that it forks meanwhile. Reads are not: they
need the library that is loaded before a process begins. The run folder is made when the block ends, by whatever.
"""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from ioprof.errors import CaptureError, IoprofError
from ioprof.record import hooks, recorder
from ioprof.record.hooks.session import session

NO_READS: Final = "this process was not started by `ioprof record`, so its reads were not captured"


@contextmanager
def profile(out: "Path | str", force: bool = False) -> Iterator[None]:
    """Record what the block does, and make the run folder `out` of it; `force` replaces a run that is there.

    Loaders whose workers were started before are seen from this side only, and spawned workers not at all. What the block raises
    is raised, and the run says so. Raises `CommandError` for an `out` that cannot be made or would be overwritten, and
    `CaptureError` if this process is recorded already; both before the block begins. If the run folder cannot be made after it, the
    recording stays, and a `CommandError`, or a note to what the block raised, says where, and how to make a run of it.
    """
    from ioprof.cli.unfinished import Unfinished

    if recorder.is_recording():
        raise CaptureError("this process is being recorded already; leave ioprof.profile out of a script that runs under ioprof")
    run = _run_facts(Path(out))
    recording = Unfinished(Path(out), force, run)
    recording.begin()
    with recording.kept():
        session.begin(recording.spool, None, os.environ)
        hooks.install()

    def end(**ended: Any) -> None:
        session.end()
        hooks.remove()
        with recording.kept():
            recording.make({**run, **ended})

    try:
        yield
    except BaseException as error:
        status = "interrupted" if isinstance(error, KeyboardInterrupt) else "failed"
        failures = [{"rank": max(session.who.rank, 0), "what": f"{type(error).__name__}: {error}"}]
        try:
            end(status=status, failures=failures)
        except IoprofError as lost:
            error.add_note(f"ioprof: {lost}")
        raise
    end(status="complete")


def _run_facts(out: Path) -> dict[str, Any]:
    from ioprof.cli.recording import recording_facts

    run = recording_facts(sys.orig_argv, out, hooks=True)
    capture = {**run["capture"], "library": False, "ns_per_call": None, "reads": False, "reads_by": None, "reads_reason": NO_READS}
    return {**run, "capture": capture}
