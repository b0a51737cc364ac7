"""A discrete-event model of a training loop with loader workers, which knows the truth, and the
trace that it would leave.

Tasks go to the workers in turn; each has `prefetch` tasks at most that the loop has not received.
Batches are received in order. Without workers the loop fetches itself.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import polars as pl
from timeline import pid

from ioprof.format.run_record import RunRecord
from ioprof.format.schema import SPAN_COLUMNS
from ioprof.format.trace import Trace, table_schema


@dataclass(frozen=True)
class Pipeline:
    """All times in ns."""

    fetch: Sequence[int]
    """Of each batch."""
    consume: Sequence[int]
    """What the loop does with each."""
    workers: int = 1
    prefetch: int = 2
    deliver: int = 0
    """From the end of a fetch to the time at which the loop can have the batch."""
    slowdown: Sequence[float] = ()
    """Of each worker; none: they are equal."""

    def trace(self, stage: str = "decode") -> Trace:
        """Steps, waits, fetches with their work, and computations."""
        return self._run(stage)[0]

    def truth(self) -> list[dict[str, int]]:
        """What each step's time went to, in ns: the model itself adds it up while it runs, and
        knows nothing of spans."""
        return self._run("decode")[1]

    def _run(self, stage: str) -> tuple[Trace, list[dict[str, int]]]:
        spans: list[dict[str, object]] = []
        truth: list[dict[str, int]] = []
        busy: list[list[tuple[int, int]]] = [[] for _ in range(max(self.workers, 1))]

        def add(kind: str, start: int, end: int, process: int, number: int) -> None:
            common = {"kind": kind, "host": "node1", "rank": 0, "pid": process, "tid": process}
            spans.append(
                {**common, "start_ns": start, "end_ns": end, "batch": number, "step": number}
            )

        free, received, now = [0] * max(self.workers, 1), [0] * len(self.fetch), 0
        for number, took in enumerate(self.fetch):
            asked = now
            worker = number % self.workers if self.workers else None
            place = worker or 0
            ahead = number - self.workers * self.prefetch
            start = (
                asked if worker is None else max(free[place], received[ahead] if ahead >= 0 else 0)
            )
            end = start + int(took * (self.slowdown[place] if self.slowdown else 1.0))
            free[place] = end
            add("fetch", start, end, pid(0, worker), number)
            add(stage, start, end, pid(0, worker), number)
            received[number] = max(asked, end + (self.deliver if self.workers else 0))
            busy[place].append((start, end))
            until = min(end, received[number])
            decoded = sum(
                max(0, min(last, until) - max(first, asked)) for first, last in busy[place]
            )
            delivered = received[number] - max(asked, until)
            loader = received[number] - asked - decoded - delivered
            found = {
                "compute": self.consume[number],
                "decode": decoded,
                "delivery": delivered,
                "loader": loader,
            }
            truth.append({cause: took for cause, took in found.items() if took})
            now = received[number] + self.consume[number]
            add("wait", asked, received[number], pid(0), number)
            add("compute", received[number], now, pid(0), number)
            add("step", asked, now, pid(0), number)
        config = {
            "ranks": 1,
            "workers": self.workers,
            "batch_size": 4,
            "device": "cpu",
            "loader": "torch DataLoader",
        }
        record = RunRecord.of({"config": config, "status": "complete"})
        return Trace(record, pl.DataFrame(spans, schema=table_schema(SPAN_COLUMNS))), truth


def with_epochs(trace: Trace, every: int) -> Trace:
    """The same loop, which learns that its loader has no more batches after so many steps."""
    ends = trace.spans.filter(pl.col("kind") == "step", (pl.col("step") + 1) % every == 0)
    name = pl.lit("end").cast(trace.spans["name"].dtype)
    waits = ends.with_columns(
        kind=pl.lit("wait", dtype=trace.spans["kind"].dtype),
        name=name,
        start_ns=pl.col("end_ns") - 1,
        batch=None,
        step=None,
    )
    return Trace(
        trace.run, pl.concat([trace.spans, waits.select(trace.spans.columns)]), trace.files
    )
