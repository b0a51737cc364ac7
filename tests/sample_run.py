"""A synthetic run: workers that read, decode and collate ahead of a training loop with one slow
disk.

All values come from a seeded generator. `sample_run()` returns a consistent trace, table of blame
and summary. The blame is computed by the simulation, so that reports can be tested without the
analysis.
"""

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import polars as pl

from ioprof.format.run_record import (
    Capture,
    CauseShare,
    Clocks,
    Demand,
    Finding,
    Overlap,
    RankTime,
    RunRecord,
    RunSummary,
    SlowRead,
    Steps,
    Storage,
    Summary,
    Throughput,
    Verdict,
)
from ioprof.format.schema import CAUSES, FILE_COLUMNS, SPAN_COLUMNS
from ioprof.format.trace import Trace, table_schema

MS = 1_000_000
BASIS = {
    "compute": "emulated",
    "exchange": "emulated",
    "straggler": "emulated",
    "h2d": "emulated",
    "loader": "derived",
    "host": "derived",
}


@dataclass
class Simulation:
    """The simulated job and its spans."""

    ranks: int = 2
    steps: int = 60
    workers: int = 3
    images: int = 24
    seed: int = 7
    compute_ms: float = 26.1
    stall_step: int = 37
    file_name: str = "train/n{wnid:08d}/n{wnid:08d}_{number}.JPEG"
    spans: list[dict[str, Any]] = field(default_factory=list)
    files: list[dict[str, Any]] = field(default_factory=list)
    steps_table: list[dict[str, Any]] = field(default_factory=list)
    _free: dict[tuple[int, int], int] = field(default_factory=dict)

    def run(self) -> None:
        """Simulate every rank; ranks synchronise in the exchange of each step, and a worker is at
        most two batches ahead."""
        random = np.random.default_rng(self.seed)
        clock = np.full(self.ranks, 5 * MS, dtype=np.int64)
        began: list[np.ndarray] = []
        for step in range(self.steps):
            ahead = step - 2 * self.workers
            earliest = began[ahead] if ahead >= 0 else np.zeros(self.ranks, dtype=np.int64)
            ready = [
                self._fetch(rank, step, int(earliest[rank]), random) for rank in range(self.ranks)
            ]
            began.append(clock.copy())
            arrived = [
                self._step_until_exchange(rank, step, int(clock[rank]), ready[rank])
                for rank in range(self.ranks)
            ]
            end = max(at for at, _ in arrived) + (3 * MS if self.ranks > 1 else 0)
            for rank, (at, charges) in enumerate(arrived):
                self._finish_step(rank, step, int(clock[rank]), at, end, charges)
            clock[:] = end + MS

    def _span(self, kind: str, start: float, end: float, rank: int, pid: int, **more: Any) -> None:
        self.spans.append(
            {
                "kind": kind,
                "start_ns": int(start),
                "end_ns": int(end),
                "rank": rank,
                "pid": pid,
                "host": "node1",
                "tid": pid,
                **more,
            }
        )

    def _fetch(
        self, rank: int, batch: int, earliest: int, random: np.random.Generator
    ) -> tuple[int, list[tuple[str, int, int]]]:
        worker, pid = batch % self.workers, 1000 + 100 * rank + batch % self.workers + 1
        key = (rank, worker)
        begin = at = max(self._free.get(key, 0), earliest) + MS
        leaves: list[tuple[str, int, int]] = []
        for image in range(self.images):
            at = self._image(rank, batch, image, pid, at, leaves, random)
        leaves.append(("collate", at, at + 2 * MS))
        self._span("collate", at, at + 2 * MS, rank, pid, batch=batch)
        self._span("fetch", begin, at + 2 * MS + 100_000, rank, pid, batch=batch, step=batch)
        self._free[key] = at + 2 * MS + 200_000
        return self._free[key], leaves

    def _image(
        self,
        rank: int,
        batch: int,
        image: int,
        pid: int,
        at: int,
        leaves: list[Any],
        random: np.random.Generator,
    ) -> int:
        file = len(self.files)
        size = int(random.lognormal(11.5, 0.4))
        path = self.file_name.format(wnid=1440764 + batch, number=file)
        self.files.append(
            {
                "file": file,
                "path": f"/scratch/imagenet/{path}",
                "size_bytes": size,
                "file_system": "lustre",
            }
        )
        cached = random.random() < 0.35
        slow = 400 * MS if (batch, image) == (self.stall_step, 5) and rank == self.ranks - 1 else 0
        took = int(random.lognormal(11.0 if cached else 15.0, 0.5)) + slow
        source = "page_cache" if cached else "unknown" if random.random() < 0.05 else "storage"
        where = {"file": file, "batch": batch, "step": batch}
        self._span("open", at, at + 30_000, rank, pid, **where)
        self._span(
            "read",
            at + 30_000,
            at + 30_000 + took,
            rank,
            pid,
            bytes=size,
            offset=0,
            source=source,
            **where,
        )
        leaves.append(("page_cache" if cached else "storage", at, at + 30_000 + took))
        at += 30_000 + took
        decode, transform = int(random.lognormal(14.2, 0.3)), int(random.lognormal(13.2, 0.3))
        self._span("decode", at, at + decode, rank, pid, **where)
        self._span("transform", at + decode, at + decode + transform, rank, pid, batch=batch)
        leaves += [("decode", at, at + decode), ("transform", at + decode, at + decode + transform)]
        return at + decode + transform

    def _step_until_exchange(
        self, rank: int, step: int, start: int, ready: tuple[int, list[Any]]
    ) -> tuple[int, dict[str, int]]:
        pid, (available, leaves) = 1000 + 100 * rank, ready
        charges = dict.fromkeys(CAUSES, 0)
        end = max(start + 50_000, available + 300_000)
        self._span("wait", start, end, rank, pid, batch=step, step=step)
        if end > available > start:
            self._span("deliver", available, end, rank, pid, batch=step, step=step)
            charges["delivery"] = end - available
        for cause, low, high in leaves:
            charges[cause] += max(0, min(high, end - charges["delivery"]) - max(low, start))
        charges["loader"] = end - start - sum(charges.values())
        copied = end + 4 * MS
        self._span(
            "h2d",
            end,
            copied,
            rank,
            pid,
            stream=1,
            batch=step,
            step=step,
            bytes=self.images * 150_528,
        )
        computed = copied + int(self.compute_ms * MS)
        self._span("compute", copied, computed, rank, pid, stream=0, batch=step, step=step)
        charges["h2d"], charges["compute"] = 4 * MS, computed - copied
        return computed, charges

    def _finish_step(
        self, rank: int, step: int, start: int, at: int, end: int, charges: dict[str, int]
    ) -> None:
        pid = 1000 + 100 * rank
        if self.ranks > 1:
            self._span("comm", at, end, rank, pid, stream=2, step=step)
            charges["exchange"], charges["straggler"] = 3 * MS, end - at - 3 * MS
        self._span("step", start, end + MS, rank, pid, step=step)
        charges["host"] = end + MS - start - sum(charges.values())
        row: dict[str, Any] = {f"{cause}_ns": charges[cause] for cause in CAUSES}
        if self.ranks == 1:
            row["exchange_ns"] = None
        self.steps_table.append(
            {"rank": rank, "step": step, "start_ns": start, "end_ns": end + MS, **row}
        )


