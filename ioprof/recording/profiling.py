"""Records a part of a script or notebook from within it (`ioprof.profile`).

What the hooks see is recorded as under `ioprof record`, of this process and of workers that it
forks meanwhile. Reads are not: they need the library that is loaded before a process begins. The
run folder is made when the block ends, also if it raises.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

from ioprof.errors import CaptureError, IoprofError
from ioprof.instrument import hooks, recorder
from ioprof.masking import masked_text

if TYPE_CHECKING:
    from ioprof.format.run_record import RunRecord

NO_READS: Final = "this process was not started by `ioprof record`, so its reads were not captured"


@contextmanager
def profile_block(
    out: Path, command: Sequence[str], environment: Mapping[str, str], force: bool = False
) -> Iterator[None]:
    """Record what the block does, and make the run folder `out` of it; `force` replaces a run that
    is there.

    `command` is what started this process, for run.json. Raises `CommandError` for an `out` that
    cannot be made or would be overwritten, and `CaptureError` if this process is recorded already;
    both before the block begins. If the run folder cannot be made after the block, the recording
    stays, and a `CommandError`, or a note to what the block raised, says where it is.
    """
    from ioprof.format.run_record import Failure
    from ioprof.recording.attempts import usable_run_folder
    from ioprof.recording.costs import with_costs
    from ioprof.recording.pending_run import PendingRun

    if recorder.is_recording():
        raise CaptureError(
            "this process is being recorded already; leave ioprof.profile out of a script that runs"
            " under ioprof"
        )
    out, _ = usable_run_folder(out, environment, force=force, in_parts=False)
    run = _initial_record(out, command, environment)
    recording = PendingRun(out, force, run)
    recording.begin()
    with recording.kept():
        state = hooks.install(recording.spool, None, environment)

    def with_span_costs(made: "RunRecord") -> "RunRecord":
        return made.replace(capture=with_costs(made.capture, environment))

    def end(status: str, *failures: Failure) -> None:
        hooks.remove()
        with recording.kept():
            recording.make(run.replace(status=status, failures=failures), complete=with_span_costs)

    try:
        yield
    except BaseException as error:
        status = "interrupted" if isinstance(error, KeyboardInterrupt) else "failed"
        failure = Failure.from_text(
            max(state.identity.rank, 0), masked_text(f"{type(error).__name__}: {error}")
        )
        try:
            end(status, failure)
        except IoprofError as lost:
            error.add_note(f"ioprof: {lost}")
        raise
    end("complete")


def _initial_record(
    out: Path, command: Sequence[str], environment: Mapping[str, str]
) -> "RunRecord":
    from ioprof.recording.lifecycle import initial_record

    run = initial_record(command, out, environment)
    capture = run.capture.replace(
        library=False, ns_per_call=None, reads=False, reads_by=None, reads_reason=NO_READS
    )
    return run.replace(capture=capture)
