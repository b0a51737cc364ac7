"""Hypothesis strategies for the analysis tests: sets of intervals, and whole jobs on a simulated
clock."""

import os
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import polars as pl
from hypothesis import strategies as st
from timeline import pid

from ioprof.analysis.intervals import Intervals
from ioprof.format.run_record import RunRecord
from ioprof.format.schema import SPAN_COLUMNS
from ioprof.format.trace import Trace, table_schema

_SHARE = float(os.environ.get("IOPROF_EXAMPLES", "0.25"))


def examples(number: int) -> int:
    """How many examples of a property to make of a number of them: two in five, or the share that
    IOPROF_EXAMPLES says."""
    return max(5, round(number * _SHARE))


HORIZON = 40
"""Upper limit of drawn intervals, so that a bitmap can represent them."""


def intervals(max_size: int = 12) -> st.SearchStrategy[Intervals]:
    """Intervals in any order: overlapping, touching, repeated, and empty ones."""
    instant = st.integers(0, HORIZON)
    pairs = st.lists(st.tuples(instant, instant).map(sorted), max_size=max_size)
    return pairs.map(lambda found: np.array(found, np.int64).reshape(-1, 2))


@dataclass
class Job:
    """A simulated job: workers that prefetch, ranks that wait, copy, compute and exchange
    gradients. All times in ns are drawn."""

    draw: Any
    ranks: int
    workers: int
    steps: int
    longest: int = 7
    """Maximum duration of a stage."""
    on_cpu: bool = False
    """Whether the main thread computes."""
    spans: list[dict[str, Any]] = field(default_factory=list)

    def took(self, least: int = 0) -> int:
        """The duration of the next stage."""
        return int(self.draw(st.integers(least, self.longest)))

    def span(self, kind: str, start: int, end: int, rank: int, process: int, **more: Any) -> int:
        """Record a span, and return its end."""
        self.spans.append(
            {
                "kind": kind,
                "start_ns": start,
                "end_ns": end,
                "rank": rank,
                "pid": process,
                "tid": process,
                **more,
            }
        )
        return end

    def run(self) -> None:
        """All steps of all ranks."""
        clock = [self.took() for _ in range(self.ranks)]
        free = {(rank, worker): 0 for rank in range(self.ranks) for worker in range(self.workers)}
        for step in range(self.steps):
            computed = [
                self._until_exchange(rank, step, clock[rank], free) for rank in range(self.ranks)
            ]
            together = max(ready for _, ready in computed) + self.took()
            for rank, (began, ready) in enumerate(computed):
                if self.ranks > 1:
                    for bucket, own in (("first", began + self.took()), ("last", ready)):
                        stream = {"tid": pid(rank) + 30_000, "stream": 2}
                        self.span(
                            "comm",
                            min(own, together),
                            together,
                            rank,
                            pid(rank),
                            step=step,
                            name=bucket,
                            **stream,
                        )
                clock[rank] = self.span(
                    "step", began, together + self.took(), rank, pid(rank), step=step, batch=step
                )
                clock[rank] += self.draw(st.integers(0, 2))

    def _until_exchange(
        self, rank: int, step: int, began: int, free: dict[tuple[int, int], int]
    ) -> tuple[int, int]:
        asked = began + self.took()
        ready = self._fetch(rank, step, asked, free)
        purpose = {"name": "validate"} if self.draw(st.integers(0, 9)) == 0 else {}
        got = self.span(
            "wait",
            asked,
            max(asked, ready) + self.took(),
            rank,
            pid(rank),
            batch=step,
            step=step,
            **purpose,
        )
        copied = self.span(
            "h2d",
            got,
            got + self.took(),
            rank,
            pid(rank),
            tid=pid(rank) + 20_000,
            stream=1,
            batch=step,
            step=step,
        )
        # may start before its data is available: a test of robustness
        start = max(began, copied - self.took())
        where = {} if self.on_cpu else {"tid": pid(rank) + 10_000, "stream": 0}
        end = self.span("compute", start, start + self.took(), rank, pid(rank), batch=step, **where)
        self._in_process(rank, began, end + self.took())
        return began, max(got, end - self.took())

    def _in_process(self, rank: int, start: int, end: int) -> None:
        """What the training process itself does in a step, in its main thread or in another,
        anywhere in that time."""
        for _ in range(self.draw(st.integers(0, 3))):
            kind = self.draw(
                st.sampled_from(
                    [
                        "read",
                        "fault",
                        "decode",
                        "transform",
                        "gc",
                        "sampler",
                        "user",
                        "checkpoint",
                        "validate",
                    ]
                )
            )
            source = (
                self.draw(st.sampled_from(["storage", "page_cache", "socket", "pipe"]))
                if kind == "read"
                else None
            )
            at = self.draw(st.integers(start, end))
            thread = {"tid": pid(rank) + 50_000} if self.draw(st.booleans()) else {}
            name = kind if kind in ("user", "checkpoint", "gc") else None
            self.span(
                kind, at, at + self.took(), rank, pid(rank), source=source, name=name, **thread
            )

    def _fetch(self, rank: int, batch: int, asked: int, free: dict[tuple[int, int], int]) -> int:
        worker = batch % self.workers if self.workers else None
        begin = asked if worker is None else free[rank, worker] + self.took()
        end = self._samples(rank, pid(rank, worker), batch, begin)
        if worker is not None:
            free[rank, worker] = end + self.took()
        return self.span("fetch", begin, end, rank, pid(rank, worker), batch=batch, step=batch)

    def _samples(self, rank: int, process: int, batch: int, at: int) -> int:
        for _ in range(self.draw(st.integers(0, 2))):
            for kind in ("open", "read", "decode", "transform"):
                source = (
                    self.draw(st.sampled_from(["storage", "page_cache", "unknown", None]))
                    if kind == "read"
                    else None
                )
                at = self.span(
                    kind,
                    at + self.draw(st.integers(0, 1)),
                    at + 1 + self.took(),
                    rank,
                    process,
                    source=source,
                )
        return self.span("collate", at, at + self.took(), rank, process, batch=batch)