@dataclass(frozen=True)
class SampleRun:
    """The parts of a sample run."""

    trace: Trace
    steps: pl.DataFrame
    summary: Summary


def sample_run(run: dict[str, Any] | None = None, **simulation: Any) -> SampleRun:
    """A run of the simulated job; `run` overrides facts of the run, the rest goes to
    `Simulation`."""
    job = Simulation(**simulation)
    job.run()
    facts = _facts(job) | (run or {})
    trace = trace_of(_recorded(facts), job.spans, job.files)
    steps = steps_frame(job.steps_table)
    setting = RunSummary.of({key: value for key, value in facts.items() if key != "processes"})
    return SampleRun(trace, steps, summary_of(setting, trace, steps, job.images))


def trace_of(
    facts: dict[str, Any], spans: list[dict[str, Any]], files: list[dict[str, Any]]
) -> Trace:
    """A trace of spans and files given as rows; missing values are null."""
    return Trace(
        RunRecord.of(facts),
        pl.DataFrame(spans, schema=table_schema(SPAN_COLUMNS)),
        pl.DataFrame(files, schema=table_schema(FILE_COLUMNS)),
    )


def steps_frame(rows: list[dict[str, Any]]) -> pl.DataFrame:
    """The table of blame from rows."""
    schema = {"rank": pl.Int32, "step": pl.Int64, "start_ns": pl.Int64, "end_ns": pl.Int64} | {
        f"{cause}_ns": pl.Int64 for cause in CAUSES
    }
    return pl.DataFrame(rows, schema=schema)


