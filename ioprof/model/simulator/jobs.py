"""What a job does in each step: described by a model, a device and a layout, or as recorded."""

import tomllib
from dataclasses import dataclass, replace
from functools import lru_cache
from importlib.resources import files
from typing import Any, Final

import numpy as np

from ioprof.analysis.charge.steps import warmup
from ioprof.errors import CommandError
from ioprof.format.trace import Trace
from ioprof.model.pipeline import OWN, STAGES, Op, Pipeline, Rank
from ioprof.model.recorded import pipeline
from ioprof.model.simulator.engine import Array
from ioprof.model.simulator.values import Value, parse_value
from ioprof.train.devices import DERIVED, emulated_device
from ioprof.train.models import MODELS

DESCRIBED, MEASURED = "described", "measured"
IMAGENET_SAMPLES: Final = 1_281_167
IMAGENET_BYTES: Final = 114_660.07
"""Of a JPEG file of its training set, mean (MLPerf Storage v1.0, resnet50)."""
RGB256_BYTES: Final = 256 * 256 * 3
DERIVED_ERROR: Final = 0.118
"""Of a rate that was derived for a model: that of Habitat (ATC 2021) over 6 devices, 5 models."""
DECODED: Final = Value(
    3.5e-3, 2.4e-3, 6e-3, "measured", "Pillow 570/s, simplejpeg 840/s on 2 cores"
)
"""Decoding, crop and collation of an ImageNet JPEG."""
COPIED: Final = Value(0.3e-3, 0.1e-3, 1e-3, "assumed", "not measured")
"""Copies and crop of an image of 256 x 256 that is not encoded."""
STEP: Final = Value(0.5e-3, 0.1e-3, 5e-3, "assumed", "known of recorded jobs only")
"""What a step takes on the host."""
NOTHING: Final = Value(0.0, 0.0, 0.0, "source", "in none of its times")
SPREAD: Final = (
    np.array([0.01, 0.05, 0.25, 0.5, 0.75, 0.9, 0.95, 0.99, 0.999, 1.0]),
    np.array([0.635, 0.749, 0.904, 1.0, 1.10, 1.205, 1.28, 1.513, 2.24, 6.3]),
)
"""Quantiles of what a step of a rank takes besides computation, over their median: 42,750 steps of
15 ranks on HPE E1000, MLPerf Storage v1.0, unet3d."""
_DRAWS: Final = 1000
_LEAST_WAYS: Final = 8
"""Batches for which a loop waited, from which on their way from the worker is known: the first one
of each worker has another."""


@dataclass(frozen=True)
class Layout:
    """How the records of a dataset are stored and read."""

    files_per_sample: float
    reads_per_sample: float
    """Requests that one reader makes one after the other."""
    is_one_file: bool
    """Whether all readers read the same file."""
    is_encoded: bool
    image: str = "original"


LAYOUTS: Final = {
    "files": Layout(1.0, 1.0, False, True),
    "lmdb": Layout(0.0, 1.0, True, True),
    # in sequence: a request brings a megabyte, of several records
    "webdataset": Layout(1 / 1251, IMAGENET_BYTES / 2**20, False, True),
    "rgb256": Layout(0.0, 1.0, True, False, "rgb256"),
}
"""By the name that `--layout` takes. `rgb256`: an LMDB of decoded images of 256 x 256."""


@dataclass(frozen=True)
class Job:
    """What each rank does."""

    name: str
    basis: str
    """`DESCRIBED` or `MEASURED`."""
    source: str
    """What its times rest on."""
    batch: int
    samples: int
    """Of the dataset."""
    sample_bytes: float
    """As stored, mean."""
    size_cv: float
    """Standard deviation of a sample's bytes, over the mean."""
    compute_s: Array
    """Of a step; several values are drawn from."""
    compute_error: float
    """Of these times, as a ratio."""
    cpu_s: Value
    """Core seconds per sample that the loader needs."""
    files_per_sample: float
    reads_per_sample: float
    is_one_file: bool
    workers: int
    prefetch: int
    threads: int
    """That make one batch together; 0: as many as the node has cores, whatever the workers."""
    gradient_bytes: float
    overhead_s: Value
    overhead_draws: Array
    """Shape of its distribution: 1 is the median."""
    shuffles: str
    use_limit: float
    """Use of the accelerator that counts as held."""
    hit_ratio: float = 0.0
    """Of its bytes, that the page cache had in the run; 0 where it is described."""
    once_s: Value = NOTHING
    """What the first epoch takes besides: compiled kernels, tuned algorithms, first connections."""
    once_per_rank_s: Value = NOTHING
    """The same, for each rank of the job."""
    staging_start_s: Value = NOTHING
    """What staging takes besides the copy: processes that start, unpack and check."""
    copy_s: float = 0.0
    """Copying a batch to the device from page-locked memory, while it computes the one before; 0
    where it is in the time of a step."""
    fixed_s: float = 0.0
    """Of a batch besides, that waits for nothing shared, such as the way to the loop."""

    @property
    def dataset_bytes(self) -> float:
        """All of it, as stored."""
        return self.samples * self.sample_bytes

    @property
    def assumed(self) -> tuple[str, ...]:
        """Of its values, those that are assumed."""
        values = {"cpu_s": self.cpu_s, "overhead_s": self.overhead_s}
        return tuple(name for name, each in values.items() if each.basis == "assumed")


