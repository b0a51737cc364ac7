"""Staging as a part of a run: the dataset is copied before the job, or by its workers; the copy is
removed unless it is kept.
"""

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from ioprof import clock
from ioprof.format.dataset import Dataset
from ioprof.format.run_record import ResidencyRecord, SharedRead, StageRecord
from ioprof.instrument import recorder
from ioprof.instrument.span import emit, intern
from ioprof.jobs.filling import LocalCopy
from ioprof.jobs.options import WHILE_TRAINING
from ioprof.jobs.staged.staging import StageOptions, Staging, remove_staged
from ioprof.loaders.order import batches_per_epoch
from ioprof.reporter import Reporter, ignore_progress, in_megabytes, megabytes, stoppable
from ioprof.storage.copying import Task, sampled_read_ns
from ioprof.storage.node_local import GIVEN
from ioprof.storage.residency import evict
from ioprof.train.config import JobConfig

_SAMPLED_RECORDS: Final = 64
_SAMPLED_SHARE: Final = 50  # at most one record of so many
_LARGEST_SAMPLE_BYTES: Final = 1 << 24
_PAGE_BYTES: Final = 4096


class StagedJob:
    """A job and its dataset, staged if `options` are given; `num_interrupts()` is how often the
    user has asked for the end.
    """

    def __init__(
        self, options: StageOptions | None, reporter: Reporter, num_interrupts: Callable[[], int]
    ) -> None:
        self._options, self._reporter, self._num_interrupts = options, reporter, num_interrupts
        self._record: StageRecord | None = None

    def record(self) -> StageRecord | None:
        """What staging took, for run.json, complete when the block of `stage` has ended; None where
        nothing was staged.
        """
        return self._record

    @contextmanager
    def stage(
        self, config: JobConfig, manifest: Dataset | None, cache: str | None
    ) -> Iterator[tuple[JobConfig, Dataset | None]]:
        """Yield the job and the dataset that it reads, which is a copy if it was staged before.

        Raises `CommandError`, `DatasetError`, and KeyboardInterrupt after an interrupt. A copy that
        is kept is never removed.
        """
        options = self._options
        if options is None or manifest is None:
            yield config, manifest
            return
        staging = Staging(manifest, options.place.folder, options.keep)
        steps_per_epoch = batches_per_epoch(manifest.records, config.loader_options(0))
        known: dict[str, Any] = {
            "found_by": options.place.by,
            "steps_per_epoch": steps_per_epoch,
            "records": manifest.records,
        }
        if options.mode == WHILE_TRAINING:
            copy = LocalCopy(staging, self._reporter, self._num_interrupts)
            record = self._record = staging.record(WHILE_TRAINING).replace(
                **known, removed=not options.keep
            )
            try:
                with copy.fill(config) as filling:
                    yield filling, manifest
            finally:
                self._record = copy.add_to(record)
            return
        shared_read = _time_sample(manifest, config)
        record = self._record = self._copy(staging, options, config, cache).replace(
            **known, shared_read=shared_read
        )
        try:
            yield replace(config, dataset=staging.destination), Dataset.load(staging.destination)
        finally:
            removed = remove_staged(staging.destination)
            self._record = record.replace(removed=removed)
            if not options.keep and not removed:
                self._reporter.say(
                    "not removed, since an earlier run was to keep it, or it cannot be:"
                    f" {staging.destination}"
                )

    def _copy(
        self, staging: Staging, options: StageOptions, config: JobConfig, cache: str | None
    ) -> StageRecord:
        """Copy the dataset, recorded as spans of kind `stage`."""
        by = f" (found by {options.place.by})" if options.place.by != GIVEN else ""
        self._reporter.say(f"staging {staging.dataset.path} to {staging.destination}{by}")
        source = None
        if cache == "cold":
            source = evict(
                staging.dataset.data_files(), stoppable(ignore_progress, self._num_interrupts)
            )
        with self._reporter.progress("stage, MB", megabytes(staging.dataset.bytes)) as advance:
            recorder.start(config.spool, role="other")
            try:
                record = staging.run(
                    stoppable(in_megabytes(advance), self._num_interrupts), _emit_stage_span
                )
            finally:
                recorder.stop()
        return record.replace(source_cache=ResidencyRecord.of(source.facts()) if source else None)


def _emit_stage_span(task: Task) -> None:
    emit("stage", task.start_ns, task.end_ns, file=intern(task.source), bytes=task.bytes)


def _time_sample(manifest: Dataset, config: JobConfig) -> SharedRead:
    """What reading one record from the shared path takes, cold, by as many threads as the job has
    workers.
    """
    readers = config.ranks * max(1, config.workers)
    total_ns, count = sampled_read_ns(_sample_ranges(manifest), clock.monotonic_ns, readers)
    return SharedRead(
        records=count, readers=readers, mean_s=total_ns / count / 1e9 if count else None
    )


def _sample_ranges(manifest: Dataset) -> list[tuple[str, int, int]]:
    """Path, start and length of random records: whole files, or ranges of a mean record's length in
    environments and tars.
    """
    choice = random.Random(0)
    count = max(1, min(_SAMPLED_RECORDS, manifest.records // _SAMPLED_SHARE))
    if manifest.layout == "files":
        return [
            (path, 0, _LARGEST_SAMPLE_BYTES)
            for path in choice.sample(manifest.data_files()[1:], count)
        ]
    size = manifest.bytes // manifest.records
    files = [(path, Path(path).stat().st_size) for path in manifest.record_files()]
    drawn = choice.choices(files, weights=[max(1, file_bytes) for _, file_bytes in files], k=count)
    return [
        (path, choice.randrange(max(1, file_bytes - size)) // _PAGE_BYTES * _PAGE_BYTES, size)
        for path, file_bytes in drawn
    ]
