"""The demo: synthetic images, converted three ways, and a job on each.

The emulated device is chosen by what this machine decodes, so that on any machine original images
are decoded more slowly than the device trains, and small ones faster.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
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
from ioprof.train.devices import device_names, rate
from ioprof.train.models import MODELS

if TYPE_CHECKING:
    from ioprof.report.run import Run

_RANKS: Final = 2
_MODELS: Final = ("alexnet", "vgg16", "resnet50", "inception3")
_MEASURED_STEPS: Final = 40
"""Of a job that waits for decoding alone: two seconds on two cores, without its start."""
_ENDS: Final = ("files", "lmdb-rgb256")
"""The datasets that take longest and least long to decode."""
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
    device: str | None,
    force: bool,
    command: Sequence[str],
    environment: Mapping[str, str],
    reporter: Reporter,
) -> Iterator["Run"]:
    """Make images, datasets and runs in the folder `out`; yields each run when it is made, its
    folder the dataset's name. `device` trains ResNet-50; None: an emulated one is chosen.

    Raises `CommandError` for a device that cannot be used, or where `out` is something else than an
    earlier demo.
    """
    if device is not None:
        check_device(device, _RANKS)
    _prepare(out, force)
    generate_tree(out / "images", images, reporter, force=force)
    datasets = {}
    for name, options in _DATASETS.items():
        with reporter.progress(f"convert {name}", images) as advance:
            datasets[name] = convert(
                out / "images", out / "datasets" / name, replace(options, force=force), advance
            )

    def record(folder: str, name: str, job: _Job, steps: int) -> "Run":
        planned = PlannedJob(
            _config(datasets[name], steps, job), datasets[name], out / folder / name, force
        )
        return record_job(planned, command, environment, reporter)

    if device is None:
        reporter.say("measuring how fast this machine decodes, to choose an emulated device")
        rates = [_rate(record("measured", name, _jobs()[-1], _MEASURED_STEPS)) for name in _ENDS]
        job = _between(*rates)
        reporter.say(
            f"{rates[0]:,.0f} original and {rates[1]:,.0f} small images/s are decoded here; chosen:"
            f" {job.device}, training {job.model}, {_RANKS * job.samples_per_s:,.0f} images/s"
        )
    else:
        job = _Job(device, "resnet50", 0.0)
    for name in _DATASETS:
        yield record("runs", name, job, steps)


@dataclass(frozen=True)
class _Job:
    """A model on a device, and how many samples per second one such device trains."""

    device: str
    model: str
    samples_per_s: float


def _jobs() -> list[_Job]:
    """All emulated devices with all models of images, the slowest first."""
    found = [
        _Job(f"emulated:{name}", model, rate(name, MODELS[model]).samples_per_s)
        for name in device_names()
        for model in _MODELS
    ]
    return sorted(found, key=lambda each: each.samples_per_s)


def _between(slow: float, fast: float) -> _Job:
    """The job that is farthest, as a ratio, from both rates of all ranks together, and between them
    if one is.
    """

    def distance(job: _Job) -> float:
        wanted = _RANKS * job.samples_per_s
        return min(wanted / slow, fast / wanted)

    return max(_jobs(), key=distance)


def _rate(run: "Run") -> float:
    """Samples per second of all ranks. `CommandError`: the job failed."""
    found = run.summary.throughput.steady_samples_per_s
    if not found:
        raise CommandError(
            f"{run.folder}: how fast this machine decodes could not be measured; see: ioprof report"
            f" {run.folder}; or name a device: ioprof demo --device emulated:a100",
            exit_code=1,
        )
    return found


def _config(dataset: Dataset, steps: int, job: _Job) -> JobConfig:
    return JobConfig(
        loader=dataset.layout,
        device=job.device,
        model=job.model,
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
