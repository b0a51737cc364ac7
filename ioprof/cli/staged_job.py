"""Staging as a part of a run: the copy before the job or while it trains, what it cost, and that nothing of it stays unasked."""

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from ioprof import clock
from ioprof.cli.console import progress, say
from ioprof.cli.filling import filled
from ioprof.cli.preparing import dataset_files, in_megabytes, stoppable
from ioprof.cli.staging import Staging, remove_staged
from ioprof.dataset import Dataset
from ioprof.errors import CommandError
from ioprof.loaders.order import batches_per_epoch
from ioprof.record import recorder
from ioprof.record.span import emit, intern
from ioprof.storage.node_local import GIVEN, NodeLocal
from ioprof.storage.residency import evict
from ioprof.storage.staging import Task, sampled_read_ns
from ioprof.train.config import JobConfig

MODES: Final = ("before", "while-training")
_SAMPLED_RECORDS: Final = 64
_SAMPLED_SHARE: Final = 50  # at most one record of so many
_LARGEST_SAMPLE_BYTES: Final = 1 << 24
_PAGE_BYTES: Final = 4096


@dataclass(frozen=True)
class StageOptions:
    """What `ioprof run` is asked to do about staging."""

    place: NodeLocal
    mode: str
    """One of `MODES`."""
    keep: bool


@contextmanager
def staged(
    options: StageOptions | None,
    config: JobConfig,
    manifest: Dataset | None,
    run: dict[str, Any],
    cache: str | None,
    interrupted: Callable[[], int],
) -> Iterator[tuple[JobConfig, Dataset | None]]:
    """The job and the dataset that it reads, staged if that is asked for; what it took goes into `run`.

    Raises `CommandError`, `DatasetError`, and KeyboardInterrupt once `interrupted()` says so. A copy that is kept is never removed.
    """
    if options is None or manifest is None:
        yield config, manifest
        return
    staging = Staging(manifest, options.place.folder, options.keep)
    facts: dict[str, Any] = {"found_by": options.place.by, **_epoch(config, manifest)}
    run["stage"] = facts
    if options.mode == "while-training":
        facts |= {**staging.facts(options.mode), "removed": not options.keep}
        with filled(staging, config, facts, interrupted) as filling:
            yield filling, manifest
        return
    facts |= {"shared_read": _sampled(manifest, config), **_copied(staging, options, config, cache, interrupted)}
    try:
        yield replace(config, dataset=staging.destination), Dataset.load(staging.destination)
    finally:
        facts["removed"] = remove_staged(staging.destination)
        if not options.keep and not facts["removed"]:
            say(f"stays, since an earlier run was to keep it, or it cannot be removed: {staging.destination}")


def _copied(
    staging: Staging, options: StageOptions, config: JobConfig, cache: str | None, interrupted: Callable[[], int]
) -> dict[str, Any]:
    by = f" (found by {options.place.by})" if options.place.by != GIVEN else ""
    say(f"staging {staging.dataset.path} to {staging.destination}{by}")
    source = evict(dataset_files(staging.dataset), stoppable(_unheard, interrupted)).facts() if cache == "cold" else None
    with progress("stage, MB", max(1, round(staging.dataset.bytes / 1e6))) as advance:
        recorder.start(config.spool, role="other")
        try:
            facts = staging.run(stoppable(in_megabytes(advance), interrupted), _record)
        finally:
            recorder.stop()
    return {**facts, "source_cache": source}


def _unheard(_: int = 1) -> None:
    pass


def _record(task: Task) -> None:
    emit("stage", task.start_ns, task.end_ns, file=intern(task.source), bytes=task.bytes)


def _sampled(manifest: Dataset, config: JobConfig) -> dict[str, Any]:
    """What reading a record of the shared path takes, by as many readers as the job has, from a page cache without it."""
    readers = config.ranks * max(1, config.workers)
    total_ns, count = sampled_read_ns(_ranges(manifest), clock.monotonic_ns, readers)
    return {"records": count, "readers": readers, "mean_s": total_ns / count / 1e9 if count else None}


def _ranges(manifest: Dataset) -> list[tuple[str, int, int]]:
    """Where the bytes of some records lie, chosen at random: whole files, or as many bytes anywhere in what holds many records."""
    choice = random.Random(0)
    count = max(1, min(_SAMPLED_RECORDS, manifest.records // _SAMPLED_SHARE))
    if manifest.layout == "files":
        paths = dataset_files(manifest)[1:]
        return [(path, 0, _LARGEST_SAMPLE_BYTES) for path in choice.sample(paths, count)]
    size = manifest.bytes // manifest.records
    files = [(path, Path(path).stat().st_size) for path in dataset_files(manifest)]
    chosen = choice.choices(files, weights=[max(1, file_bytes) for _, file_bytes in files], k=count)
    return [(path, choice.randrange(max(1, file_bytes - size)) // _PAGE_BYTES * _PAGE_BYTES, size) for path, file_bytes in chosen]


def _epoch(config: JobConfig, manifest: Dataset) -> dict[str, Any]:
    return {"steps_per_epoch": batches_per_epoch(manifest.records, config.loader_options(0)), "records": manifest.records}


def checked_mode(mode: str | None, stage_to: str | None, keep: bool) -> str:
    """The mode that is asked for; raises `CommandError` for what does not fit together."""
    if stage_to is None and (mode is not None or keep):
        option = "--keep-staged" if mode is None else f"--stage-mode {mode}"
        raise CommandError(f"{option} says how to stage, and nothing is staged; give --stage-to DIR, or leave it out")
    if mode is not None and mode not in MODES:
        raise CommandError(f"--stage-mode {mode!r}: choose one of {', '.join(MODES)}")
    return mode or MODES[0]
