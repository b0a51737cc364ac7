"""A local copy of the dataset that the job's own workers write while they read; completed or
removed when the job has ended.
"""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from ioprof import clock
from ioprof.converters.job.destination import put_in_place
from ioprof.converters.job.partial_output import PartialOutput, open_partial_output
from ioprof.errors import CommandError
from ioprof.format.run_record import StageRecord
from ioprof.jobs.staged.staging import Staging
from ioprof.loaders.filling import FILLING, flags_of, missing_ranges, prepare
from ioprof.reporter import Reporter
from ioprof.storage.copying import Part, copy
from ioprof.train.config import JobConfig


def check_fillable(loader: str) -> None:
    """Raise `CommandError` for a loader whose reads ioprof's code does not see (DALI)."""
    if loader not in FILLING:
        raise CommandError(
            f"--stage-mode while-training works with --loader {', '.join(FILLING)}; with {loader}"
            " use --stage-mode before"
        )


class LocalCopy:
    """The copy that a job fills; `num_interrupts()` is how often the user has asked for the end."""

    def __init__(
        self, staging: Staging, reporter: Reporter, num_interrupts: Callable[[], int]
    ) -> None:
        self._staging, self._reporter, self._num_interrupts = staging, reporter, num_interrupts
        self._filled_ratio: float | None = None
        self._is_kept: bool | None = None
        self._finish_s: float | None = None

    def add_to(self, stage: StageRecord) -> StageRecord:
        """The record with how much of the copy was filled, and whether it was kept; complete when
        the block of `fill` has ended.
        """
        if self._is_kept is None:
            return stage
        return stage.replace(
            filled_ratio=self._filled_ratio, is_kept=self._is_kept, finish_s=self._finish_s
        )

    @contextmanager
    def fill(self, config: JobConfig) -> Iterator[JobConfig]:
        """Yield the configuration of the job that fills the copy; then put the copy in its place if
        it is kept, else remove it.

        It is also removed if the job failed or was interrupted: completing it may take minutes.
        Raises `CommandError` where there is no room, or where something else has the copy's name.
        """
        staging = self._staging
        if staging.existing() is not None:
            raise CommandError(
                f"{staging.destination}: is there already, so nothing is left to fill; use"
                " --stage-mode before"
            )
        if config.loader == "lmdb":
            self._reporter.say(
                "while its copy is filled, an LMDB is read value by value (pread), not through its"
                " memory map"
            )
        files = staging.files()
        staging.check_space(sum(Path(source).stat().st_size for source, _ in files), len(files))
        identity = {
            "filled by": os.getpid(),
            "of": str(staging.dataset.path),
            "since": clock.monotonic_ns(),
        }
        error: BaseException | None = None
        with open_partial_output(staging.destination, identity, force=False) as work:
            prepare(work.folder, staging.dataset, files)
            try:
                yield replace(config, local_copy=work.folder)
            except BaseException as failure:  # raised below: `open_partial_output` would report it as a failure of the copy  # noqa: E501
                error = failure
            self._filled_ratio = _filled_ratio(work, staging)
            self._is_kept = staging.keep and error is None and not self._num_interrupts()
            if self._is_kept:
                self._finish_s = self._complete(work)
        if error is not None:
            raise error

    def _complete(self, work: PartialOutput) -> float:
        """Copy what no worker has read, verify the copy and put it in its place; returns the
        seconds that this took.
        """
        begin_ns = clock.monotonic_ns()
        parts = list(_missing_parts(work, self._staging))
        if parts:
            self._reporter.say(
                f"staging what no worker has read: {sum(part.bytes for part in parts) / 1e6:.1f} MB"
            )
        for _ in copy(parts, range(len(parts)), work.data, clock.monotonic_ns, lambda _: None):
            pass
        self._staging.finish(work)
        put_in_place(work.data, self._staging.destination, force=False)
        return (clock.monotonic_ns() - begin_ns) / 1e9


def _filled_ratio(work: PartialOutput, staging: Staging) -> float | None:
    """Share of the copy's flags that are set: one for each record of `files`, one for each block of
    an environment or a tar.
    """
    num_flag_files = 1 if staging.dataset.layout == "files" else len(staging.files())
    flags = [flags_of(work.folder, number) for number in range(num_flag_files)]
    total = sum(map(len, flags))
    return sum(int(each.sum()) for each in flags) / total if total else None


def _missing_parts(work: PartialOutput, staging: Staging) -> Iterator[Part]:
    files = staging.files()
    if staging.dataset.layout == "files":
        flags = flags_of(work.folder)
        index, records = files[0], files[1:]
        for source, target in (
            index,
            *(file for file, there in zip(records, flags, strict=True) if not there),
        ):
            size = Path(source).stat().st_size
            yield Part(source, target, 0, size, size)
        return
    for number, (source, target) in enumerate(files):
        size = Path(source).stat().st_size
        for start, length in missing_ranges(flags_of(work.folder, number), size):
            yield Part(source, target, start, length, size)
