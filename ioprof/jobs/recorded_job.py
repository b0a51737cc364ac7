"""One recorded job of the built-in kind, from its configuration to its run folder."""

import shutil
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from ioprof.errors import CommandError
from ioprof.files import read_json_object
from ioprof.format.dataset import Dataset
from ioprof.format.run_record import (
    ConfigRecord,
    DatasetRecord,
    DeviceRecord,
    Failure,
    FailureCode,
    LearningRecord,
    LoadingRecord,
    MemoryLimitRecord,
    NetworkRecord,
    RunRecord,
)
from ioprof.format.wire_format import HEADER_BYTES
from ioprof.jobs.dataset_multiple import shared_blocks
from ioprof.jobs.launch import Outcome, launch
from ioprof.jobs.learning import prepare_checkpoints
from ioprof.jobs.memory_limit import limit_memory
from ioprof.jobs.page_cache import PageCache
from ioprof.jobs.staged.staged_job import StagedJob
from ioprof.jobs.staged.staging import StageOptions
from ioprof.recording.gathering import gather_tasks
from ioprof.recording.interrupts import count_interrupts
from ioprof.recording.lifecycle import Recording, initial_record
from ioprof.recording.run_folder import begin_job_log, check_output
from ioprof.reporter import SILENT, Reporter
from ioprof.train.config import JobConfig, loading_path, network_path
from ioprof.train.curve import curve_path
from ioprof.train.devices import emulated_device

if TYPE_CHECKING:
    from ioprof.report.run import Run

_FIRST_WINDOW_BYTES: Final = 2 * (HEADER_BYTES + (1 << 18))
"""What a process's two capture files take from the start."""


@dataclass(frozen=True)
class PlannedJob:
    """A job whose options were checked, and what is done to storage and memory before it starts."""

    config: JobConfig
    manifest: Dataset | None
    out: Path
    force: bool = False
    """Whether an earlier run in `out` is replaced."""
    cache: str | None = None
    """One of `options.CACHE_STATES`; None: the page cache is not looked at."""
    memory_limit_bytes: int | None = None
    stage: StageOptions | None = None
    stacks: bool = True
    """Whether Python stacks are sampled."""


def record_job(
    planned: PlannedJob,
    command: Sequence[str],
    environment: Mapping[str, str],
    reporter: Reporter = SILENT,
) -> "Run":
    """Run the job under recording and make the run folder `out`, whole also when the job failed or
    was interrupted.

    Raises KeyboardInterrupt, with the run folder whole, if an interrupt came after the job's end.
    """
    config, manifest, out, force = planned.config, planned.manifest, planned.out, planned.force
    _check_spool_space(config)
    # All that can fail does so before the job, whose result would be lost with it.
    run = _initial_record(config, manifest, out, command, environment, reporter)
    check_output(out, force)
    with (
        count_interrupts() as interrupts,
        limit_memory(planned.memory_limit_bytes) as limit,
        Recording(
            out,
            force,
            run,
            environment,
            in_parts=config.is_task,
            stacks=planned.stacks,
            reporter=reporter,
        ) as recording,
    ):
        staged = StagedJob(planned.stage, reporter, lambda: interrupts.count)
        page_cache = PageCache(planned.cache, reporter, lambda: interrupts.count)
        try:
            with (
                staged.stage(replace(config, spool=recording.spool), manifest, planned.cache) as (
                    job,
                    read,
                ),
                page_cache.prepare(read, limit, recording.spool),
                reporter.progress(
                    f"{job.loader} on {job.device}, {job.ranks} ranks", job.steps - job.first_step
                ) as advance,
                recording.external_samplers(),
            ):
                job_environment = {**recording.environment, **limit.environment(recording.spool)}
                prepare_checkpoints(job)
                outcome = launch(
                    job,
                    begin_job_log(recording.out),
                    job_environment,
                    advance,
                    lambda: interrupts.count,
                )
        finally:
            recording.add(
                stage=staged.record(),
                cache=page_cache.record(),
                learning=_learning_record(recording.spool),
            )
            recording.add(
                network=_network_record(recording.spool),
                loading=_loading_record(recording.spool, config),
            )
        limit_record = limit.record()
        recording.add(limit=limit_record)
        outcome = _with_memory_limit(outcome, limit_record)
        with interrupts.raising():
            recording.end(status=outcome.status, failures=outcome.failures)
            recorded = recording.finish()
    if interrupts.count and outcome.status != "interrupted":
        raise KeyboardInterrupt
    return gather_tasks(recorded, out, recording.part, force, reporter)


