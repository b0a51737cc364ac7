"""What a recording shows of a training: its epochs, the pace of each, and what is between them."""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import polars as pl

from ioprof.analysis.loaders import batches
from ioprof.analysis.ranks.variation import epochs
from ioprof.analysis.run import Run
from ioprof.analysis.student import quantile
from ioprof.errors import CommandError
from ioprof.format.trace import Trace

Seconds = npt.NDArray[np.float64]
_BLOCKS: Final = 8
"""Parts of an epoch whose means are compared, for the error of its mean."""
BETWEEN: Final = ("validation", "checkpoint")
"""Causes of a step's time that are counted by themselves."""


@dataclass(frozen=True)
class Epoch:
    """An epoch, or what was recorded of it."""

    steps: int
    is_complete: bool
    step_s: float
    """The steady time of a step."""
    error_s: float
    """95 % bound of the error of that mean, by its parts."""
    start_s: float
    """What it took besides `steps` x `step_s`: the first batches, and the end of a complete one."""
    storage_bytes: int
    """Read from storage, for whatever."""
    cold_bytes: int
    """Of reads for batches: from storage."""
    read_bytes: int
    """Whose source is known."""
    unknown_bytes: int
    """Whose source is not."""

    @property
    def seconds(self) -> float:
        """All of it, without validations and checkpoints."""
        return self.start_s + self.steps * self.step_s

    @property
    def storage_ratio(self) -> float | None:
        """Share of what is known that came from storage. None: nothing is known."""
        if self.unknown_bytes > self.read_bytes:
            return None
        return self.cold_bytes / self.read_bytes if self.read_bytes else 0.0


@dataclass(frozen=True)
class Events:
    """Validations, or checkpoints."""

    number: int
    seconds: float
    """Mean."""
    error_s: float
    """95 % bound of the error of the mean. One alone does not show how much they vary: as much as
    its steps."""


@dataclass(frozen=True)
class Cut:
    """A recording."""

    fixed_s: float
    """Before the first step and after the last."""
    epochs: tuple[Epoch, ...]
    samples_per_step: float | None
    """Of all ranks."""
    first_batch_s: float
    """From the first request for a batch until it was there, of the slowest rank."""
    keeps_workers: bool
    """Whether a later epoch starts none."""
    between: dict[str, Events]

    @property
    def complete(self) -> tuple[Epoch, ...]:
        """Those of which all was recorded."""
        return tuple(each for each in self.epochs if each.is_complete)

    @property
    def steps(self) -> int:
        """Of all."""
        return sum(each.steps for each in self.epochs)


def cut(run: Run, from_steps: int | None = None) -> Cut:
    """What a run shows; CommandError for one that shows no training from its start.

    `from_steps`: as if the run had made only its first so many steps.
    """
    trace, record = run.trace, run.trace.run
    times, table = record.times, run.steps
    if times is None or times.start_ns is None or times.end_ns is None or table.is_empty():
        raise CommandError(
            "the run has no steps, or not the times of its command; record the job from its start"
        )
    if record.whole_job is not None or record.config.first_step:
        raise CommandError(
            "the run has not the start of the training, which went on from a checkpoint or was kept"
            " in part; record one from its start"
        )
    of_step = table.group_by("step").agg(
        pl.col("start_ns").min(),
        pl.col("end_ns").max(),
        *(pl.col(f"{cause}_ns").fill_null(0).mean() for cause in BETWEEN),
    )
    of_step = of_step.sort("step")
    begin_ns, last_ns = _integer(of_step["start_ns"].min()), _integer(of_step["end_ns"].max())
    fixed_ns = times.end_ns - times.start_ns - (last_ns - begin_ns)
    ends = np.maximum.accumulate(of_step["end_ns"].to_numpy())
    events = {cause: of_step[f"{cause}_ns"].to_numpy() for cause in BETWEEN}
    own_s = (np.diff(ends, prepend=begin_ns) - sum(events.values())) / 1e9
    received = batches(trace)
    bounds = _bounds(trace, received, of_step["start_ns"].to_numpy())
    if from_steps is not None:
        own_s = own_s[:from_steps]
        events = {cause: each[:from_steps] for cause, each in events.items()}
        bounds = [each for each in bounds if each <= len(own_s)]
    workers = record.config.workers or 0
    ahead = workers * (record.config.prefetch or 2)
    found = []
    places = [*bounds, len(own_s)] if bounds[-1] < len(own_s) else bounds
    read = _read(trace, ends[np.array(places[1:], int) - 1])
    for number, (first, last) in enumerate(itertools.pairwise(places)):
        is_complete = last in bounds
        own = own_s[first:last]
        steady = _steady(own, ahead, workers, is_complete)
        step_s = float(steady.mean())
        start_s = float(own.sum()) - len(own) * step_s
        of_reads = read.get(number, (0, 0, 0, 0))
        means = [float(part.mean()) for part in np.array_split(steady, _BLOCKS) if len(part)]
        found.append(Epoch(len(own), is_complete, step_s, bound(means), start_s, *of_reads))
    training = received.filter(~pl.col("validates"))
    first_batch = training.group_by("rank").agg(
        (pl.col("end_ns") - pl.col("start_ns")).first().alias("took")
    )
    return Cut(
        fixed_s=fixed_ns / 1e9,
        epochs=tuple(found),
        samples_per_step=_samples(run, training, len(of_step)),
        first_batch_s=_integer(first_batch["took"].max()) / 1e9 if len(first_batch) else 0.0,
        keeps_workers=bool(record.config.persistent_workers) or not workers,
        between={cause: _events(each[each > 0] / 1e9, own_s) for cause, each in events.items()},
    )


