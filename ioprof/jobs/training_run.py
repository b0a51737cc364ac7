"""The built-in job from its options to its run folder: everything that can be found wrong is found
before work starts.
"""

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from ioprof.errors import CommandError
from ioprof.format.dataset import Dataset
from ioprof.jobs.byte_sizes import parse_bytes
from ioprof.jobs.dataset_multiple import multiple_of
from ioprof.jobs.filling import check_fillable
from ioprof.jobs.foreign_data import open_data
from ioprof.jobs.learning import with_learning
from ioprof.jobs.loader_options import check_loader_options, read_of_lmdb
from ioprof.jobs.options import WHILE_TRAINING, RunOptions, with_batch_size
from ioprof.jobs.page_cache import check_cache_state
from ioprof.jobs.parallelism import with_parallelism
from ioprof.jobs.recorded_job import PlannedJob, record_job
from ioprof.jobs.staged.stage_folder import find_stage_folder
from ioprof.jobs.staged.staging import StageOptions
from ioprof.jobs.synthetic_dataset import cached_dataset
from ioprof.jobs.tasks import as_task, check_shared_dataset, local_variables, with_task
from ioprof.loaders import check_loader
from ioprof.loaders.order import batches_per_epoch
from ioprof.loaders.scaling import Scale
from ioprof.options import values_of
from ioprof.recording.attempts import usable_run_folder
from ioprof.recording.parts import own_part
from ioprof.recording.run_folder import check_output
from ioprof.reporter import Reporter
from ioprof.storage.limits import LEAST_BYTES, MOST_BYTES
from ioprof.train.accelerators import check_device
from ioprof.train.accelerators.exchange import check_exchange
from ioprof.train.config import JobConfig
from ioprof.train.models import default_model, model_facts
from ioprof.train.options import JobOptions
from ioprof.train.presets import load_preset

if TYPE_CHECKING:
    from ioprof.report.run import Run

_PREDICTING_EPOCHS: Final = 2
"""Epochs of a job that predicts the time of more, unless it is told otherwise."""


def run_job(
    options: RunOptions, command: Sequence[str], environment: Mapping[str, str], reporter: Reporter
) -> "Run":
    """Train with the built-in job, recorded, and make its run folder; it is whole also when the job
    failed or was interrupted.

    `command` is what started this process, for run.json. Raises `CommandError` and `DatasetError`
    before the job starts, and KeyboardInterrupt, with the run folder whole, if an interrupt came
    after the job's end.
    """
    return record_job(plan_job(options, environment, reporter), command, environment, reporter)


def run_attempt(
    options: RunOptions, command: Sequence[str], environment: Mapping[str, str], reporter: Reporter
) -> "Run":
    """As `run_job`, of a job by itself, that a scheduler may start again: into a folder that can be
    used; see `attempts`.
    """
    options = with_task(options, environment)
    out, message = usable_run_folder(_run_folder(options), environment, force=options.force)
    if message:
        reporter.say(message)
    return run_job(replace(options, out=out), command, environment, reporter)


def _run_folder(options: RunOptions) -> Path:
    return Path(options.out or time.strftime("ioprof-%Y%m%d-%H%M%S"))


def plan_job(options: RunOptions, environment: Mapping[str, str], reporter: Reporter) -> PlannedJob:
    """Check the options and find or make the dataset; raises `CommandError` and `DatasetError`."""
    if {"steps", "epochs"} <= options.given:
        raise CommandError("--steps and --epochs: give one of them, not both")
    options = with_task(options, environment)
    preset = load_preset(options.preset) if options.preset is not None else None
    if preset is not None:
        options = options.with_preset(preset)
        reporter.say(f"preset {preset.name}: {preset.about}")
    options = with_batch_size(options)
    scale, limit_bytes = Scale.parse(options.dataset_scale), None
    if options.memory_limit is not None:
        limit_bytes = parse_bytes("--memory-limit", options.memory_limit, LEAST_BYTES, MOST_BYTES)
    ranks_here = (
        int(local_variables(environment).get("LOCAL_WORLD_SIZE", 1))
        if own_part(environment)
        else options.ranks
    )
    check_device(options.device, ranks_here)
    check_output(out := _run_folder(options), options.force)
    check_shared_dataset(options, scale, environment)
    manifest = _dataset_to_read(options, scale, environment, reporter)
    stage = _stage_options(options, manifest, environment)
    cache = check_cache_state(options.cache, manifest, limit_bytes is not None)
    config = with_parallelism(
        _config(options, manifest), options, manifest.records if manifest is not None else None
    )
    check_loader(config.loader, manifest, config.loader_options(0))
    if stage is not None and stage.mode == WHILE_TRAINING:
        check_fillable(config.loader)
    per_epoch = (
        batches_per_epoch(manifest.records, config.loader_options(0)) if manifest is not None else 0
    )
    if not options.steps:
        if not per_epoch:
            raise CommandError("--loader null without a dataset has no epochs; give --steps")
        epochs = options.epochs or (1 if options.predict_epochs is None else _PREDICTING_EPOCHS)
        config = replace(config, steps=epochs * per_epoch)
    check_prediction(options)
    config = with_learning(
        replace(config, steps_per_epoch=per_epoch),
        options,
        preset.recipe if preset else None,
        out,
        reporter,
    )
    if options.probe_network and (config.ranks < 2 or config.device.startswith("emulated:")):
        raise CommandError(
            f"--probe-network: {config.ranks} ranks on {config.device} exchange nothing by a"
            " network; leave it out"
        )
    config = as_task(config, out, environment)
    return PlannedJob(
        config, manifest, out, options.force, cache, limit_bytes, stage, options.stacks
    )


