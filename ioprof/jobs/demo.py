"""The demo: synthetic images, converted three ways, and a job on each.

The emulated device has a rate that is chosen by what this machine decodes, so that on any machine
original images are decoded more slowly than the device trains, and small ones faster.
"""

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
    from ioprof.report.run import Run

_RANKS: Final = 2
_WITHOUT_DEVICE: Final = ("emulated:h200", "alexnet")
"""The fastest device and model: a job with them waits for its batches alone."""
_LIKE: Final = "v100"
"""The device whose copies and links the demo's has."""
_MEASURED_STEPS: Final = 40
"""Of a job that waits for decoding alone: two seconds on two cores, without its start."""
_PLACE: Final = 0.6
"""Of the device's rate between the two, 0 to 1, by their ratio: nearer to that of small images,
since original ones are decoded faster beside a device, for which the loops wait, than without."""
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

    def record(folder: str, name: str, device: str, model: str, steps: int) -> "Run":
        config = _config(datasets[name], steps, device, model)
        planned = PlannedJob(config, datasets[name], out / folder / name, force)
        return record_job(planned, command, environment, reporter)

    if device is None:
        reporter.say("measuring how fast this machine decodes, to choose an emulated device's rate")
        rates = [
            _rate(record("measured", name, *_WITHOUT_DEVICE, _MEASURED_STEPS)) for name in _ENDS
        ]
        samples_per_s = rates[0] * (rates[1] / rates[0]) ** _PLACE
        reporter.say(
            f"{rates[0]:,.0f} original and {rates[1]:,.0f} small images/s are decoded here; the"
            f" emulated devices train {samples_per_s:,.0f}"
        )
        device = f"emulated:{_LIKE}@{samples_per_s / _RANKS:.0f}"
    for name in _DATASETS:
        yield record("runs", name, device, "resnet50", steps)


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


def _config(dataset: Dataset, steps: int, device: str, model: str) -> JobConfig:
    return JobConfig(
        loader=dataset.layout,
        device=device,
        model=model,
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