def _facts(job: Simulation) -> dict[str, Any]:
    processes = [
        {"pid": 1000 + 100 * rank, "rank": rank, "role": "rank", "worker": None, "host": "node1"}
        for rank in range(job.ranks)
    ]
    processes += [
        {
            "pid": 1000 + 100 * rank + worker + 1,
            "rank": rank,
            "role": "worker",
            "worker": worker,
            "host": "node1",
        }
        for rank in range(job.ranks)
        for worker in range(job.workers)
    ]
    return {
        "name": "resnet50-files-cold",
        "command": "ioprof run --device emulated:a100",
        "status": "complete",
        "device": "emulated:a100",
        "device_basis": "emulated",
        "loader": "files",
        "dataset": {"name": "imagenet-1k", "layout": "files", "image": {"transform": "original"}},
        "ranks": job.ranks,
        "workers": job.workers,
        "batch_size": job.images,
        "started": "2026-02-11T09:12:44Z",
        "failures": [],
        "processes": processes,
    }


def _recorded(facts: dict[str, Any]) -> dict[str, Any]:
    """The facts as in run.json."""
    emulated = facts["device_basis"] == "emulated"
    return {
        **{
            key: facts[key]
            for key in ("name", "command", "status", "started", "failures", "processes", "dataset")
        },
        "config": {
            key: facts[key] for key in ("loader", "device", "ranks", "batch_size", "workers")
        },
        "device": (
            {"name": "a100", "basis": "emulated", "samples_per_s": 919.5}
            if emulated
            else {"name": facts["device"]}
        ),
        "clocks": {"method": "one host, one monotonic clock", "uncertainty_ns": 0},
        "capture": {"native": True, "reads": True, "ns_per_span": 212.0},
    }


def summary_of(setting: RunSummary, trace: Trace, steps: pl.DataFrame, images: int) -> Summary:
    """A summary whose numbers follow from the tables."""
    return Summary(
        run=setting,
        throughput=_throughput(steps, images),
        steps=steps_summary(steps),
        overlap={
            "h2d": Overlap(0.48, 0.45, 0.9375, "emulated"),
            "storage": Overlap(9.1, 3.9, 0.4286, "measured"),
            "decode": Overlap(6.2, 3.1, 0.5, "measured"),
            "communication": Overlap(
                None, None, None, "unknown", "the exchange here never overlaps compute"
            ),
        },
        storage=_storage(trace),
        demand=Demand(223_400_000.0, 1839.0, 1839.0, "emulated"),
        capture=Capture(
            len(trace.spans),
            0,
            0.99987,
            212.0,
            0.0021,
            (
                "GPU kernels: the device was emulated.",
                "Reads by mmap: page faults were not recorded.",
            ),
        ),
        clocks=Clocks("one host, one monotonic clock", 120),
        verdict=Verdict(
            "storage",
            "Storage-bound: the accelerators were idle for 46.1% of the time, most of it for reads"
            " from storage.",
            (
                Finding(
                    "other",
                    "Stage the dataset to node-local storage; a copy on the node's own disk is read"
                    " in the first epoch only",
                ),
                Finding("other", "Use 8 workers", gain=1.31, error=0.04),
            ),
        ),
    )


