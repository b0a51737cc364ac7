"""Workers of loaders that were killed, with the batch that they were making."""

from collections.abc import Sequence
from typing import Final

from ioprof.format.run_record import Failure, FailureCode, ProcessRecord

_MOST: Final = 8
"""A job that is killed as a whole loses all of its workers; more say nothing more."""


def killed_workers(processes: Sequence[ProcessRecord]) -> tuple[Failure, ...]:
    """A failure for each worker that was killed within a batch, the first ones."""
    killed = [
        process
        for process in processes
        if process.role == "worker" and process.killed_in_batch is not None
    ]
    return tuple(
        Failure(
            rank=process.rank,
            what=(
                f"worker {process.worker} (pid {process.pid}) was killed while it made batch"
                f" {process.killed_in_batch}"
            ),
            code=FailureCode.KILLED,
        )
        for process in killed[:_MOST]
    )
