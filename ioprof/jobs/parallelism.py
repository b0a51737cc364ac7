"""What `--parallel` and `--microbatches` combine with; everything else is refused before the
job.
"""

from dataclasses import replace
from typing import Final

from ioprof.errors import CommandError
from ioprof.jobs.options import RunOptions
from ioprof.loaders.order import Batches
from ioprof.train.config import JobConfig
from ioprof.train.parallelism import DATA, PIPELINE

_MICROBATCHES_PER_STAGE: Final = 2


def with_parallelism(config: JobConfig, options: RunOptions, records: int | None) -> JobConfig:
    """The job with what its ranks divide among them; raises CommandError. `records`: of the
    dataset, if it reads one.
    """
    parallel = options.parallel
    if "microbatches" in options.given and parallel != PIPELINE:
        raise CommandError(
            f"--microbatches {options.microbatches}: only a pipeline has them; add --parallel"
            " pipeline, or leave it out"
        )
    if parallel == DATA:
        return config
    if config.device != "cpu":
        raise CommandError(
            f"--parallel {parallel}: runs on --device cpu alone; {config.device} has --parallel"
            " data"
        )
    return _with_stages(config, options, records) if config.is_pipeline else config


def _with_stages(config: JobConfig, options: RunOptions, records: int | None) -> JobConfig:
    facts, stages = config.model_facts, config.ranks
    if stages > facts.most_stages:
        most = (
            f"it can be divided into {facts.most_stages} stages"
            if facts.most_stages
            else "it is no row of layers"
        )
        raise CommandError(
            f"--parallel pipeline: {facts.name} has no {stages} stages, one per rank: {most}"
        )
    for option, value in (
        ("--eval-data", options.eval_data),
        ("--checkpoints", options.checkpoints),
    ):
        if value is not None:
            raise CommandError(
                f"{option} {value}: not with --parallel pipeline, whose ranks have parts of the"
                " model; leave it out"
            )
    if options.checkpoint_every is not None:
        raise CommandError(
            "--checkpoint-every: not with --parallel pipeline, whose ranks have parts of the model;"
            " leave it out"
        )
    if config.bf16 or config.channels_last:
        raise CommandError("--bf16, --channels-last: not with --parallel pipeline; leave them out")
    microbatches = options.microbatches or _MICROBATCHES_PER_STAGE * stages
    if microbatches < stages:
        raise CommandError(
            f"--microbatches {microbatches}: fewer than the {stages} stages; give {stages} or more"
        )
    if config.batch_size % microbatches:
        raise CommandError(
            f"--microbatches {microbatches}: does not divide a batch of {config.batch_size}; choose"
            " another --batch-size"
        )
    config = replace(config, microbatches=microbatches)
    if records is not None:
        batches = Batches(records, config.loader_options(0))
        last = batches.samples(batches.per_epoch - 1)
        if last != config.batch_size and (not config.steps or config.steps >= batches.per_epoch):
            what = (
                f"the last batch of an epoch has {last} of {config.batch_size} samples, and"
                " messages between stages have one size"
            )
            raise CommandError(
                f"--parallel pipeline: {what}; choose a --batch-size that divides {records}"
            )
    return config
