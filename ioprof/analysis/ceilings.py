"""Two ceilings of a training loop: what the workers can make, and what the consumer can take.

Per step, over steady steps only (after the warm-up):

    supply      the time that workers fetch for the batches of a step, over the number of workers
    consumer    the step without its waits for batches, but with its sampler, which runs in the same
                thread; or what its device computes, if that is longer

The loop cannot be faster than the slower of the two; without workers it takes both, one after the
other. What remains is the residual: epochs that begin, workers that are slower than the mean,
batches that cannot be sent, batches on their way, and variation from batch to batch. No `fetch`
contains the time in which its worker waits for a place in a full queue.
"""

from dataclasses import dataclass, field
from typing import Final

import numpy as np
import polars as pl

from ioprof.analysis.charge.gpu_windows import observed
from ioprof.analysis.charge.steps import steps, warmup
from ioprof.analysis.charge.training_process import main_threads
from ioprof.analysis.graph.wakers import Wakers, wakers_by_rank
from ioprof.analysis.intervals import (
    Intervals,
    covered,
    overlaps,
    pack,
    subtract,
    total,
    union,
)
from ioprof.analysis.reads.lineage import kept_back
from ioprof.analysis.selection import COMPUTE, by_rank, intervals, kind_in, on_stream, with_worker
from ioprof.format.run_record import Ceilings, Residual
from ioprof.format.trace import Trace

IMBALANCE: Final = "imbalance of workers"
RESIDUALS: Final = ("epoch starts", IMBALANCE, "blocked sends", "delivery", "variation")
"""What the two ceilings do not explain, in the order in which it is named; the last is what
remains. `blocked sends`: batches that were made, and that a worker kept from being sent
(`lineage.kept_back`); blame charges these times to what it did."""
_KINDS: Final = (*COMPUTE, "step", "wait", "fetch", "sampler")


@dataclass
class _Sums:
    """Nanoseconds over all steady steps of all ranks."""

    steps: int = 0
    wall: int = 0
    supply: float = 0.0
    consumer: float = 0.0
    predicted: float = 0.0
    parts: dict[str, float] = field(default_factory=dict)
    workers: int = 0
    is_serial: bool = True


def ceilings(trace: Trace) -> Ceilings | None:
    """Means over the steady steps of all ranks; None where the work for the batches of no rank is
    known.
    """
    table = steps(trace)
    table = table.filter(pl.Series(observed(trace, table)))
    sums, wakers = _Sums(), wakers_by_rank(trace)
    for rank, spans in by_rank(trace, _KINDS, ("pid", "tid", "stream", "batch", "name")):
        own, known = table.filter(pl.col("rank") == rank), _without_own_batches(with_worker(spans))
        rounds = _whole_rounds(intervals(own[warmup(len(own)) :]), known)
        _add_rank(sums, rounds, known, wakers.get(rank))
    if not sums.steps:
        return None
    scale = 1e9 * sums.steps
    residual, parts = (sums.wall - sums.predicted) / scale, []
    left = max(residual, 0.0)
    for name in RESIDUALS[:-1]:
        seconds = min(left, sums.parts.get(name, 0.0) / scale)
        left -= seconds
        parts.append(Residual(name, seconds))
    parts.append(Residual(RESIDUALS[-1], left))
    return Ceilings(
        step_s=sums.wall / scale,
        supply_s=sums.supply / scale,
        consumer_s=sums.consumer / scale,
        workers=sums.workers,
        is_serial=sums.is_serial,
        predicted_s=sums.predicted / scale,
        residual_s=residual,
        residuals=tuple(part for part in parts if part.seconds > 0),
    )


def _without_own_batches(spans: pl.DataFrame) -> pl.DataFrame:
    """Without batches that the rank made itself where workers made others, and without those to
    validate on where others are for training: a validation is time of the loop.
    """
    is_wait = (pl.col("kind") == "wait") & pl.col("batch").is_not_null()
    validates = (pl.col("name").cast(pl.String) == "validate").fill_null(value=False)
    waits = spans.filter(is_wait)
    evaluated = waits.filter(validates)["batch"]
    if len(evaluated) < len(waits):
        made = spans.filter(pl.col("kind") == "fetch").join(waits.filter(~validates), on="batch")
        is_fetch, is_evaluated = pl.col("kind") == "fetch", is_wait & validates
        others = is_fetch & ~pl.col("worker").is_in(made["worker"].implode())
        spans = spans.filter(~others, ~is_evaluated)
    fetches = spans.filter(pl.col("kind") == "fetch", pl.col("batch").is_not_null())
    own = fetches.filter(pl.col("worker").is_in(main_threads(spans).implode()))
    if own.is_empty() or len(own) == len(fetches):
        return spans
    return spans.filter(
        ~kind_in(["fetch", "wait"])
        | ~pl.col("batch").is_in(own["batch"].implode()).fill_null(False)
    )


