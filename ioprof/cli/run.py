"""`ioprof run`: the built-in distributed training job, recorded."""

import time
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Final

from typer import Argument, Option

from ioprof.cli.console import next_command, say
from ioprof.cli.filling import check_fillable
from ioprof.cli.node import stage_folder
from ioprof.cli.preparing import Preparation, checked_cache
from ioprof.cli.run_folder import check_output
from ioprof.cli.scaling import scaled
from ioprof.cli.session import exit_code, record_job, show
from ioprof.cli.sizes import parse_bytes
from ioprof.cli.staged_job import StageOptions, checked_mode
from ioprof.cli.synthetic import cached_dataset
from ioprof.dataset import Dataset
from ioprof.errors import CommandError
from ioprof.loaders import LOADERS, check_loader
from ioprof.loaders.base import LMDB_READS
from ioprof.loaders.order import batches_per_epoch
from ioprof.loaders.scaling import Scale
from ioprof.storage.limits import LEAST_BYTES, MOST_BYTES
from ioprof.train.accelerators import check_device
from ioprof.train.config import JobConfig

_WORKERS: Final = 2


def run(
    dataset: Annotated[Path | None, Argument(help="Folder made by `ioprof convert`. Without it a synthetic one is made.")] = None,
    loader: Annotated[str | None, Option(help=f"One of {', '.join(LOADERS)}. Without it: the dataset's layout.")] = None,
    device: Annotated[str, Option(help="cpu, cuda, or emulated:NAME, a clock with a known device's speed.")] = "emulated:a100",
    ranks: Annotated[int, Option(min=1, help="Data-parallel processes.")] = 1,
    batch_size: Annotated[int, Option(min=1, help="Samples per step and rank.")] = 64,
    workers: Annotated[int | None, Option(min=0, help=f"Loader processes per rank. Without it: {_WORKERS}; null has none.")] = None,
    steps: Annotated[int | None, Option(min=1, help="Steps to train. Without it: one epoch.")] = None,
    epochs: Annotated[int | None, Option(min=1, help="Epochs to train, instead of --steps.")] = None,
    seed: Annotated[int, Option(min=0, help="Order of the samples and their crops.")] = 0,
    lmdb_read: Annotated[str, Option(help="How --loader lmdb reads: mmap, through the memory map, or pread.")] = LMDB_READS[0],
    dataset_scale: Annotated[str, Option(help="Read a multiple of the dataset: 0.5x, 2x, 50%; made beside it, once.")] = "1x",
    cache: Annotated[str | None, Option(help="Page cache at the start: cold, warm or as-is; proven by residency.")] = None,
    memory_limit: Annotated[str | None, Option(help="Memory of the job, its page cache included, such as 2G.")] = None,
    stage_to: Annotated[str | None, Option(help="Copy the dataset to this folder of the node first; auto finds it.")] = None,
    stage_mode: Annotated[str | None, Option(help="before the job (default), or while-training: in the first epoch.")] = None,
    keep_staged: Annotated[bool, Option("--keep-staged", help="Leave the copy there for the next run.")] = False,
    out: Annotated[Path | None, Option(help="Folder for the run. Without it: ioprof-DATE-TIME here.")] = None,
    force: Annotated[bool, Option("--force", help="Replace the folder of an earlier run.")] = False,
    json: Annotated[bool, Option("--json", help="Print the summary as JSON.")] = False,
) -> int:
    """Train with the built-in job and report what each step waited for."""
    if steps is not None and epochs is not None:
        raise CommandError("--steps and --epochs: give one of them, not both")
    scale, limit_bytes = Scale.parse(dataset_scale), _limit_bytes(memory_limit)
    check_device(device, ranks)
    check_output(folder := out or default_folder(), force)
    manifest = _dataset(dataset, loader, scale)
    stage = _stage(stage_to, checked_mode(stage_mode, stage_to, keep_staged), keep_staged, manifest)
    preparation = Preparation(checked_cache(cache, manifest, limit_bytes is not None), limit_bytes, stage)
    loader = loader or (manifest.layout if manifest else "null")
    config = JobConfig(
        loader=loader,
        device=device,
        ranks=ranks,
        batch_size=batch_size,
        workers=_num_workers(loader, workers),
        steps=steps or 0,
        seed=seed,
        lmdb_read=lmdb_read,
        spool=Path(),
        dataset=manifest.path.resolve() if manifest else None,
    )
    check_loader(config.loader, manifest, config.loader_options(0))
    if stage is not None and stage.mode == "while-training":
        check_fillable(config.loader)
    config = replace(config, steps=steps or _steps_of_epochs(config, manifest, epochs or 1))
    outcome, recorded = record_job(config, manifest, folder, force, preparation)
    show(recorded, json)
    say(f"the same with pictures: {folder / 'report.html'}")
    next_command(*_next(config, folder))
    return exit_code(outcome, folder)


def _dataset(path: Path | None, loader: str | None, scale: Scale) -> Dataset | None:
    """The dataset that the job reads: the one that was given, or the synthetic one, or that multiple of it."""
    if path is None and loader == "null":
        if not scale.is_one:
            raise CommandError(f"--dataset-scale {scale} is about a dataset, and --loader null reads none; leave it out")
        return None
    return scaled(Dataset.load(path or cached_dataset()), scale)


def _limit_bytes(asked: str | None) -> int | None:
    return None if asked is None else parse_bytes("--memory-limit", asked, LEAST_BYTES, MOST_BYTES)


def _stage(stage_to: str | None, mode: str, keep: bool, manifest: Dataset | None) -> StageOptions | None:
    if stage_to is None:
        return None
    if manifest is None:
        raise CommandError(f"--stage-to {stage_to} is about a dataset, and --loader null reads none; leave it out")
    return StageOptions(stage_folder(stage_to, manifest.path), mode, keep)


def _num_workers(loader: str, asked: int | None) -> int:
    if loader != "null":
        return _WORKERS if asked is None else asked
    if asked is not None:
        raise CommandError(f"--workers {asked}: the null loader has no workers; leave --workers out, or choose another --loader")
    return 0


def _next(config: JobConfig, folder: Path) -> tuple[object, ...]:
    """The upper bound of any gain in the loader comes first: the same job on the null loader."""
    if config.loader == "null":
        return "ioprof", "compare", folder, "OTHER_RUN"
    dataset = (config.dataset,) if config.dataset else ()
    size = ("--ranks", config.ranks, "--batch-size", config.batch_size, "--steps", config.steps, "--seed", config.seed)
    named = folder if folder.name else folder.resolve()  # the working directory has no name of its own
    return "ioprof", "run", *dataset, "--loader", "null", "--device", config.device, *size, "--out", f"{named}-null"


def default_folder() -> Path:
    """A folder here, named for the time of day."""
    return Path(time.strftime("ioprof-%Y%m%d-%H%M%S"))


def _steps_of_epochs(config: JobConfig, manifest: Dataset | None, epochs: int) -> int:
    if manifest is None:
        raise CommandError("--loader null without a dataset has no epochs; give --steps")
    return epochs * batches_per_epoch(manifest.records, config.loader_options(0))