def _learning_record(spool: Path) -> LearningRecord | None:
    """What the job learned; None: nothing, or it came to no point at which that is written."""
    found = read_json_object(curve_path(spool))
    is_empty = found is None or not (
        found["losses"] or found["evaluations"] or found["checkpoints"]
    )
    return None if is_empty else LearningRecord.of(found)


def _network_record(spool: Path) -> NetworkRecord | None:
    """What the network delivered before the first step; None: it was not measured."""
    found = read_json_object(network_path(spool))
    return None if found is None else NetworkRecord.of(found)


def _loading_record(spool: Path, config: JobConfig) -> LoadingRecord | None:
    """How the loaders of this host's ranks worked; None: no rank came that far."""
    records = (read_json_object(loading_path(spool, rank)) for rank in config.own_ranks)
    found = [LoadingRecord.of(record) for record in records if record is not None]
    if not found:
        return None
    names = tuple(dict.fromkeys(name for record in found for name in record.left_out))
    # In a later epoch another rank may have left out the same image.
    return found[0].replace(
        left_out=names,
        num_left_out=max([len(names), *(record.num_left_out or 0 for record in found)]),
    )


def _with_memory_limit(outcome: Outcome, limit: MemoryLimitRecord | None) -> Outcome:
    """The outcome, with the memory limit as the reason where the kernel killed a process for it."""
    if outcome.status != "failed" or not limit or not limit.killed_for_memory:
        return outcome
    why = (
        f"the memory limit of {(limit.asked_bytes or 0) / 1e6:,.0f} MB leaves the job itself no"
        " room: give a larger --memory-limit"
    )
    failures = tuple(
        failure.replace(what=f"{failure.what} ({why})") for failure in outcome.failures
    )
    return replace(
        outcome, failures=failures or (Failure(what=why, code=FailureCode.MEMORY_LIMIT),)
    )


def _check_spool_space(config: JobConfig) -> None:
    """Refuse to start where there is no room for even the first window of every process's capture
    file.
    """
    folder = tempfile.gettempdir()
    needed, free = (
        config.ranks * (config.workers + 1) * _FIRST_WINDOW_BYTES,
        shutil.disk_usage(folder).free,
    )
    if free < needed:
        what = f"{free / 1e6:.1f} MB free, recording needs {needed / 1e6:.1f} MB to begin with"
        raise CommandError(f"{folder}: {what}; set TMPDIR to a folder with room", 1)


def _initial_record(
    config: JobConfig,
    manifest: Dataset | None,
    out: Path,
    command: Sequence[str],
    environment: Mapping[str, str],
    reporter: Reporter,
) -> RunRecord:
    """What is known of a run before it starts."""
    paths = {key: str(value) for key, value in asdict(config).items() if isinstance(value, Path)}
    settings = {
        **asdict(config),
        **paths,
        "spool": None,
        "local_copy": None,
        "stages": config.ranks if config.is_pipeline else None,
    }
    return initial_record(command, out, environment).replace(
        config=ConfigRecord.of(settings),
        device=_device_record(config),
        dataset=_dataset_record(manifest) if manifest else None,
        own_place=shared_blocks(manifest, reporter),
    )


def _device_record(config: JobConfig) -> DeviceRecord:
    facts = config.model_facts
    device = emulated_device(config.device, facts)
    if device is None:
        return DeviceRecord(name=config.device, basis="measured", model=facts.name)
    rate, links, pageable = device.rate, device.links, config.copy == "pageable"
    return DeviceRecord(
        name=device.name,
        basis="emulated",
        model=facts.name,
        samples_per_s=rate.samples_per_s,
        rate_basis=rate.basis,
        rate_source=rate.source if rate.year is None else f"{rate.source} ({rate.year})",
        gradient_bytes=facts.gradient_bytes,
        h2d_bytes_per_s=device.pageable_bytes_per_s if pageable else device.h2d_bytes_per_s,
        exchange_bytes_per_s=links.bytes_per_s,
        network_bytes_per_s=links.network_bytes_per_s,
    )


def _dataset_record(manifest: Dataset) -> DatasetRecord:
    keys = ("name", "split", "layout", "records", "bytes", "digest", "scale", "source")
    values = {key: getattr(manifest, key) for key in keys}
    image = asdict(manifest.image)
    return DatasetRecord.of(
        {"path": str(manifest.path), **values, "image": image, "classes": len(manifest.classes)}
    )
