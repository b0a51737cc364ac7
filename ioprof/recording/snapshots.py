"""`ioprof snapshot`: a run folder of what is recorded of a job so far, while the job goes on."""

import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

from ioprof.errors import CommandError
from ioprof.instrument.host import host
from ioprof.recording.pending_run import recorded_so_far
from ioprof.recording.run_folder import check_output, create_output
from ioprof.reporter import SILENT, Reporter

if TYPE_CHECKING:
    from ioprof.report.run import Run


def default_snapshot(run: Path) -> Path:
    """`RUN-HHMMSS`, next to the run folder."""
    return run.with_name(f"{run.name}-{time.strftime('%H%M%S')}")


def snapshot(spool: Path, out: Path, force: bool = False, reporter: Reporter = SILENT) -> "Run":
    """The run folder `out` of what the spool has now: the last minutes of a recording with
    `--keep`, else all so far.

    The spool is copied first; the job's processes and the recording go on, and do not notice.
    Raises `CommandError` for an `out` that cannot be made or would be overwritten, and where there
    is no room for the copy.
    """
    check_output(out, force)
    run = recorded_so_far(spool)
    from ioprof.ingest.spool_copy import copy_spool
    from ioprof.recording.run_writer import make_run_folder

    with tempfile.TemporaryDirectory(
        prefix="ioprof-snapshot-", ignore_cleanup_errors=True
    ) as temporary:
        copy = Path(temporary)
        try:
            copy_spool(spool, copy, host())
        except OSError as error:
            what = f"{error.filename or copy}: {error.strerror or error}"
            raise CommandError(
                f"{what}; the spool is copied there first: set TMPDIR to a folder with more room"
            ) from None
        create_output(out, force)
        made = make_run_folder(copy, out, run.replace(status="running", name=out.resolve().name))
    reporter.say(f"run folder: {out}")
    return made
