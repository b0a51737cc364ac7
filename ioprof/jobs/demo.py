"""The demo: synthetic images, converted three ways, and a job on each."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from ioprof.converters import ConvertOptions, convert
from ioprof.errors import CommandError
from ioprof.files import make_folders
from ioprof.format.dataset import Dataset
from ioprof.jobs.recorded_job import PlannedJob, record_job
from ioprof.jobs.synthetic_dataset import generate_tree
from ioprof.recording.run_folder import output_exists
from ioprof.reporter import Reporter
from ioprof.train.accelerators import check_device
from ioprof.train.config import JobConfig

if TYPE_CHECKING:
    from ioprof.analysis.run import Run

_RANKS: Final = 2
_DATASETS: Final = {
    "files": ConvertOptions(layout="files", image="original"),
    "lmdb": ConvertOptions(layout="lmdb", image="original"),
    "lmdb-rgb256": ConvertOptions(layout="lmdb", image="rgb256"),
}
"""Name of each dataset that the demo makes of the same images, and how."""


def make_demo(
    out: Path,
    images: int,
    steps: int,
    device: str,
    force: bool,
    command: Sequence[str],
    environment: Mapping[str, str],
    reporter: Reporter,
) -> Iterator["Run"]:
    """Make images, datasets and runs in the folder `out`; yields each run when it is made, its
    folder the dataset's name.

    Raises `CommandError` for a device that cannot be used, or where `out` is something else than an
    earlier demo.
    """
    check_device(device, _RANKS)
    _prepare(out, force)
    generate_tree(out / "images", images, reporter, force=force)
    for name, options in _DATASETS.items():
        with reporter.progress(f"convert {name}", images) as advance:
            dataset = convert(
                out / "images", out / "datasets" / name, replace(options, force=force), advance
            )
        job = PlannedJob(_job(dataset, steps, device), dataset, out / "runs" / name, force)
        yield record_job(job, command, environment, reporter)


def _job(dataset: Dataset, steps: int, device: str) -> JobConfig:
    return JobConfig(
        loader=dataset.layout,
        device=device,
        ranks=_RANKS,
        batch_size=16,
        workers=1,
        steps=steps,
        dataset=dataset.path.resolve(),
    )


def _prepare(out: Path, force: bool) -> None:
    marker = out / ".ioprof-demo"
    if out.exists():
        if not marker.is_file() and (not out.is_dir() or any(out.iterdir())):
            raise CommandError(
                f"{out}: exists and is not an earlier demo, so it is not replaced; choose another"
                " --out"
            )
        if not force:
            # with it, each of its folders is replaced by itself, where ioprof made it
            raise output_exists(out)
    make_folders(out)
    marker.touch()
