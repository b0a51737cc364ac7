"""Which lines of Python the time went to, from samples of stacks: time that no span explains, or
that a span names but does not place in the user's code.

A sample counts where its thread was what the step waited for at that instant: the rank's own thread
where the instant is charged to `host`, to a loss that is no module, to a checkpoint, to a copy from
or to pageable memory, to its sampler, or to what it decodes, transforms, collates or validates
outside of a wait; the thread of the worker or of the pool that made the awaited batch where a wait
is charged to one of these or to `loader`, or, of a pool whose tasks were not recorded, that worked
meanwhile (`wakers`); the thread of the rank's process that did the work where
time is charged to such threads, see `training_process`. So the samples of a cause are spread over
the time of that cause, and a line's part of them is its part of that time. Time of threads that
were not sampled has no line: what the rank's own thread did meanwhile is the line at which it
waited.
"""

from collections import Counter
from collections.abc import Iterator, Mapping
from math import sqrt
from typing import Final

import numpy as np
import polars as pl

from ioprof.analysis.answer.details import PAGEABLE, with_directions
from ioprof.analysis.charge.blame import Charges
from ioprof.analysis.charge.interpreter_lock import (
    FEWEST_WAITS,
    causes_with_waits,
    of_holders,
    of_threads,
)
from ioprof.analysis.charge.training_process import in_main_thread
from ioprof.analysis.cpu.callers import Callers
from ioprof.analysis.cpu.frames import place_of
from ioprof.analysis.graph.wakers import of_working_threads, with_blocked
from ioprof.analysis.intervals import Intervals, is_within, overlaps, subtract, total, union
from ioprof.analysis.loaders import POOLS
from ioprof.analysis.reads.lineage import fetchers
from ioprof.analysis.selection import COPIES, intervals, of_kind, of_work
from ioprof.format.run_record import CodeShare, PartCode
from ioprof.format.trace import Trace

OF_BATCHES: Final = ("loader", "transform", "decode", "collate")
"""Causes of making batches that code of the user's own may be behind."""
_WITH_WAITS: Final = (*OF_BATCHES, "validation")
"""Causes of which a part may be a wait for a worker."""
_OF_LOOP: Final = ("host", "checkpoint", "gc")
"""Causes of the rank's own thread alone."""
_COPIES: Final = "h2d"
"""Its thread waits for those copies that are from or to pageable memory."""
_COMPUTED: Final = "compute"
_WITH_LINES: Final = (PartCode.LOSS, PartCode.GRADIENTS, PartCode.INFERENCE)
"""Computations that the loop may not have to make, or not in every step. The lines of others are a
model's own, or an optimizer's."""
_CALLS_MODEL: Final = ("validation", _COMPUTED)
"""Causes that are less where a model is called less often."""
CAUSES: Final = (*_OF_LOOP, *_WITH_WAITS, _COPIES, _COMPUTED)
"""All causes that it may be behind."""
START: Final = "start"
"""What the rank's thread did before its first step; that is not a cause of
`ioprof.format.schema.CAUSES`, and no part of a step."""
OWN_WORK: Final = "<ioprof>/instrument/gpu.py:"
"""In a stack of a thread in which ioprof begins or ends to record a GPU: no line of the job."""
WORKERS: Final = "workers"
"""What workers did while they made batches, whether a step waited for it or not: no cause
either."""
MOST_LINES: Final = 25
"""Per cause."""
LEAST_START_S: Final = 1.0
"""A shorter time before the first step is not looked at."""

_OTHER: Final = "other"
"""The time of the ranks' own threads in which they computed what has no lines here: no cause, but
what tells the loop from what it calls."""
_SAMPLES: Final = {
    "cause": pl.String(),
    "stack": pl.Categorical(),
    "is_blocked": pl.Boolean(),
    "asks": pl.Boolean(),
    "of_other": pl.Boolean(),
    "by_threads": pl.Boolean(),
}
"""Stacks stay categories, since as text each sample is some 2 KB."""


