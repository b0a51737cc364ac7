"""The options of a run of the built-in job, from what it recorded, so that the job can be run again with a change."""

from dataclasses import replace
from pathlib import Path

from ioprof.errors import CommandError
from ioprof.jobs.options import RunOptions
from ioprof.loaders.base import DECODES, LMDB_READS, ON_CORRUPT, READAHEADS
from ioprof.run_record import JobChange, JobKind, RunRecord


def options_of_run(run: RunRecord) -> RunOptions:
    """What `ioprof run` was given. `CommandError` for a run of another job, and for options that a run does not record."""
    config = run.config
    if run.job_kind is not JobKind.BUILT_IN:
        raise CommandError(
            "ioprof cannot change this job, only those of `ioprof run`: make the change in the script, record it, "
            "and see what came of it with: ioprof compare RUN OTHER_RUN"
        )
    learning = run.learning
    if config.first_step or (learning and (learning.evaluations or learning.checkpoints)):
        raise CommandError("the job evaluated its model, wrote checkpoints or went on from one, and such a job is not repeated")
    if config.loader != "null" and (config.dataset is None or not Path(config.dataset).is_dir()):
        raise CommandError(f"{config.dataset or 'its dataset'}: is not on this machine, so the job cannot be run again")
    if run.stage is not None:
        raise CommandError("the job copied its dataset to the node first (--stage-to), and such a job is not repeated")
    return RunOptions(
        dataset=Path(config.dataset) if config.dataset else None,
        loader=config.loader,
        device=config.device,
        ranks=config.ranks,
        batch_size=config.batch_size,
        workers=config.workers,
        steps=config.steps,
        seed=config.seed or 0,
        lmdb_read=None if config.loader == "threads" else _unless_default(config.lmdb_read, LMDB_READS),
        lmdb_readahead=_unless_default(config.lmdb_readahead, READAHEADS),
        decode=_unless_default(config.decode, DECODES),
        on_corrupt=_unless_default(config.on_corrupt, ON_CORRUPT),
        cache=run.cache.asked if run.cache else None,
        memory_limit=str(run.limit.asked_bytes) if run.limit and run.limit.asked_bytes else None,
        model=config.model,
        copy=config.copy if config.device != "cpu" else None,
        exchange=config.exchange,
        ranks_per_node=config.ranks_per_node,
        parallel=config.parallel,
        microbatches=config.microbatches or None,
    )


def _unless_default(value: str | None, choices: tuple[str, ...]) -> str | None:
    """The value, if it was given: a run records defaults, which are refused where a loader ignores them."""
    return None if value == choices[0] else value


def with_change(options: RunOptions, change: JobChange) -> RunOptions:
    """The options of the changed job. `CommandError` for a change that `ioprof run` has no option for."""
    is_other = change.prefetch is not None or change.persistent_workers or change.pin_memory or change.speeds
    if is_other or (change.workers is None and change.batch is None and change.cache is None):
        raise CommandError("ioprof run has no option that makes this change; it can change --workers, --batch-size and --cache")
    new = replace(
        options,
        workers=options.workers if change.workers is None else change.workers,
        batch_size=options.batch_size if change.batch is None else change.batch,
        cache=change.cache or options.cache,
    )
    if change.batch and options.batch_size and options.steps:  # as many samples as before
        new = replace(new, steps=max(1, round(options.steps * options.batch_size / change.batch)))
    return new
