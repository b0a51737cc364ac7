"""The options of a run of the built-in job, from what it recorded, so that the job can be run again
with a change.
"""

from pathlib import Path
from typing import Final

from ioprof.errors import CommandError
from ioprof.format.run_record import JobChange, JobKind, RunRecord
from ioprof.jobs.options import RunOptions
from ioprof.options import declarations
from ioprof.train.options import JobOptions

_IN_OTHERS: Final = {
    "dataset_scale",
    "epochs",
    "predict_epochs",
    "as_of",
    "eval_every",
    "checkpoint_every",
    "probe_network",
}
"""Options that the recorded dataset and number of steps have in them, or that change nothing of
what is compared."""


def options_of_run(run: RunRecord) -> RunOptions:
    """What `ioprof run` was given. `CommandError` for a run of another job, and for options that a
    run does not record.
    """
    config = run.config
    if run.job_kind is not JobKind.BUILT_IN:
        raise CommandError(
            "ioprof cannot change this job, only those of `ioprof run`: make the change in the"
            " script, record it, and see what came of it with: ioprof compare RUN OTHER_RUN"
        )
    learning = run.learning
    if config.first_step or (learning and (learning.evaluations or learning.checkpoints)):
        raise CommandError(
            "the job evaluated its model, wrote checkpoints or went on from one, and such a job is"
            " not repeated"
        )
    if config.loader != "null" and (config.dataset is None or not Path(config.dataset).is_dir()):
        raise CommandError(
            f"{config.dataset or 'its dataset'}: is not on this machine, so the job cannot be run"
            " again"
        )
    if run.stage is not None:
        raise CommandError(
            "the job copied its dataset to the node first (--stage-to), and such a job is not"
            " repeated"
        )
    ignored = (
        {"bf16", "channels_last"}
        if str(config.device).startswith("emulated:")
        else {"ranks_per_node"}
    )
    ignored |= {"null": {"workers"}, "threads": {"lmdb_read"}}.get(config.loader or "", set())
    recorded = config.to_dict()
    values = {
        each.name: recorded[each.name]
        for each in declarations(JobOptions)
        if each.name not in ignored | _IN_OTHERS and isinstance(recorded.get(each.name), each.types)
    }
    return RunOptions(
        dataset=Path(config.dataset) if config.dataset else None,
        cache=run.cache.asked if run.cache else None,
        memory_limit=str(run.limit.asked_bytes) if run.limit and run.limit.asked_bytes else None,
        **values,
    )


def with_change(options: RunOptions, change: JobChange) -> RunOptions:
    """The options of the changed job. `CommandError` for a change that `ioprof run` has no option
    for.
    """
    is_other = (
        change.prefetch is not None
        or change.persistent_workers
        or change.pin_memory
        or change.speeds
    )
    if is_other or (change.workers is None and change.batch is None and change.cache is None):
        raise CommandError(
            "ioprof run has no option that makes this change; it can change --workers, --batch-size"
            " and --cache"
        )
    changed = {"workers": change.workers, "batch_size": change.batch, "cache": change.cache}
    new = options.changed(**{name: value for name, value in changed.items() if value is not None})
    if change.batch and options.steps:  # as many samples as before
        new = new.changed(steps=max(1, round(options.steps * options.batch_size / change.batch)))
    return new