def check_prediction(options: RunOptions) -> None:
    """CommandError where a job cannot say how long a whole training takes."""
    if options.predict_epochs is not None and options.resume:
        raise CommandError(
            f"--predict-epochs {options.predict_epochs}: a job that goes on has no first epoch;"
            " leave --resume out"
        )
    if options.as_of is not None and options.predict_epochs is None:
        raise CommandError(
            f"--as-of {options.as_of}: says of which dataset epochs are predicted; add"
            " --predict-epochs, such as --predict-epochs 90"
        )


def _config(options: RunOptions, manifest: Dataset | None) -> JobConfig:
    """The job that the options describe, but for what depends on its length."""
    device, loader = options.device, options.loader or (manifest.layout if manifest else "null")
    check_loader_options(options, loader, manifest)
    facts = model_facts(options.model or default_model(device))
    if loader != "null" and not facts.takes_images:
        raise CommandError(
            f"--model {facts.name}: takes tokens, which only --loader null makes; this is {loader}"
        )
    _check_device_options(options)
    per_node = min(options.ranks_per_node or options.ranks, options.ranks)
    check_exchange(options.exchange, options.ranks, per_node)
    is_gpu = device == "cuda"
    found: dict[str, Any] = {
        "loader": loader,
        "workers": 0 if loader == "null" else options.workers,
        "lmdb_read": read_of_lmdb(options, loader),
        "model": facts.name,
        "ranks_per_node": per_node,
        "bf16": is_gpu if options.bf16 is None else options.bf16,
        "channels_last": is_gpu if options.channels_last is None else options.channels_last,
        "checkpoint_every": 0,
    }
    return JobConfig(
        **{**values_of(JobOptions, options), **found},
        dataset=manifest.path.resolve() if manifest else None,
    )


def _check_device_options(options: RunOptions) -> None:
    """CommandError for an option that was given, and that the device has no use for."""
    is_emulated = options.device.startswith("emulated:")
    of_device = {
        "copy": f" {options.copy}: --device cpu copies nothing" if options.device == "cpu" else "",
        **dict.fromkeys(
            ("exchange", "ranks_per_node"),
            (
                ""
                if is_emulated
                else (
                    ": only an emulated device has a choice; torch decides for --device"
                    f" {options.device}"
                )
            ),
        ),
        **dict.fromkeys(
            ("bf16", "channels_last"),
            f": {options.device} computes nothing, and has one known rate" if is_emulated else "",
        ),
    }
    for name, why in of_device.items():
        if why and name in options.given:
            raise CommandError(f"--{name.replace('_', '-')}{why}; leave it out")


def command_after(recorded: "Run") -> tuple[object, ...]:
    """The command to type next: the same job on the null loader, whose rate is the upper bound of
    any gain in the loader.
    """
    config, folder = recorded.trace.run.config, recorded.folder or Path()
    if config.loader == "null":
        return "ioprof", "compare", folder, "OTHER_RUN"
    dataset = (config.dataset,) if config.dataset else ()
    trained = (
        config.model
        if config.model and config.model != default_model(config.device or JobOptions.device)
        else None
    )
    model = ("--model", trained) if trained else ()
    size = (
        "--ranks",
        config.ranks,
        "--batch-size",
        config.batch_size,
        "--steps",
        config.steps,
        "--seed",
        config.seed,
    )
    # the working directory has no name of its own
    named = folder if folder.name else folder.resolve()
    return (
        "ioprof",
        "run",
        *dataset,
        "--loader",
        "null",
        "--device",
        config.device,
        *model,
        *size,
        "--out",
        f"{named}-null",
    )


def _dataset_to_read(
    options: RunOptions, scale: Scale, environment: Mapping[str, str], reporter: Reporter
) -> Dataset | None:
    """The dataset that was given, or the synthetic one, or that multiple of it; None for the null
    loader without one.
    """
    if options.loader == "null":
        # else it says how long an epoch is
        if not scale.is_one and (options.dataset is None or options.steps):
            raise CommandError(
                f"--dataset-scale {scale} is about a dataset, and --loader null reads none; leave"
                " it out"
            )
        if options.dataset is None:
            return None
    found = open_data(
        Path(options.dataset) if options.dataset else cached_dataset(environment, reporter),
        environment,
        reporter,
    )
    if found.layout == "indexed" and options.stage_to is not None:
        raise CommandError(
            f"--stage-to: {options.dataset} is read where it is; convert it first: ioprof convert"
            " imagenet"
        )
    return multiple_of(found, scale, reporter)


def _stage_options(
    options: RunOptions, manifest: Dataset | None, environment: Mapping[str, str]
) -> StageOptions | None:
    if options.stage_to is None:
        if options.given & {"stage_mode", "keep_staged"}:
            option = (
                f"--stage-mode {options.stage_mode}"
                if "stage_mode" in options.given
                else "--keep-staged"
            )
            raise CommandError(
                f"{option} says how to stage, and nothing is staged; give --stage-to DIR, or leave"
                " it out"
            )
        return None
    if manifest is None:
        raise CommandError(
            f"--stage-to {options.stage_to} is about a dataset, and --loader null reads none; leave"
            " it out"
        )
    return StageOptions(
        find_stage_folder(str(options.stage_to), manifest.path, environment),
        options.stage_mode,
        options.keep_staged,
    )