@st.composite
def traces(draw: st.DrawFn, max_ranks: int = 2, max_workers: int = 2, max_steps: int = 4) -> Trace:
    """A job whose recording may lack spans, have duplicate or too long ones, or lose the spans of a
    killed worker after some time.

    Two workers may have the same batch.
    """
    job = Job(
        draw,
        *(
            draw(st.integers(least, most))
            for least, most in ((1, max_ranks), (0, max_workers), (1, max_steps))
        ),
    )
    job.on_cpu = draw(st.booleans())
    job.run()
    kept = _damaged(draw, job.spans)
    config = {
        "ranks": job.ranks,
        "workers": job.workers,
        "batch_size": 2,
        "device": "cpu" if job.on_cpu else "cuda",
        "loader": "files",
    }
    run = {"config": config, "status": "complete", "capture": {"reads": draw(st.booleans())}}
    return Trace(RunRecord.of(run), pl.DataFrame(kept, schema=table_schema(SPAN_COLUMNS)))


def _damaged(draw: st.DrawFn, spans: list[dict[str, Any]]) -> list[dict[str, Any]]:
    if draw(st.booleans()):
        return spans
    killed, moment = draw(st.sampled_from([pid(0, 0), pid(1, 1)])), draw(st.integers(0, 60))
    kept = [span for span in spans if span["pid"] != killed or span["end_ns"] <= moment]
    lost = draw(st.sets(st.integers(0, max(0, len(kept) - 1)), max_size=3))
    kept = [span for place, span in enumerate(kept) if place not in lost]
    if kept:
        torn = draw(st.sampled_from(kept))
        kept = [*kept, torn | {"end_ns": torn["end_ns"] + draw(st.integers(0, 9))}]
    claimed = [span for span in kept if span["kind"] == "fetch"]
    if claimed:
        again, later = draw(st.sampled_from(claimed)), draw(st.integers(0, 9))
        impostor = pid(again["rank"], draw(st.integers(0, 2)))
        kept = [
            *kept,
            again | {"pid": impostor, "tid": impostor, "end_ns": again["end_ns"] + later},
        ]
    return kept


@st.composite
def split(draw: st.DrawFn, trace: Trace) -> Trace:
    """The same trace with some spans split in two."""
    rows = []
    for row in trace.spans.iter_rows(named=True):
        cut = (
            draw(st.integers(row["start_ns"], row["end_ns"]))
            if draw(st.booleans())
            else row["end_ns"]
        )
        rows += [row | {"end_ns": cut}, row | {"start_ns": cut}] if cut < row["end_ns"] else [row]
    return Trace(trace.run, pl.DataFrame(rows, schema=table_schema(SPAN_COLUMNS)))


@st.composite
def shuffled(draw: st.DrawFn, trace: Trace) -> Trace:
    """The same trace with its rows in another order."""
    order = draw(st.permutations(range(len(trace.spans))))
    return Trace(trace.run, trace.spans[list(order)])


def shifted(trace: Trace, by_ns: int) -> Trace:
    """The same trace on a clock with another zero."""
    return Trace(trace.run, trace.spans.with_columns(pl.col("start_ns", "end_ns") + by_ns))