def unexplained(trace: Trace, charges: Charges, found: pl.DataFrame) -> tuple[CodeShare, ...]:
    """The lines of Python behind the time of `CAUSES`, the greatest of each cause first, then those
    before the first step.

    `found` are the `ChargedSamples`. Empty where no stacks were sampled.
    """
    if trace.stacks.is_empty():
        return ()
    charged = charges.steps.filter(pl.col("host_ns").is_not_null())
    total_s = int((charged["end_ns"] - charged["start_ns"]).sum()) / 1e9
    shares: list[CodeShare] = []
    callers = Callers(found)
    for cause in CAUSES:
        seconds, threads_s = _seconds(charges, charged, cause)
        by_others, by_threads = (
            _shares(cause, found.filter(pl.col("by_threads") == are), part_s, total_s, callers)
            for are, part_s in ((False, seconds - threads_s), (True, threads_s))
        )
        shares += (
            sorted((*by_others, *by_threads), key=lambda share: -share.seconds)
            if by_threads
            else by_others
        )
    started, start_s = _start(trace)
    return (*shares, *(_shares(START, started, start_s, None) if start_s >= LEAST_START_S else ()))


def stacks_of_causes(charges: Charges, found: pl.DataFrame) -> pl.DataFrame:
    """The time of each of `CAUSES` by stack, columns `cause stack seconds`: of the samples of a
    cause each has the same part of its time. `found` are the `ChargedSamples`.
    """
    charged = charges.steps.filter(pl.col("host_ns").is_not_null())
    seconds = [
        (cause, by_threads, max(0.0, part))
        for cause in CAUSES
        for whole_s, threads_s in [_seconds(charges, charged, cause)]
        for by_threads, part in ((False, whole_s - threads_s), (True, threads_s))
    ]
    schema = {"cause": pl.String, "by_threads": pl.Boolean, "whole_s": pl.Float64}
    of_cause = pl.DataFrame(seconds, schema=schema, orient="row")
    counts = found.group_by("cause", "by_threads", "stack").len()
    totals = pl.col("len").sum().over("cause", "by_threads")
    timed = counts.join(of_cause, on=["cause", "by_threads"]).with_columns(
        seconds=pl.col("whole_s") * pl.col("len") / totals
    )
    return (
        timed.group_by("cause", pl.col("stack").cast(pl.String))
        .agg(pl.col("seconds").sum())
        .filter(pl.col("seconds") > 0)
        .sort("cause", "seconds", "stack", descending=[False, True, False])
    )


def _seconds(charges: Charges, charged: pl.DataFrame, cause: str) -> tuple[float, float]:
    """The time of a cause that its samples are of, and the part of it that is of threads."""
    seconds = int(charged[f"{cause}_ns"].sum()) / 1e9
    if cause == _COPIES:
        seconds = charges.details.named_ns(cause, PAGEABLE) / 1e9
    elif cause == _COMPUTED:
        seconds = charges.details.named_ns(cause, _WITH_LINES) / 1e9
    return seconds, min(seconds, charges.derived_ns.get(cause, 0) / 1e9)


def worker_lines(samples: pl.DataFrame, seconds: float) -> tuple[CodeShare, ...]:
    """The lines of Python behind the time in which workers made batches and were in no named stage,
    the greatest first.

    `samples` are those of that time, `seconds` is how long it was, of all workers. They have no
    `share`.
    """
    return tuple(_shares(WORKERS, samples.with_columns(cause=pl.lit(WORKERS)), seconds, None))


