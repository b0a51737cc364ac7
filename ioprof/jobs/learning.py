"""What a job is to learn, from its options: how its weights change, its evaluations, and its
checkpoints.
"""

import json
import os
import re
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, Final

from ioprof.errors import CommandError
from ioprof.files import make_folders, read_json_object
from ioprof.format.dataset import Dataset, write_json_atomically
from ioprof.jobs.options import RunOptions
from ioprof.reporter import Reporter
from ioprof.train.checkpoints import foreign_unfinished, steps_saved
from ioprof.train.config import JobConfig
from ioprof.train.recipe import Recipe

_INTERVAL: Final = re.compile(r"(\d+)( ?epochs?)?")
_IDENTITY: Final = "job.json"
"""In the folder of the checkpoints: the settings on which the weights depend."""
_SAME: Final = (
    "model",
    "ranks",
    "parallel",
    "batch_size",
    "seed",
    "bf16",
    "channels_last",
    "recipe",
    "steps_per_epoch",
)


def parse_interval(option: str, text: str, steps_per_epoch: int) -> int:
    """`100` is so many steps, `2epochs` so many epochs, in steps; CommandError for anything
    else.
    """
    found = _INTERVAL.fullmatch(text)
    if not found or int(found.group(1)) < 1:
        raise CommandError(
            f"{option} {text!r}: give a number of steps, such as 100, or of epochs, such as 2epochs"
        )
    if not found.group(2):
        return int(found.group(1))
    if not steps_per_epoch:
        raise CommandError(
            f"{option} {text}: without a dataset there are no epochs; give a number of steps"
        )
    return int(found.group(1)) * steps_per_epoch


def with_learning(
    config: JobConfig, options: RunOptions, recipe: Recipe | None, out: Path, reporter: Reporter
) -> JobConfig:
    """The job with its recipe, evaluations and checkpoints; raises CommandError and
    DatasetError.
    """
    is_emulated = config.device.startswith("emulated:")
    if recipe is not None and is_emulated:
        reporter.say(
            f"{config.device} learns nothing: optimizer, learning rate and label smoothing of the"
            " preset are not used"
        )
    elif recipe is not None and recipe.depends_on_epochs and not config.steps_per_epoch:
        raise CommandError(
            f"--preset {options.preset}: its learning rate depends on epochs, and without a dataset"
            " there are none"
        )
    config = replace(config, recipe=recipe or Recipe())
    config = _with_evaluations(config, options)
    return _with_checkpoints(config, options, out, reporter)


def prepare_checkpoints(config: JobConfig) -> None:
    """Make the folder of the checkpoints, and note in it what the weights depend on."""
    if config.checkpoints is None:
        return
    make_folders(config.checkpoints)
    write_json_atomically(config.checkpoints / _IDENTITY, _identity(config))


def _with_evaluations(config: JobConfig, options: RunOptions) -> JobConfig:
    if options.eval_data is None:
        if options.eval_every is not None:
            raise CommandError(
                f"--eval-every {options.eval_every}: give the dataset to evaluate on, with"
                " --eval-data DATASET"
            )
        return config
    if not config.model_facts.takes_images:
        raise CommandError(
            f"--eval-data {options.eval_data}: has images, and {config.model_facts.name} takes"
            " none; leave it out"
        )
    dataset = Dataset.load(Path(options.eval_data))
    if dataset.records < config.ranks:
        raise CommandError(
            f"--eval-data {options.eval_data}: {dataset.records} records are too few for"
            f" {config.ranks} ranks"
        )
    trained = config.open_dataset()
    if trained is not None and len(trained.classes) != len(dataset.classes):
        what = f"{len(dataset.classes)} classes, and the model is trained on {len(trained.classes)}"
        raise CommandError(f"--eval-data {options.eval_data}: it has {what}")
    every = config.steps_per_epoch or config.steps
    if options.eval_every is not None:
        every = parse_interval("--eval-every", str(options.eval_every), config.steps_per_epoch)
    return replace(config, evaluation_dataset=dataset.path.resolve(), evaluate_every=every)


def _with_checkpoints(
    config: JobConfig, options: RunOptions, out: Path, reporter: Reporter
) -> JobConfig:
    if options.checkpoints is None and options.checkpoint_every is None:
        if options.resume:
            raise CommandError(
                "--resume: give the folder of the checkpoints, with --checkpoints DIR"
            )
        return config
    every = config.steps_per_epoch or config.steps
    if options.checkpoint_every is not None:
        every = parse_interval(
            "--checkpoint-every", str(options.checkpoint_every), config.steps_per_epoch
        )
    folder = Path(
        options.checkpoints or out.with_name(f"{out.resolve().name}-checkpoints")
    ).resolve()
    config = replace(config, checkpoints=folder, checkpoint_every=every)
    _check_place(folder)
    saved = steps_saved(folder)
    if not options.resume:
        if saved:
            raise CommandError(
                f"{folder}: has checkpoints of a job; add --resume to go on with it, or choose"
                " another --checkpoints"
            )
        return config
    if not saved:
        reporter.say(f"{folder}: no checkpoint yet; the job begins with its first step")
        return config
    _check_identity(config, folder)
    if saved[-1] >= config.steps:
        raise CommandError(
            f"{folder}: the job has done its {config.steps} steps; give more --steps or --epochs,"
            " or leave --resume out"
        )
    reporter.say(f"{folder}: going on after step {saved[-1]} of {config.steps}")
    return replace(config, first_step=saved[-1])


def _identity(config: JobConfig) -> dict[str, Any]:
    kept = {key: value for key, value in asdict(config).items() if key in _SAME}
    dataset = config.open_dataset()
    kind = (
        config.device if config.device.startswith("emulated:") else config.device.partition(":")[0]
    )
    return {
        **kept,
        "model": config.model_facts.name,
        "device": kind,
        "data": dataset.digest if dataset else config.loader,
    }


def _check_place(folder: Path) -> None:
    """CommandError if a file or folder of another program has a name that the job will write."""
    foreign = foreign_unfinished(folder)
    if (
        foreign is None
        and os.path.lexists(folder / _IDENTITY)
        and not set(_SAME) <= (read_json_object(folder / _IDENTITY) or {}).keys()
    ):
        foreign = folder / _IDENTITY
    if foreign is not None:
        raise CommandError(
            f"{foreign}: is in the way of the job's own, and ioprof did not write it; choose"
            " another --checkpoints"
        )


def _check_identity(config: JobConfig, folder: Path) -> None:
    """CommandError if the checkpoints are of another job."""
    if not (before := read_json_object(folder / _IDENTITY)):
        raise CommandError(
            f"{folder}: does not say of which job its checkpoints are ({_IDENTITY} is missing)"
        )
    now = json.loads(json.dumps(_identity(config)))
    different = [
        f"{key} was {before.get(key)}, and is {now[key]}"
        for key in now
        if before.get(key) != now[key]
    ]
    if different:
        raise CommandError(
            f"--resume: the checkpoints in {folder} are of another job: {'; '.join(different)}"
        )