def spread() -> Array:
    """Values of the distribution `SPREAD`, equally likely."""
    places = (np.arange(_DRAWS) + 0.5) / _DRAWS
    found: Array = np.interp(places, *SPREAD)
    return found


@lru_cache(maxsize=1)
def _workloads() -> dict[str, dict[str, Any]]:
    text = files("ioprof.model.simulator").joinpath("workloads.toml").read_text()
    return tomllib.loads(text)


def job_names() -> list[str]:
    """The jobs that can be described by name."""
    return [*_workloads(), *(name for name, facts in MODELS.items() if facts.takes_images)]


def workload_devices(name: str) -> tuple[str, ...]:
    """The devices on which a workload has a published time, the oldest first; of a model, which has
    a rate on each: none.
    """
    return tuple(_workloads()[name]["compute_s"]) if name in _workloads() else ()


def described(
    name: str,
    device: str,
    *,
    layout: str = "files",
    scale: float = 1.0,
    samples: int | None = None,
    batch: int | None = None,
    workers: int | None = None,
    prefetch: int | None = None,
) -> Job:
    """The job of that name; CommandError for one that is unknown, or has no time on the device."""
    if name in _workloads():
        found = _workload(name, device, samples)
    elif name in MODELS and MODELS[name].takes_images:
        found = _training(name, device, layout, samples or IMAGENET_SAMPLES, batch or 32)
    else:
        raise CommandError(
            f"--job {name}: unknown; choose one of {', '.join(job_names())}, or a run folder"
        )
    if batch is not None and name in _workloads() and batch != found.batch:
        fixed = _workloads()[name].get("fixed_ratio", 0.0)
        ratio = fixed + (1 - fixed) * batch / found.batch
        found = replace(found, batch=batch, compute_s=found.compute_s * ratio)
    if not found.threads:  # these choose their number themselves
        workers = None
    return scaled(with_workers(found, workers, prefetch), scale)


def _workload(name: str, device: str, samples: int | None) -> Job:
    table = _workloads()[name]
    times, key = table["compute_s"], device.removesuffix("-mlperf-storage")
    if key not in times:
        raise CommandError(
            f"--device {device}: {name} has no published time on it; choose one of"
            f" {', '.join(times)}"
        )
    batch = table["batch"] if isinstance(table["batch"], int) else table["batch"][key]
    shares = bool(table["threads_share_a_batch"])
    once = {
        key: parse_value(f"{name}: {key}", table[key]) if key in table else NOTHING
        for key in ("once_s", "once_per_rank_s", "staging_start_s")
    }
    of = table.get("from", "MLPerf Storage")
    return Job(
        name=name,
        basis=DESCRIBED,
        source=f"{of}: batch {batch} in {times[key]:g} s on {key}",
        batch=batch,
        samples=samples or table.get("samples", IMAGENET_SAMPLES),
        sample_bytes=table["sample_bytes"],
        size_cv=table["sample_bytes_sd"] / table["sample_bytes"],
        compute_s=np.array([float(times[key])]),
        compute_error=0.0,
        files_per_sample=table["files_per_sample"],
        reads_per_sample=max(table["files_per_sample"], table["sample_bytes"] / 2**20),
        is_one_file=False,
        workers=1 if shares else table["workers"],
        prefetch=table["prefetch"],
        threads=0 if shares else 1,
        gradient_bytes=0.0,
        overhead_draws=spread(),
        shuffles=table["shuffles"],
        use_limit=table["use_limit"],
        cpu_s=parse_value(f"{name}: cpu_s", table["cpu_s"]),
        overhead_s=parse_value(f"{name}: overhead_s", table["overhead_s"]),
        once_s=once["once_s"],
        once_per_rank_s=once["once_per_rank_s"],
        staging_start_s=once["staging_start_s"],
    )


def _training(name: str, device: str, layout: str, samples: int, batch: int) -> Job:
    if layout not in LAYOUTS:
        raise CommandError(f"--layout {layout}: unknown; choose one of {', '.join(LAYOUTS)}")
    stored, facts = LAYOUTS[layout], MODELS[name]
    made = emulated_device(f"emulated:{device}", facts)
    if made is None:
        raise CommandError(f"--device {device}: is no accelerator")
    found = made.rate
    return Job(
        name=f"{name} on {device}, {layout}",
        basis=DESCRIBED,
        source=f"{device} trains {found.samples_per_s:,.0f} samples/s ({found.basis}:"
        f" {found.source})",
        batch=batch,
        samples=samples,
        sample_bytes=IMAGENET_BYTES if stored.is_encoded else RGB256_BYTES,
        size_cv=0.5 if stored.is_encoded else 0.0,
        compute_s=np.array([batch / found.samples_per_s]),
        compute_error=DERIVED_ERROR if found.basis == DERIVED else 0.0,
        cpu_s=DECODED if stored.is_encoded else COPIED,
        files_per_sample=stored.files_per_sample,
        reads_per_sample=stored.reads_per_sample,
        is_one_file=stored.is_one_file,
        workers=8,
        prefetch=2,
        threads=1,
        gradient_bytes=facts.gradient_bytes,
        overhead_s=STEP,
        overhead_draws=spread(),
        shuffles="global",
        use_limit=0.9,
        copy_s=batch * facts.sample_bytes / made.h2d_bytes_per_s,
    )