class ChargedSamples:
    """Samples of what steps waited for, piece by piece of the time that is charged to `CAUSES`."""

    def __init__(self, trace: Trace) -> None:
        self._trace, stacks = trace, with_blocked(trace.stacks, trace.blocks)
        loops = trace.rows(pl.col("rank").is_not_null(), kinds=["step"])["tid"].drop_nulls()
        self.of_threads = of_working_threads(
            of_threads(stacks), trace.blocks, loops.unique().to_list()
        )
        """The samples of all threads, those of blocked ones as those of who worked meanwhile."""
        self._holders = of_holders(stacks)
        self.causes = tuple(
            dict.fromkeys((*CAUSES, *(causes_with_waits(trace) if len(self._holders) else ())))
        )
        self._parts = [pl.DataFrame(schema=_SAMPLES)]
        self._of_rank: tuple[int | None, pl.DataFrame, pl.DataFrame] = (
            None,
            stacks.clear(),
            stacks.clear(),
        )
        """A rank, its samples in the order of time, and those of its own thread."""

    def add(
        self,
        rank: int,
        spans: pl.DataFrame,
        instants: Mapping[str, Intervals],
        by_threads: Mapping[str, Intervals],
    ) -> None:
        """Look at what is charged in a piece of a rank's time, of which these are the spans, and to
        threads of its process.
        """
        if self._of_rank[0] != rank:
            samples = self.of_threads.filter(pl.col("rank") == rank).sort("time_ns")
            own = samples.join(
                _loop_threads(self._trace, rank),
                on=["host", "pid", "tid"],
                how="semi",
                maintain_order="left",
            )
            self._of_rank = rank, samples, own
        _, samples, own = self._of_rank
        if samples.is_empty():
            return
        if len(self._holders):
            own = self._without_lock_waits(rank, own, instants)
        self._parts += [_within(own, instants[cause], cause) for cause in _OF_LOOP]
        if not len(spans):
            return
        copies = with_directions(of_kind(spans, *COPIES)).filter(
            pl.col("name").is_in([code.value for code in PAGEABLE])
        )
        if len(copies):
            self._parts.append(
                _within(own, overlaps(instants[_COPIES], union(intervals(copies))), _COPIES)
            )
        losses = of_kind(spans, "compute").filter(
            pl.col("name").cast(pl.String).is_in([code.value for code in _WITH_LINES])
        )
        at_losses = overlaps(instants[_COMPUTED], union(intervals(losses)))
        self._parts += [
            _within(own, at_losses, _COMPUTED),
            _within(own, subtract(instants[_COMPUTED], at_losses), _OTHER),
        ]
        mine = of_kind(spans, "wait", "sampler").filter(in_main_thread(spans))
        choosing = union(intervals(of_kind(mine, "sampler")))
        elsewhere = subtract(union(intervals(of_kind(mine, "wait"))), choosing)
        known = fetchers(spans)
        awaited = _awaited(samples, known)
        of_pools = of_kind(mine, "wait").filter(pl.col("name").cast(pl.String).is_in(POOLS))
        unknown = subtract(union(intervals(of_pools)), union(intervals(known)))
        for cause in _WITH_WAITS:
            others = subtract(instants[cause], by_threads[cause])
            working = own.filter("of_other")
            self._parts.append(_within(working, overlaps(others, unknown), cause))
            self._parts.append(_within(own, subtract(others, elsewhere), cause))
            self._parts.append(_within(awaited, overlaps(others, elsewhere), cause))
            if len(by_threads[cause]):
                self._parts += _at_work(samples, spans, cause, by_threads[cause])

    def _without_lock_waits(
        self, rank: int, own: pl.DataFrame, instants: Mapping[str, Intervals]
    ) -> pl.DataFrame:
        """The samples of a rank in which it did not wait for the interpreter's lock. The others are
        of `host`, and are those of the threads that held the lock.
        """
        at = ["host", "pid", "time_ns"]
        holders = (
            self._holders.filter(pl.col("rank") == rank)
            .join(own.select(at), on=at, how="semi")
            .sort("time_ns")
        )
        if len(holders) < FEWEST_WAITS:
            return own
        for cause in causes_with_waits(self._trace):
            self._parts.append(_within(holders, instants[cause], "host"))
        return own.join(holders.select(at), on=at, how="anti", maintain_order="left")

    def found(self) -> pl.DataFrame:
        """The `cause` and `stack` of each sample, whether its thread `is_blocked`, and whether
        the stack is that `of_other` one for which this waits.
        """
        return pl.concat(self._parts)


def _loop_threads(trace: Trace, rank: int) -> pl.DataFrame:
    """The threads whose steps those of the rank are."""
    return trace.rows(pl.col("rank") == rank, kinds=["step"]).select("host", "pid", "tid").unique()


def _awaited(samples: pl.DataFrame, waits: pl.DataFrame) -> pl.DataFrame:
    """The samples of workers at times at which the rank waited for them."""
    renamed = waits.rename({"pid": "of_pid"})
    joined = samples.join_asof(
        renamed, left_on="time_ns", right_on="start_ns", strategy="backward", check_sortedness=False
    )
    of_worker = (pl.col("pid") == pl.col("of_pid")) & (
        (pl.col("thread") == 0) | (pl.col("thread") == pl.col("tid"))
    )
    return joined.filter(pl.col("time_ns") < pl.col("end_ns"), of_worker)


def _at_work(
    samples: pl.DataFrame, spans: pl.DataFrame, cause: str, instants: Intervals
) -> Iterator[pl.DataFrame]:
    """The samples of each thread of the training process while it did work of this cause, at these
    instants.
    """
    work = of_work(spans.filter(~in_main_thread(spans)), cause)
    for (pid, tid), of_thread in work.partition_by("pid", "tid", as_dict=True).items():
        theirs = samples.filter(pl.col("pid") == pid, pl.col("tid") == tid)
        if len(theirs):
            yield _within(
                theirs, overlaps(instants, union(intervals(of_thread))), cause, by_threads=True
            )


