"""An independent simulator of a data loader that knows the truth, for the tests of the replay.

It shares no code and no method with `ioprof.model`: instead of events it has the recurrences of a
loader with in-order delivery, in whole nanoseconds. With task k of W workers and P batches ahead
per worker:

    sent(k)   = end of START for the first W x P tasks, else got(k - W x P)
    begun(k)  = max(sent(k), end of the worker's task before, ready of the worker) + lag(k)
    ready(k)  = begun(k) + work(k)
    got(k)    = max(asked(k), ready(k) + transit(k)) + take(k), where asked(k) = got(k - 1) + own(k
              - 1)

In a pool whoever is free first begins the next task, and the loop gives it so many at a time; of
less than all of them it waits for all before it takes the first:

    sent(k)   = the first time that one of the tasks given with it is asked for
    begun(k)  = max(sent(k), the time at which the first worker is free)
    got(k)    = max(asked(k), ready of k, or of all that were given with it)

Every thread has a core of its own, and reads do not disturb each other.
"""

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import polars as pl
from timeline import pid

from ioprof.format.run_record import RunRecord
from ioprof.format.schema import SPAN_COLUMNS
from ioprof.format.trace import Trace, table_schema

STAGES = ("storage", "page_cache", "decode", "transform", "collate", "loader")
_KIND = {
    "storage": "read",
    "page_cache": "read",
    "decode": "decode",
    "transform": "transform",
    "collate": "collate",
}


ALL = 10**9


@dataclass(frozen=True)
class Job:
    """What takes how long, in nanoseconds. Rows are batches."""

    workers: int
    prefetch: int
    stages: tuple[dict[str, int], ...]
    own: tuple[dict[str, int], ...]
    """What the loop does after each batch: cause to nanoseconds. `optimizer` is computation by the
    optimizer."""
    lag: int = 0
    transit: int = 0
    take: int = 0
    start: int = 0
    """What starting the workers takes the loop."""
    startup: int = 0
    """From the beginning of that, until a worker can begin a task."""
    end: int = 0
    batches_per_epoch: int = 10**9
    persistent: bool = False
    pool: int = 0
    """Tasks that are given to a pool at a time, or `ALL`. 0: it is a loader."""
    threads: bool = False
    """Whether the pool's workers are threads of the loop's process."""


@dataclass
class Result:
    """When everything happened."""

    spans: list[dict[str, Any]] = field(default_factory=list)
    got: list[int] = field(default_factory=list)
    end: int = 0

    @property
    def trace(self) -> Trace:
        """What ioprof would have recorded."""
        processes = {span["pid"] for span in self.spans}
        config = {
            "ranks": 1,
            "workers": len(processes) - 1,
            "batch_size": 8,
            "device": "cpu",
            "loader": "torch DataLoader",
        }
        record = {
            "config": config | {"prefetch": self.prefetch},
            "status": "complete",
            "capture": {"reads": True},
        }
        record["hosts"] = [{"name": "node1", "cpus": 64}]
        return Trace(
            RunRecord.of(record), pl.DataFrame(self.spans, schema=table_schema(SPAN_COLUMNS))
        )

    prefetch: int = 2


def simulate(job: Job) -> Result:
    """Run the job."""
    result = Result(prefetch=job.prefetch)
    now, first, epoch = 1_000, 0, 0
    while first < len(job.stages):
        count = min(job.batches_per_epoch, len(job.stages) - first)
        now = _Epoch(job, result, epoch, first, count).run(now)
        first, epoch = first + count, epoch + 1
    result.end = now
    return result


class _Epoch:
    def __init__(self, job: Job, result: Result, number: int, first: int, count: int) -> None:
        self._job, self._result, self._number, self._first, self._count = (
            job,
            result,
            number,
            first,
            count,
        )

    def run(self, now: int) -> int:
        job, main = self._job, pid(0)
        if job.pool:
            return self._run_pool(now)
        begins = bool(job.workers) and not (job.persistent and self._number)
        ready_at = now + job.startup
        if job.workers:
            took = job.start if begins else 0
            self._span("wait", now, now + took, main, name="start")
            now += took
        sent_first = now
        free = [ready_at if begins else 0] * max(1, job.workers)
        started = [not begins] * max(1, job.workers)
        sent: dict[int, int] = {}
        ready: dict[int, int] = {}
        got: list[int] = []
        made = 0
        ahead = job.workers * job.prefetch
        for place in range(self._count):
            asked = now
            while job.workers and made < min(self._count, place + ahead):
                sent[made] = sent_first if made < ahead else got[made - ahead]
                worker = made % job.workers
                begun = max(sent[made], free[worker]) + (job.lag if started[worker] else 0)
                started[worker] = True
                ready[made] = free[worker] = self._fetch(made, begun, self._process(worker))
                made += 1
            made_by_loop = self._fetch(place, asked, main) if not job.workers else 0
            now = max(asked, ready[place] + job.transit if job.workers else made_by_loop) + job.take
            got.append(now)
            self._span("wait", asked, now, main, batch=self._first + place)
            if place + ahead < self._count:
                self._span("sampler", now, now, main, batch=self._first + place + ahead)
            self._result.got.append(now)
            now = self._own(place, now)
        self._span("wait", now, now + job.end, main, name="end")
        return now + job.end

    def _run_pool(self, now: int) -> int:
        job, main = self._job, pid(0)
        free, ready = [0] * job.workers, list[int]()
        for place in range(self._count):
            asked = now
            if place == len(ready):
                for task in range(place, min(self._count, place + job.pool)):
                    worker = free.index(min(free))
                    began = max(now, free[worker])
                    free[worker] = self._fetch(task, began, main, pid(0, worker))
                    ready.append(free[worker])
                if job.pool < ALL:
                    now = max(ready[place:])
            now = max(now, ready[place])
            self._span("wait", asked, now, main, name="pool", batch=self._first + place)
            self._result.got.append(now)
            now = self._own(place, now)
        return now

    def _process(self, worker: int) -> int:
        return pid(0, worker if self._job.persistent else worker + self._number * self._job.workers)

    def _fetch(self, place: int, begun: int, process: int, worker: int = 0) -> int:
        now, thread = begun, worker or process
        process = process if self._job.threads else thread
        for stage, took in self._job.stages[self._first + place].items():
            if stage in _KIND and took:
                source = (
                    {"source": stage, "bytes": 1000, "file": 1} if _KIND[stage] == "read" else {}
                )
                self._span(
                    _KIND[stage],
                    now,
                    now + took,
                    process,
                    batch=self._first + place,
                    **source,
                    tid=thread,
                )
            now += took
        self._span("fetch", begun, now, process, batch=self._first + place, tid=thread)
        return now

    def _own(self, place: int, now: int) -> int:
        began = now
        for cause, took in self._job.own[self._first + place].items():
            if cause != "host" and took:
                kind, named = ("compute", {"name": cause}) if cause == "optimizer" else (cause, {})
                self._span(kind, now, now + took, pid(0), step=self._first + place, **named)
            now += took
        self._span("step", began, now, pid(0), step=self._first + place, batch=self._first + place)
        return now

    def _span(self, kind: str, start: int, end: int, process: int, **more: Any) -> None:
        self._result.spans.append(
            {
                "kind": kind,
                "start_ns": start,
                "end_ns": end,
                "host": "node1",
                "rank": 0,
                "pid": process,
                "tid": process,
                **more,
            }
        )


def seconds(times: list[int]) -> np.ndarray:
    """Nanoseconds as seconds."""
    return np.array(times) / 1e9