def bound(values: Sequence[float] | Seconds) -> float:
    """95 % bound of the error of a mean of these; of one value, itself."""
    if len(values) < 2:
        return float(values[0]) if len(values) else 0.0
    spread = float(np.std(values, ddof=1)) / float(np.sqrt(len(values)))
    return spread * quantile(0.975, len(values) - 1)


def _bounds(trace: Trace, received: pl.DataFrame, starts: npt.NDArray[Any]) -> list[int]:
    """Where complete epochs end, as numbers of steps, from 0 on."""
    per_epoch = trace.run.config.steps_per_epoch
    if per_epoch:
        return list(range(0, len(starts) + 1, per_epoch))
    if received.is_empty():
        return [0]
    of_batch = epochs(trace, received)
    rank = of_batch["rank"].min()
    last = (
        of_batch.filter(pl.col("rank") == rank).group_by("epoch").agg(pl.col("end_ns").max())
    ).sort("epoch")
    # the step that takes the last batch of an epoch had begun, or begins with it
    places = np.searchsorted(starts, last["end_ns"].to_numpy(), side="right")
    name = pl.col("name").cast(pl.String)
    ended = trace.rows(name == "end", pl.col("rank") == rank, kinds=["wait"])["end_ns"]
    is_over = len(last) > 0 and bool((ended >= last["end_ns"][-1]).any())
    return sorted({0, *places[: len(places) if is_over else -1].tolist()})


def _steady(own: Seconds, ahead: int, workers: int, is_complete: bool) -> Seconds:
    """The steps between the first ones, for which as many batches were made as fill the queues, and
    the last ones of a complete epoch, beside which no more are made. In whole rounds of the
    workers, whose batches arrive together where the loop waits for them.
    """
    first = min(ahead + 1, len(own) // 2)
    last = len(own) - (min(ahead, len(own) // 4) if is_complete else 0)
    rounds = (last - first) // max(1, workers)
    if rounds > 1:
        first = last - rounds * max(1, workers)
    return own[first:last]


def _events(took_s: Seconds, own_s: Seconds) -> Events:
    if not len(took_s):
        return Events(0, 0.0, 0.0)
    vary = float(np.std(own_s) / max(float(np.mean(own_s)), 1e-12))
    mean_s = float(took_s.mean())
    error_s = bound(took_s) if len(took_s) > 1 else mean_s * min(1.0, vary)
    return Events(len(took_s), mean_s, error_s)


def _samples(run: Run, training: pl.DataFrame, steps: int) -> float | None:
    """Samples of a step of all ranks: those of a batch, as often as there are batches to a step."""
    config = run.trace.run.config
    ranks = config.replicas or 1
    of_batch = training["samples"].drop_nulls()
    size = float(of_batch.median() or 0) if len(of_batch) else 0.0  # type: ignore[arg-type]  # of integers
    if not size:
        return float(config.batch_size * ranks) if config.batch_size else None
    made = _integer(training.group_by("rank").len()["len"].max())
    return size * max(1, round(made / max(1, steps))) * ranks


def _read(trace: Trace, bounds: npt.NDArray[Any]) -> dict[int, tuple[int, int, int, int]]:
    """By epoch: the last four fields of `Epoch`."""
    is_storage = pl.col("source") == "storage"
    is_unknown = pl.col("source") == "unknown"
    of_batch = pl.col("batch").is_not_null()
    is_known = is_storage | (pl.col("source") == "page_cache")
    kinds = (is_storage, is_storage & of_batch, is_known & of_batch, is_unknown & of_batch)
    epoch = pl.sum_horizontal(pl.lit(0), *(pl.col("end_ns") > each for each in bounds.tolist()))
    sums = trace.summed(
        lambda part: (
            part.filter(pl.col("kind").is_in(["read", "fault"]))
            .group_by(epoch.cast(pl.String).alias("epoch"))
            .agg(
                pl.col("bytes").filter(each).sum().alias(f"kind{place}")
                for place, each in enumerate(kinds)
            )
        ),
        ["epoch"],
    )
    sums = sums.group_by("epoch").agg(pl.exclude("epoch").sum())
    found = dict[int, tuple[int, int, int, int]]()
    for number, *sizes in sums.iter_rows():
        storage, cold, known, unknown = (int(each or 0) for each in sizes)
        found[int(number)] = (storage, cold, known, unknown)
    return found


def _integer(value: Any) -> int:
    return int(value or 0)