def _within(
    samples: pl.DataFrame, instants: Intervals, cause: str, by_threads: bool = False
) -> pl.DataFrame:
    times = samples["time_ns"].to_numpy()
    kept = samples.filter(pl.Series(is_within(times, instants), dtype=pl.Boolean))
    named = kept.with_columns(cause=pl.lit(cause), by_threads=pl.lit(by_threads))
    return named.select(*_SAMPLES)


def _start(trace: Trace) -> tuple[pl.DataFrame, float]:
    """Samples of each rank's own thread from before its first step, without its imports, which have
    names of their own; and the time that they are of, summed over ranks.
    """
    parts, seconds = [pl.DataFrame(schema=_SAMPLES)], 0.0
    steps = trace.rows(pl.col("rank").is_not_null(), kinds=["step"])
    phases = trace.rows(kinds=["phase"])
    sampled = with_blocked(of_threads(trace.stacks), trace.blocks)
    for rank, first_ns in (
        steps.group_by("rank").agg(pl.col("start_ns").min()).sort("rank").iter_rows()
    ):
        threads = _loop_threads(trace, rank)
        samples = sampled.join(threads, on=["host", "pid", "tid"], how="semi").filter(
            pl.col("time_ns") < first_ns
        )
        if len(samples):
            whole = np.array([[int(samples["time_ns"].to_numpy().min()), first_ns]], np.int64)
            times = subtract(
                whole,
                intervals(
                    phases.join(threads, on=["host", "pid", "tid"], how="semi", nulls_equal=True)
                ),
            )
            seconds += total(times) / 1e9
            parts.append(_within(samples.sort("time_ns"), times, START))
    return pl.concat(parts), seconds


def _shares(
    cause: str,
    samples: pl.DataFrame,
    seconds: float,
    total_s: float | None,
    callers: Callers | None = None,
) -> list[CodeShare]:
    """Without `callers` the samples of the cause are all that is known of its threads."""
    counts = (
        samples.filter(pl.col("cause") == cause)
        .group_by("stack")
        .agg(
            pl.len(),
            blocked=pl.col("is_blocked").sum(),
            known=pl.col("is_blocked").count(),
            others=pl.col("of_other").sum(),
            asks=pl.col("asks").sum(),
        )
        .with_columns(pl.col("stack").cast(pl.String))
    )
    stacks = counts.sort("len", "stack", descending=[True, False])
    number = int(stacks["len"].sum())
    if not number or not seconds or total_s == 0:
        return []
    callers = callers or Callers(samples)
    lines: dict[tuple[str, int, str, bool], Counter[str | None]] = {}
    groups: dict[tuple[str, int, str, bool], Counter[str | None]] = {}
    blocked, known, others, asks = (Counter[tuple[str, int, str, bool]]() for _ in range(4))
    for stack, count, of_blocked, of_known, of_others, of_asks in stacks.iter_rows():
        if OWN_WORK in stack:
            continue
        place = place_of(stack, cause in _CALLS_MODEL)
        at = (place.file, place.line, place.function, place.is_own)
        lines.setdefault(at, Counter())[place.library] += count
        group = None if cause in _CALLS_MODEL else callers.group_of(cause, stack)
        groups.setdefault(at, Counter())[group] += count
        blocked[at] += of_blocked
        known[at] += of_known
        others[at] += of_others
        asks[at] += of_asks
    ordered = sorted(lines.items(), key=lambda entry: (-entry[1].total(), entry[0]))
    found = []
    for at, libraries in ordered[:MOST_LINES]:
        file, line, function, is_own = at
        part = libraries.total() / number
        share = None if total_s is None else part * seconds / total_s
        # The standard error of a proportion, which is not 0 where all samples agree.
        error = sqrt(part * (1 - part) / number + 0.25 / number**2) * seconds
        found.append(
            CodeShare(
                cause=cause,
                file=file,
                line=line,
                function=function,
                samples=libraries.total(),
                seconds=part * seconds,
                share=share,
                uncertainty_s=error,
                library=libraries.most_common(1)[0][0],
                group=groups[at].most_common(1)[0][0],
                is_own=is_own,
                waits=blocked[at] / known[at] if known[at] else None,
                others=others[at] / libraries.total(),
                asks=asks[at] / known[at] if known[at] else None,
            )
        )
    return found