def recorded(trace: Trace) -> tuple[Job, Pipeline]:
    """The job that a run recorded, with its pipeline. `ReplayError` says why it has none."""
    found = pipeline(trace)
    batch = found.batch_size or 1
    ranks = [rank for rank in found.ranks if rank.iterations]
    tasks = [
        (rank, each)
        for rank in ranks
        for each in rank.iterations
        if not each.is_validation and len(each.tasks)
    ]
    stages = np.concatenate([_known(each.tasks.stages_s) for _, each in tasks])
    computing = stages.sum(1) - stages[:, STAGES.index("storage")]
    busy = np.mean([rank.worker_cpu.cores_ratio for rank in ranks])
    loads = {
        name: np.concatenate([_known(getattr(each.tasks, name)) for _, each in tasks])
        for name in ("read_bytes", "reads", "take_s")
    }
    alone_s = float(computing.mean())
    cpu_s = float(computing.mean() * busy / batch)
    steps = np.concatenate([_steps_s(rank) for rank in ranks])
    # the way of a batch shows where the loop waited for it; others may have lain there
    waited = np.concatenate([np.isinf(each.tasks.transit_most_s) for _, each in tasks])
    ways_s = np.concatenate([each.tasks.lag_s + each.tasks.transit_s for _, each in tasks])[waited]
    ways_s = ways_s[np.isfinite(ways_s)]
    way_s = float(np.mean(ways_s)) if len(ways_s) >= _LEAST_WAYS else 0.0
    first = tasks[0][1]
    overhead = float(np.median(loads["take_s"])) or 1e-6
    samples = trace.run.dataset.records if trace.run.dataset else None
    stored = trace.run.dataset.bytes if trace.run.dataset else None
    per_sample = stored / samples if stored and samples else loads["read_bytes"].mean() / batch
    read = float(loads["read_bytes"].mean()) / batch
    hit_ratio = max(0.0, 1 - read / float(per_sample)) if per_sample else 0.0
    return (
        Job(
            name=f"recorded, {len(found.ranks)} ranks",
            basis=MEASURED,
            source=f"{len(stages)} batches and {len(steps)} steps of the run",
            batch=batch,
            samples=samples or batch * len(steps),
            sample_bytes=max(1.0, float(per_sample)),
            # of the time of a batch, which has that of its bytes in it
            size_cv=float(computing.std() / max(alone_s, 1e-9)) * batch**0.5,
            compute_s=steps,
            compute_error=float(np.std(steps) / np.mean(steps) / np.sqrt(len(steps))),
            cpu_s=Value(cpu_s, 0.95 * cpu_s, 1.05 * cpu_s, MEASURED, "CPU time of the workers"),
            files_per_sample=0.0,
            reads_per_sample=float(loads["reads"].mean()) / batch,
            is_one_file=False,
            workers=first.workers,
            prefetch=first.prefetch,
            threads=1,
            gradient_bytes=0.0,
            overhead_s=Value(overhead, overhead, overhead, MEASURED, "taking a batch"),
            overhead_draws=np.ones(1),
            shuffles="global",
            use_limit=0.9,
            hit_ratio=hit_ratio,
            fixed_s=max(0.0, alone_s - cpu_s * batch) + way_s,
        ),
        found,
    )


def with_workers(job: Job, workers: int | None, prefetch: int | None) -> Job:
    """The job with other workers."""
    return replace(
        job,
        workers=job.workers if workers is None else workers,
        prefetch=job.prefetch if prefetch is None else prefetch,
    )


def scaled(job: Job, scale: float) -> Job:
    """The job on so many times the data."""
    return replace(job, samples=round(job.samples * scale))


def _known(values: Array) -> Array:
    """Of batches that were observed."""
    return values[~np.isnan(values if values.ndim == 1 else values.sum(1))]


def _steps_s(rank: Rank) -> Array:
    """What each step took besides waiting for its batch: that of the device, where it computes
    beside the loop, and the exchange of the run in it.
    """
    program = rank.program
    takes = np.array([op is Op.TAKE for op in program.ops])
    training = np.array(
        [not rank.iterations[number].is_validation for number in program.iterations]
    )
    own = program.after_s.sum(1) - program.after_s[:, OWN.index("straggler")]
    device = np.nan_to_num(program.device_s) + np.nan_to_num(program.transfer_s)
    both = np.maximum(own, device) if rank.depth is not None else own
    found: Array = both[takes & training]
    return found[warmup(len(found)) : -1] if len(found) > 1 else found
