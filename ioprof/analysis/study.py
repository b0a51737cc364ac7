"""A published study made again: runs that differ in one setting, and what of each the study's table
shows.
"""

import json
from dataclasses import asdict, dataclass
from typing import Final

import polars as pl

from ioprof.analysis.charge.steps import warmup
from ioprof.analysis.reads.lineage import LEAVES
from ioprof.analysis.run import Run
from ioprof.analysis.selection import span_s

OPTIMIZER: Final = "optimizer"
"""Name of the spans of the optimizer on a CPU, see `instrument.hooks.compute`."""


@dataclass(frozen=True)
class Iteration:
    """What a step after the warm-up is made of: means over steps and ranks, in seconds. The parts
    sum to `step_s`.
    """

    step_s: float
    forward_backward_s: float
    """With the optimizer, where that has no spans of its own: on an emulated device."""
    optimizer_s: float | None
    exchange_s: float
    """Transfer between ranks that computation did not hide."""
    straggler_s: float
    """Waiting for other ranks: bubbles, in a pipeline."""
    input_s: float
    """Waiting for batches, and copies to the device that computation did not hide."""
    other_s: float


@dataclass(frozen=True)
class StudyRow:
    """One run of a study."""

    value: str
    """Of the setting that is varied."""
    run: str
    """Folder."""
    basis: str
    """`measured` or `emulated`: how the times of device and exchange came to be."""
    ranks: int
    steps: int
    samples_per_step: int | None
    """Of all ranks."""
    seconds: float | None
    """From the start of the first step to the end of the last."""
    samples_per_s: float | None
    """Of all ranks, after the warm-up."""
    speedup: float | None
    """`samples_per_s` over that of the first row."""
    iteration: Iteration | None
    bound_by: str | None
    dataset_bytes: int | None = None
    dataset_samples: int | None = None
    memory_limit_bytes: int | None = None
    """Of the job with its page cache; null: that of the machine."""
    epochs: int | None = None
    """Whose time is predicted; null: of none."""
    predicted_s: float | None = None
    error_s: float | None = None
    """95 % bound of the error of `predicted_s`."""
    first_epoch_s: float | None = None
    later_epoch_s: float | None = None
    storage_bytes: tuple[int, ...] = ()
    """Read from storage in each epoch that was made."""
    needed_bytes_per_s: float | None = None
    """What all ranks together must get so that the devices never wait: the bytes of a sample, times
    `at_samples_per_s`. From storage, while the page cache has none of them."""
    fetched_bytes_per_s: float | None = None
    """The same by what the kernel fetched for the job, mean of all epochs that were made: with
    readahead that nobody used, and without what the page cache had. See
    `ioprof.analysis.reads.demand`."""
    needed_reads_per_s: float | None = None
    at_samples_per_s: float | None = None
    """The rate of the devices for which that is needed."""
    got_bytes_per_s: float | None = None
    """What the workers got while they made batches."""
    model: str | None = None
    """That of the run, which may be another one than the preset's."""


@dataclass(frozen=True)
class Study:
    """All runs of a study."""

    preset: str
    about: str
    source: str
    year: int | None
    undated: str
    """Why there is no year."""
    varied: str
    """`ranks` or `dataset_scale`."""
    parallel: str
    """What the ranks divide among them: see `ioprof.train.parallelism`."""
    rows: tuple[StudyRow, ...]

    def to_json(self) -> str:
        """All of it."""
        return json.dumps(asdict(self), indent=1, allow_nan=False)


def iteration(run: Run) -> Iteration | None:
    """What a step was made of; None: no step was recorded whole."""
    table = run.steps.filter(pl.col("host_ns").is_not_null())
    if table.is_empty():
        return None
    first = int(table["step"].min()) + warmup(table["step"].n_unique())  # type: ignore[arg-type]  # an integer column
    steady = table.filter(pl.col("step") >= first)
    if steady.is_empty():
        return None
    means = {
        name: float(steady[name].fill_null(0).sum()) / len(steady) / 1e9
        for name in steady.columns
        if name.endswith("_ns")
    }
    is_optimizer = (
        (pl.col("kind") == "compute")
        & (pl.col("name").cast(pl.String) == OPTIMIZER)
        & (pl.col("step") >= first)
    )
    spans = run.trace.found(
        lambda part: part.filter(is_optimizer).select(took=pl.col("end_ns") - pl.col("start_ns"))
    )
    optimizer_s = float(spans["took"].sum()) / len(steady) / 1e9 if len(spans) else None
    step_s = means["end_ns"] - means["start_ns"]
    input_s = sum(means[f"{cause}_ns"] for cause in (*LEAVES, "h2d"))
    known_s = means["compute_ns"] + means["exchange_ns"] + means["straggler_ns"] + input_s
    return Iteration(
        step_s=step_s,
        forward_backward_s=means["compute_ns"] - (optimizer_s or 0.0),
        optimizer_s=optimizer_s,
        exchange_s=means["exchange_ns"],
        straggler_s=means["straggler_ns"],
        input_s=input_s,
        other_s=step_s - known_s,
    )


def study_row(value: str, run: Run, first: StudyRow | None) -> StudyRow:
    """What of a run the table shows; `first` is the row that it is compared with, if it is not the
    first itself.
    """
    config, summary = run.trace.run.config, run.summary
    need, prediction = summary.demand, summary.prediction
    dataset, limit = run.trace.run.dataset, run.trace.run.limit
    sample_bytes = (
        dataset.bytes / dataset.records if dataset and dataset.bytes and dataset.records else None
    )
    per_s = summary.throughput.steady_samples_per_s or summary.throughput.samples_per_s
    base = per_s if first is None else first.samples_per_s
    return StudyRow(
        value=value,
        run=str(run.folder or ""),
        basis=run.trace.run.device_basis,
        ranks=config.ranks or 1,
        steps=summary.steps.count,
        samples_per_step=config.batch_size * (config.replicas or 1) if config.batch_size else None,
        seconds=span_s(run.steps),
        samples_per_s=per_s,
        speedup=per_s / base if per_s and base else None,
        iteration=iteration(run),
        bound_by=summary.verdict.bound_by,
        dataset_bytes=dataset.bytes if dataset else None,
        dataset_samples=dataset.records if dataset else None,
        memory_limit_bytes=limit.asked_bytes if limit else None,
        epochs=prediction.epochs if prediction else None,
        predicted_s=prediction.seconds if prediction else None,
        error_s=prediction.error_s if prediction else None,
        first_epoch_s=prediction.first_epoch_s if prediction else None,
        later_epoch_s=prediction.later_epoch_s if prediction else None,
        storage_bytes=prediction.storage_bytes if prediction else (),
        needed_bytes_per_s=sample_bytes * need.at_samples_per_s
        if sample_bytes and need.at_samples_per_s
        else None,
        fetched_bytes_per_s=need.bytes_per_s,
        needed_reads_per_s=need.reads_per_s,
        at_samples_per_s=need.at_samples_per_s,
        got_bytes_per_s=need.got_bytes_per_s,
        model=config.model,
    )
