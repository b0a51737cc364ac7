"""What a loop does with its loader: how often it iterates over it, how many of the workers make
batches, and which batches it throws away.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import polars as pl

from ioprof.analysis.loaders import generations
from ioprof.format.run_record import LoaderRecord
from ioprof.format.schema import BATCHES_OF_SERIES
from ioprof.format.trace import Trace

_LEAST_USE: Final = 0.02
"""Of the median time from a batch to the next one where a step ended meanwhile: in less nothing can
have been done with a batch, not even a part of a step that gathers gradients of several batches."""
_BATCHES_PER_WORKER: Final = 4
"""Batches for each worker, from which on one without any has nothing to make."""


_FEWEST_BATCHES: Final = 8
"""Batches that added nothing to a cache, and others, from which on it is known what it saves."""
_IN_ORDER: Final = ("SequentialSampler", "_InfiniteConstantSampler")
"""Samplers by which a worker makes the same samples in each epoch."""


@dataclass(frozen=True)
class Kept:
    """What the dataset keeps in its workers, such as samples that were decoded before."""

    name: str
    """The attribute, as `Images.decoded`."""
    entries: int
    """That all workers added, without those of their first batches."""
    samples: int
    """That the workers made in the same time."""
    reused: float
    """See `JobChange.reused`; if it was not measured, an upper bound: the share of the samples for
    which an entry was added."""
    is_measured: bool
    in_order: bool
    """Whether a worker makes the same samples in each epoch."""


@dataclass(frozen=True)
class LoaderUse:
    """Of the loaders to train from, of all ranks."""

    per_step: int = 1
    """What a loop takes for each step one by one, as samples of which it makes a batch."""
    passes: int = 0
    """Iterations over a loader with workers, or generations of processes that make batches, on the
    rank that began most."""
    makers: int = 0
    """Workers that made batches, on the rank on which fewest did."""
    batches: int = 0
    """Batches that ranks received."""
    discarded: int = 0
    """Those with which nothing was done."""
    samples: int | None = None
    """Samples in the discarded ones. None: not known."""
    waited_s: float = 0.0
    """Time for which ranks waited for these, summed over them."""
    before_first_step: bool = False
    """Whether all of these came before the first step."""
    kept: Kept | None = None
    made_at: str | None = None
    """See `made_anew`."""

    def idle_workers(self, workers: int | None) -> int:
        """Of so many workers of a rank, those that made no batch though there were enough."""
        is_known = workers and self.makers and self.batches >= _BATCHES_PER_WORKER * workers
        return max(0, workers - self.makers) if workers and is_known else 0


def discarded(trace: Trace, received: pl.DataFrame) -> pl.DataFrame:
    """The rows of `loaders.batches` with which nothing was done: batches to train on after which a
    rank asked the same loader for the next one at once, and ended no step meanwhile; but for those
    that a later step is of, as of a loop that takes one batch ahead, and for those that a model was
    called with together, as where a loop makes batches of samples.
    """
    return _discarded(trace, _with_steps(trace, received)).select(received.columns)


def _discarded(trace: Trace, found: pl.DataFrame) -> pl.DataFrame:
    is_used = (pl.col("ended_ns") <= pl.col("next_ns")).fill_null(value=False)
    gap = pl.col("next_ns") - pl.col("end_ns")
    usual = found.filter(is_used).select(gap.median()).item()
    if usual is None:
        return found.clear()
    lost = found.filter(~is_used, gap < _LEAST_USE * usual)
    used = trace.rows(pl.col("step").is_not_null(), kinds=["step"]).select("rank", "batch")
    together = _taken_together(found, trace.run.config.trained_samples)
    for kept in (used.drop_nulls(), together.select("rank", "batch")):
        lost = lost.join(kept, on=["rank", "batch"], how="anti", maintain_order="left")
    return lost


def _with_steps(trace: Trace, received: pl.DataFrame) -> pl.DataFrame:
    """The batches to train on in order, with `next_ns`, when the next one of the same loader was
    asked for, and `ended_ns`, the end of the step that was the first to end after they came.
    """
    steps = trace.rows(pl.col("rank").is_not_null(), pl.col("step").is_not_null(), kinds=["step"])
    ends = steps.group_by("rank", "step").agg(ended_ns=pl.col("end_ns").max())
    training = received.filter(~pl.col("validates"), ~pl.col("of_pool")).sort("end_ns")
    of_loader = "rank", "loader", pl.col("batch") // BATCHES_OF_SERIES
    training = training.with_columns(
        next_ns=pl.col("start_ns").shift(-1).over(*of_loader, order_by="end_ns")
    )
    return training.join_asof(
        ends.select("rank", "ended_ns").sort("ended_ns"),
        left_on="end_ns",
        right_on="ended_ns",
        by="rank",
        strategy="forward",
        check_sortedness=False,
    )


def _taken_together(found: pl.DataFrame, trained_samples: int | None) -> pl.DataFrame:
    """Of the rows of `_with_steps` the last ones before the end of each step: as many as hold what
    a model was called with. One that does not say how many samples it holds holds one.
    """
    of_step, size = ("rank", "ended_ns"), pl.col("samples").fill_null(1)
    later = size.cum_sum(reverse=True).over(*of_step, order_by="end_ns") - size
    return found.filter(later < (trained_samples or 0))


def _per_step(found: pl.DataFrame, trained_samples: int | None) -> int:
    together = _taken_together(found, trained_samples)
    counts = together.drop_nulls("ended_ns").group_by("rank", "ended_ns").len()["len"]
    return int(counts.median() or 1)  # type: ignore[arg-type]


def loader_use(
    trace: Trace, received: pl.DataFrame, workers: int | None, started: int = 0
) -> LoaderUse:
    """What the spans say. `received`: the rows of `loaders.batches`; `workers`: of each rank;
    `started`: see `Starts.generations`.
    """
    training = received.filter(~pl.col("validates"))
    if training.is_empty():
        return LoaderUse(passes=started)
    found = _with_steps(trace, received)
    lost = _discarded(trace, found).select(received.columns)
    name = pl.col("name").cast(pl.String)
    starts = trace.rows(name == "start", pl.col("rank").is_not_null(), kinds=["wait"])
    per_rank = [started, *starts.group_by("rank").len()["len"]]
    makers, kept = 0, None
    if workers:
        fetches = trace.rows(
            pl.col("rank").is_not_null(), pl.col("batch").is_not_null(), kinds=["fetch"]
        )
        made = fetches.join(training.select("rank", "batch", "of_pool"), on=["rank", "batch"])
        per_rank += _generations(made.filter("of_pool"), trace)
        counts = made.group_by("rank").agg(pl.col("pid").n_unique())["pid"].to_list()
        makers = min(counts, default=0)
        kept = _kept(trace, set(made["pid"].unique().to_list()))
    first_ns = trace.rows(pl.col("step").is_not_null(), kinds=["step"])["end_ns"].min()
    samples = lost["samples"]
    return LoaderUse(
        per_step=_per_step(found, trace.run.config.trained_samples),
        passes=max(per_rank, default=0),
        makers=makers,
        batches=len(training),
        discarded=len(lost),
        samples=int(samples.sum()) if len(lost) and not samples.null_count() else None,
        waited_s=float((lost["end_ns"] - lost["start_ns"]).sum()) / 1e9,
        before_first_step=len(lost) > 0 and bool((lost["end_ns"] < first_ns).all()),
        kept=kept,
        made_at=made_anew(trace.run.loaders, max(per_rank, default=0)),
    )


def _generations(made: pl.DataFrame, trace: Trace) -> list[int]:
    """Of each rank, those of the processes that made these batches."""
    steps = trace.rows(pl.col("step").is_not_null(), kinds=["step"])
    workers = made.join(steps, on=["rank", "pid"], how="anti").group_by("rank", "pid")
    times = workers.agg(pl.col("start_ns").min(), pl.col("end_ns").max())
    return [
        1 + int(generations(part["start_ns"].to_numpy(), part["end_ns"].to_numpy()).max())
        for part in times.partition_by("rank")
    ]


def made_anew(loaders: Sequence[LoaderRecord], passes: int) -> str | None:
    """The line that makes the loader to train from anew for each of so many passes over the data,
    so that its workers end with each; None: it does not, or the line is not known.
    """
    trained = [each for each in loaders if each.is_trained_from]
    if len(trained) < 2 or len({each.path for each in trained}) > 1:
        return None
    has_more = any(each.number is None for each in trained)
    return trained[0].made_at if has_more or len(trained) >= passes else None


def _kept(trace: Trace, workers: set[int]) -> Kept | None:
    """What the dataset kept in these workers; None: nothing, or a cache that drops it again."""
    found = [
        each.kept_data
        for each in trace.run.processes
        if each.kept_data is not None and each.role == "worker" and each.pid in workers
    ]
    if not found or any(each.is_full for each in found):
        return None
    samplers = {each.sampler for each in trace.run.loaders if each.is_trained_from}
    entries, samples = sum(each.entries for each in found), sum(each.samples for each in found)
    new, repeated = sum(each.new for each in found), sum(each.repeated for each in found)
    reused, is_measured = min(1.0, entries / max(samples, 1)), min(new, repeated) >= _FEWEST_BATCHES
    if is_measured:
        new_ns, repeated_ns = (
            sum(each.new_ns for each in found), sum(each.repeated_ns for each in found)
        )  # fmt: skip
        saved_ns = max(0.0, new_ns - new * repeated_ns / repeated)
        reused = saved_ns / max(new_ns + repeated_ns, 1)
    most = max(found, key=lambda each: each.entries)
    return Kept(most.name, entries, samples, reused, is_measured, samplers <= {*_IN_ORDER})
