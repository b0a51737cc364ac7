"""What a job recorded, written into its run folder: tables and run.json, before anything is
analysed.
"""

import errno
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

import polars as pl

from ioprof.format.run_files import SPANS
from ioprof.format.run_record import RunRecord
from ioprof.format.trace import Trace
from ioprof.ingest import store_spool
from ioprof.recording.run_folder import RUN_FILES
from ioprof.recording.used_storage import with_storage


def store_run(spool: Path, out: Path, record: RunRecord) -> Trace:
    """Write what the capture files in `spool` hold into the folder `out`; the trace of it.

    None of its files stays if one cannot be written (`OSError`).
    """
    with removed_on_failure(out, RUN_FILES):
        trace = with_storage(store_spool(spool, record, out / SPANS))
        trace.save(out)
    return trace


@contextmanager
def removed_on_failure(out: Path, names: Iterable[str]) -> Iterator[None]:
    """Remove these files from the folder if the block fails."""
    try:
        yield
    except BaseException as error:
        for name in names:
            (out / name).unlink(missing_ok=True)
        # polars' error for a disk that is full or gone
        if isinstance(error, pl.exceptions.PolarsError):
            raise OSError(errno.EIO, str(error).splitlines()[0], str(out)) from None
        raise