def _whole_rounds(windows: Intervals, spans: pl.DataFrame) -> Intervals:
    """The last steps, as many as are a multiple of the workers: workers of equal speed deliver at
    the same time, so the wait for them stands in one step of each round.
    """
    fetches = spans.filter(pl.col("kind") == "fetch", pl.col("batch").is_not_null())
    lives = fetches.filter(pl.Series(covered(_ends(fetches), union(windows)) > 0)).group_by(
        "worker"
    )
    by_worker = lives.agg(pl.col("start_ns").min(), pl.col("end_ns").max())
    workers = _most_at_once(intervals(by_worker)) if len(by_worker) else 1
    return windows[len(windows) % workers :] if len(windows) > 2 * workers else windows


def _add_rank(sums: _Sums, windows: Intervals, spans: pl.DataFrame, wakers: Wakers | None) -> None:
    steady, wall_ns = union(windows), total(windows)
    waits = spans.filter(pl.col("kind") == "wait")
    received = waits.filter(
        pl.Series(covered(_ends(waits), steady) > 0), pl.col("batch").is_not_null()
    )
    fetches = spans.filter(pl.col("kind") == "fetch", pl.col("batch").is_not_null())
    fetched = fetches.filter(pl.Series(covered(_ends(fetches), steady) > 0))
    loops = spans.filter(pl.col("kind") == "step").select("pid", "tid").unique()
    # a thread may take batches beside the loop
    of_loop = waits.join(loops, on=["pid", "tid"], how="semi", nulls_equal=True)
    if not wall_ns or received.is_empty() or fetched.is_empty() or of_loop.is_empty():
        return
    length = pl.col("end_ns") - pl.col("start_ns")
    by_worker = fetched.group_by("worker").agg(
        pl.col("start_ns").min(), pl.col("end_ns").max(), busy=length.sum()
    )
    workers, batches = _most_at_once(intervals(by_worker)), received["batch"].n_unique()
    per_batch = int(by_worker["busy"].sum()) / fetched["batch"].n_unique()
    is_serial = bool(by_worker["worker"].is_in(main_threads(spans).implode()).all())
    supply = batches * per_batch / workers
    on_device = intervals(spans.filter(kind_in(COMPUTE), on_stream))
    others = subtract(intervals(of_loop), intervals(spans.filter(pl.col("kind") == "sampler")))
    consumer = max(
        wall_ns - int(covered(windows, others).sum()), int(covered(windows, on_device).sum())
    )
    ready = waits.join(fetches.group_by("batch").agg(ready_ns=pl.col("end_ns").max()), on="batch")
    sent = pack(
        np.maximum(ready["start_ns"].to_numpy(), ready["ready_ns"].to_numpy()),
        ready["end_ns"].to_numpy(),
    )
    delivering = overlaps(union(sent), steady)
    blocking = overlaps(delivering, kept_back(spans, wakers))
    parts = {
        "epoch starts": _epoch_starts(waits, steady),
        IMBALANCE: _imbalance_ns(by_worker) * batches / fetched["batch"].n_unique(),
        "blocked sends": total(blocking),
        "delivery": total(subtract(delivering, blocking)),
    }
    sums.steps += len(windows)
    sums.wall += wall_ns
    sums.supply += supply
    sums.consumer += consumer
    sums.predicted += supply + consumer if is_serial else max(supply, consumer)
    sums.workers = max(sums.workers, 0 if is_serial else workers)
    sums.is_serial &= is_serial
    for name, took_ns in parts.items():
        sums.parts[name] = sums.parts.get(name, 0.0) + took_ns


def _most_at_once(lives: Intervals) -> int:
    """Workers that there were at the same time: those of another epoch are others."""
    starts, ends = np.sort(lives[:, 0]), np.sort(lives[:, 1])
    at_once = np.arange(1, len(starts) + 1) - np.searchsorted(ends, starts, side="right")
    return max(1, int(at_once.max()))  # a life may be empty


def _imbalance_ns(by_worker: pl.DataFrame) -> float:
    """How much longer the busiest worker fetched than the mean, summed over those that lived at the
    same time: each epoch may have workers of its own. `by_worker`: `start_ns` and `end_ns` of each
    worker's fetches, and `busy`, their time.
    """
    ordered = by_worker.sort("start_ns")
    before_ns = pl.col("end_ns").cum_max().shift()
    of_epoch = ordered.group_by((pl.col("start_ns") >= before_ns).fill_null(value=False).cum_sum())
    return float(of_epoch.agg(more=pl.col("busy").max() - pl.col("busy").mean())["more"].sum())


def _ends(spans: pl.DataFrame) -> Intervals:
    """The last nanosecond of each span; of one that takes no time, such as a wait at the start of a
    step, that nanosecond.
    """
    last = np.maximum(spans["end_ns"].to_numpy() - 1, spans["start_ns"].to_numpy())
    return pack(last, last + 1)


def _epoch_starts(waits: pl.DataFrame, steady: Intervals) -> int:
    """Waits for workers to start and for the end of a loader, and for the first batch after
    these.
    """
    name = pl.col("name").cast(pl.String)
    ordered = waits.sort("start_ns", "end_ns").with_columns(
        is_edge=name.is_in(["start", "end"]).fill_null(False)
    )
    first = ordered.filter(pl.col("is_edge") | pl.col("is_edge").shift().fill_null(False))
    return total(overlaps(union(intervals(first)), steady))