def steps_summary(steps: pl.DataFrame) -> Steps:
    """The part of the summary that follows from the table of blame alone."""
    walls = (steps["end_ns"] - steps["start_ns"]) / 1e9
    sums = {cause: steps[f"{cause}_ns"].drop_nulls() for cause in CAUSES}
    total = sum(int(column.sum()) for column in sums.values())
    causes = tuple(_cause(cause, column, total) for cause, column in sums.items())
    per_rank = tuple(
        _rank_time(rank, group)
        for (rank,), group in steps.sort("rank").group_by("rank", maintain_order=True)
    )
    longest = max((entry.steps for entry in per_rank), default=0)
    quantile = (lambda q: walls.quantile(q, "nearest")) if len(walls) else (lambda q: None)
    return Steps(
        longest, min(3, longest), walls.mean(), quantile(0.5), quantile(0.95), causes, per_rank
    )


def _rank_time(rank: int, group: pl.DataFrame) -> RankTime:
    columns = (group[f"{cause}_ns"] for cause in CAUSES)
    seconds = (None if column.is_null().all() else float(column.sum()) / 1e9 for column in columns)
    return RankTime(
        rank, len(group), float((group["end_ns"] - group["start_ns"]).sum()) / 1e9, *seconds
    )


def _cause(cause: str, column: pl.Series, total: int) -> CauseShare:
    if not len(column):
        return CauseShare(
            cause,
            None,
            None,
            "unknown",
            "one rank: nothing to exchange" if cause == "exchange" else "no step",
        )
    return CauseShare(
        cause,
        int(column.sum()) / 1e9,
        int(column.sum()) / total if total else 0.0,
        BASIS.get(cause, "measured"),
    )


def _throughput(steps: pl.DataFrame, images: int) -> Throughput:
    if not len(steps):
        return Throughput(None, None, None, "unknown")
    steady = steps.filter(pl.col("step") >= 3)
    rate = [
        (
            len(table) * images / ((table["end_ns"].max() - table["start_ns"].min()) / 1e9)
            if len(table)
            else None
        )
        for table in (steps, steady)
    ]
    return Throughput(rate[0], rate[1], 919.5 * steps["rank"].n_unique(), "emulated")


def _storage(trace: Trace) -> Storage:
    reads = trace.spans.filter(pl.col("kind") == "read").with_columns(
        took=(pl.col("end_ns") - pl.col("start_ns")) / 1e9
    )
    if not len(reads):
        return Storage(0, 0, 0, 0, 0, None, None, None, ())
    source = {
        name: int(reads.filter(pl.col("source") == name)["bytes"].sum())
        for name in ("storage", "page_cache", "unknown")
    }
    slowest = (
        reads.sort("took", descending=True)
        .head(10)
        .join(trace.files.select("file", "path"), on="file", how="left")
    )
    columns = ["path", "took", "bytes", "source", "rank", "step", "batch", "offset", "start_ns"]
    rows = tuple(SlowRead(*row) for row in slowest.select(columns).rows())
    tails = [reads["took"].quantile(q, "nearest") for q in (0.5, 0.95, 0.99)]
    return Storage(
        len(reads),
        int(reads["bytes"].sum()),
        source["storage"],
        source["page_cache"],
        source["unknown"],
        tails[0],
        tails[1],
        tails[2],
        rows,
    )
