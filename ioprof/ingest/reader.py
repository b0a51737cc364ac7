"""Reads a spool folder: the spans of all processes on one clock, with one set of file ids.

A capture file may be truncated (killed process, full disk, interrupted copy) or may not be a
capture file at all. Valid data is kept; invalid data is counted in `CaptureRecord.damaged`. Nothing
raises.
"""

import threading
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from itertools import chain, islice
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import polars as pl

from ioprof.errors import CaptureError
from ioprof.format.run_record import CommandTimes, RunRecord, merge
from ioprof.format.schema import SPAN_COLUMNS
from ioprof.format.trace import Trace, empty_table, table_schema
from ioprof.ingest.attempts import attempt_records, attempts_of
from ioprof.ingest.chunks import Buffers
from ioprof.ingest.clocks.clock_alignment import ClockAlignment, best_anchors
from ioprof.ingest.clocks.clock_messages import read_clock_messages
from ioprof.ingest.clocks.clock_offset import Clock
from ioprof.ingest.collectives.spans import add_collectives
from ioprof.ingest.failures import Ends, failures_of
from ioprof.ingest.job_window import JobWindow, in_window, without_begun_steps
from ioprof.ingest.joining import (
    FetchIndex,
    HelperIndex,
    Helpers,
    assign_batches,
    join_faults,
)
from ioprof.ingest.kineto import add_windows
from ioprof.ingest.numbering import Numbering
from ioprof.ingest.process_cpus import with_cpus
from ioprof.ingest.rings import (
    Capture,
    Process,
    dense_places,
    dense_spans,
    hold,
    open_capture,
    processes_of,
    reads_without_batch,
    storage_reads,
    survey,
)
from ioprof.ingest.sidecar_files import (
    SidecarData,
    read_job_facts,
    read_restarts,
    read_sidecar_files,
)
from ioprof.ingest.wakers import blocks_of

_NOTHING_KNOWN: Final = RunRecord()
_THREADS: Final = 2
_BLOCKS_AHEAD: Final = 3
"""Blocks that are read while others are looked at."""


def read_spool(folder: Path, run: RunRecord = _NOTHING_KNOWN) -> Trace:
    """Read the spool folder of a job into a Trace. `run` holds known facts of the run; they are
    copied into `Trace.run`.

    Adds `processes`; to `clocks` `zero_monotonic_ns`, the `anchors` and, if several hosts shared
    the folder, the clock offset estimates (`ties`); to `capture` `damaged`, `unseen_processes`, and
    the facts of page faults, GPU windows and samples. Raises `CaptureError` if there is no such
    folder.
    """
    return Spool(folder, run).trace()


class Spool:
    """A spool folder of which all is read but the dense spans, which `blocks` reads. Raises
    `CaptureError` if there is none.
    """

    def __init__(self, folder: Path, run: RunRecord = _NOTHING_KNOWN) -> None:
        if not folder.is_dir():
            raise CaptureError(
                f"{folder}: no such spool folder; it is made by: ioprof record -- COMMAND"
            )
        self._numbering = Numbering()
        captures = [open_capture(path) for path in sorted(folder.glob("*.ring"))]
        self._processes = processes_of(captures)
        whole = [capture for process in self._processes for capture in process.captures]
        ranks = [process.rank for process in self._processes for _ in process.captures]
        window = JobWindow.of(folder)
        if window is not None:
            for capture in whole:
                window.limit(capture)
        with ThreadPoolExecutor(_THREADS) as threads:
            surveyed = list(zip(whole, threads.map(survey, whole), strict=True))
        self._attempts = attempts_of(self._processes, read_restarts(folder), surveyed)
        for (capture, survey_of), rank in zip(surveyed, ranks, strict=True):
            capture.shift = self._attempts.shift(capture.host, int(capture.header["pid"]))
            hold(capture, survey_of, rank, self._numbering)
        sidecar = read_sidecar_files(folder, self._processes, self._numbering)
        if window is not None:
            sidecar = _in_window(sidecar, window.since_ns)
        helpers = _helpers(whole, sidecar)
        self._fetches = FetchIndex((capture.held for capture in whole), helpers)
        held = [(capture.host, capture.held) for capture in whole] + sidecar.spans
        tables = held + [(each.host, each.spans) for each in sidecar.collectives]
        anchors = best_anchors(
            [(capture.host, capture.anchor) for capture in whole] + sidecar.anchors
        )
        starts = [
            (capture.host, capture.first_ns) for capture in whole if capture.first_ns is not None
        ]
        known = read_clock_messages(folder)
        run = run.replace(clocks=run.clocks.replace(messages=known))
        messages = {
            each.host: each.times
            for each in known
            if each.host and each.by == next(iter(anchors), None)
        }
        clocks = [Clock(host, anchor) for host, anchor in anchors.items()]
        self._alignment = ClockAlignment(clocks, tables, starts, messages)
        facts = self._facts(folder, run, sidecar, captures)
        aligned = [self._alignment.align(host, table) for host, table in held]
        table = assign_batches(
            join_faults(pl.concat([empty_table(SPAN_COLUMNS), *aligned])), helpers
        )
        counters, stacks = (
            self._alignment.align_counters(sampled)
            for sampled in (sidecar.counters, sidecar.stacks)
        )
        waits = (
            (process.host, process.pid, process.rank, capture.waits)
            for process in self._processes
            for capture in process.captures
        )
        blocks = blocks_of(waits, self._alignment.align)
        found = add_windows(
            Trace(facts, table, self._numbering.files_table(), counters, stacks, blocks), folder
        )
        collectives = [
            replace(each, spans=self._alignment.align(each.host, each.spans))
            for each in sidecar.collectives
        ]
        if window is not None:
            found = self._with_whole_job(found, window, whole)
        self.held = add_collectives(found, collectives)
        """The trace without the spans that `blocks` reads."""

    def _with_whole_job(self, found: Trace, window: JobWindow, captures: list[Capture]) -> Trace:
        """The trace without what is not in the window, and with what is known of the rest of the
        job.
        """
        spans, num_steps = found.spans, 0
        whole_job = window.facts(captures, 0)
        if whole_job.is_part:
            since_ns = self._alignment.align_time(window.state.host, window.since_ns or 0)
            spans, num_steps = without_begun_steps(in_window(spans, since_ns))
        run = found.run.replace(whole_job=whole_job.replace(steps_left_out=num_steps))
        if whole_job.is_part:
            run = run.replace(times=None)
        return replace(found, run=run, spans=spans)

    @property
    def num_spans(self) -> int:
        """All spans; a few more where a page fault was recorded twice."""
        dense = sum(
            capture.num_spans - len(capture.held)
            for process in self._processes
            for capture in process.captures
        )
        return dense + self.held.num_spans

    def blocks(self) -> Iterator[pl.DataFrame]:
        """The spans that are not in `held`, some of one process at a time. The next ones are read
        while some are looked at.
        """
        self._numbering.name_series()  # made once, not by each thread
        local, waiting = threading.local(), deque[Future[pl.DataFrame | None]]()

        def read(process: Process, capture: Capture, place: tuple[int, int]) -> pl.DataFrame | None:
            if not hasattr(local, "buffers"):
                local.buffers = Buffers()
            found = dense_spans(capture, place, local.buffers, process.rank, self._numbering)
            return (
                None
                if found is None
                else self._alignment.align(capture.host, self._fetches.assign(found))
            )

        captures = (
            (process, capture) for process in self._processes for capture in process.captures
        )
        places = (
            (process, capture, place)
            for process, capture in captures
            for place in dense_places(capture)
        )
        with ThreadPoolExecutor(_THREADS) as threads:
            while True:
                waiting.extend(
                    threads.submit(read, *each)
                    for each in islice(places, _BLOCKS_AHEAD - len(waiting))
                )
                if not waiting:
                    return
                if (block := waiting.popleft().result()) is not None:
                    yield block

    def storage_calls(
        self, host: str | None, pid: int | None, times_ns: npt.NDArray[Any]
    ) -> pl.DataFrame:
        """The reads of a process from storage, those between two of these times as one, at the last
        of their ends.
        """
        ends, sums = np.zeros(len(times_ns) + 1, np.int64), np.zeros(len(times_ns) + 1, np.int64)
        captures = [
            each
            for process in self._processes
            if (process.host, process.pid) == (host, pid)
            for each in process.captures
        ]
        for records in chain.from_iterable(map(storage_reads, captures)):
            read = self._alignment.align(
                host or "", pl.DataFrame({"end_ns": records["end_ns"]}), "end_ns"
            )["end_ns"].to_numpy()
            place = np.searchsorted(times_ns, read, side="right")
            np.maximum.at(ends, place, read)
            np.add.at(sums, place, np.maximum(records["bytes"], 0))
        found = pl.DataFrame({"end_ns": ends, "bytes": sums}).filter(pl.col("bytes") > 0)
        facts = found.with_columns(
            host=pl.lit(host), pid=pl.lit(pid), kind=pl.lit("read"), source=pl.lit("storage")
        )
        missing = (pl.lit(None).alias(name) for name in SPAN_COLUMNS if name not in facts.columns)
        return (
            facts.with_columns(missing)
            .select(*SPAN_COLUMNS)
            .cast(pl.Schema(table_schema(SPAN_COLUMNS)))
        )

    def trace(self) -> Trace:
        """The whole trace, in memory."""
        return replace(self.held, spans=pl.concat([*self.blocks(), self.held.spans]))

    def _ends(self) -> dict[tuple[str | None, int | None], Ends]:
        """How processes ended, by host and process id, on the clock of the run."""
        found: dict[tuple[str | None, int | None], Ends] = {}
        for process in self._processes:
            own = found.setdefault((process.host, process.pid), Ends())
            for ends in (capture.ends for capture in process.captures):
                own.children += [
                    (pid, self._alignment.align_time(process.host, seen_ns), status)
                    for pid, seen_ns, status in ends.children
                ]
                if ends.own_ns is not None:
                    own.own_ns = self._alignment.align_time(process.host, ends.own_ns)
        return found

    def _facts(
        self, folder: Path, run: RunRecord, sidecar: SidecarData, captures: list[Capture]
    ) -> RunRecord:
        job = read_job_facts(folder, self._processes)
        recorded = run.capture.replace(
            fault_records=sidecar.fault_records,
            sampled=sidecar.sampled,
            unseen_processes=sidecar.unseen_processes,
            unobserved=job.unobserved,
            damaged=(
                *run.capture.damaged,
                *(each for capture in captures for each in capture.damage_facts()),
                *sidecar.damaged,
            ),
        )
        records = (
            process.facts(self._alignment.align_time).replace(
                attempt=self._attempts.of_process.get((process.host, process.pid), 0)
            )
            for process in self._processes
        )
        described = with_cpus(records, folder, sidecar.sampled_processes)
        known = tuple(
            failure.replace(time_ns=_aligned_to_run(failure.time_ns, run, self._alignment))
            for failure in run.failures
        )
        failures = failures_of(described, self._ends(), known, run.hosts)
        last = len(self._attempts.first) - 1
        of_process = {(each.pid, each.rank): each.attempt for each in described}
        earlier = [each for each in failures if of_process.get((each.pid, each.rank), last) < last]
        steps = pl.concat(
            [
                capture.held.filter(pl.col("kind") == "step").select("rank", "step")
                for process in self._processes
                for capture in process.captures
            ]
            or [empty_table(SPAN_COLUMNS).select("rank", "step")]
        )
        return run.replace(
            config=merge([run.config, job.config], {}),
            loaders=job.loaders,
            clocks=self._alignment.facts(run.clocks),
            times=_aligned_times(run, self._alignment),
            processes=described,
            capture=recorded,
            failures=tuple(each for each in failures if each not in earlier),
            attempts=attempt_records(self._attempts, described, steps, earlier),
        )


def _helpers(whole: list[Capture], sidecar: SidecarData) -> Helpers:
    """See `HelperIndex`. Files are read for that only of processes that make their own batches and
    in which other threads read.
    """
    found = HelperIndex(capture.held for capture in whole)
    for capture in whole:
        pid = int(capture.header["pid"])
        if found.may_have(capture.host, pid, capture.tids):
            found.add(capture.held)
            for tids, starts, ends in reads_without_batch(capture):
                found.add_reads(capture.host, pid, tids, starts, ends)
    for _, spans in sidecar.spans:
        found.add(spans)
    return found.found()


def _in_window(sidecar: SidecarData, since_ns: int | None) -> SidecarData:
    """What was recorded from outside in the window. Its hosts share one clock: it is that of the
    host that records.
    """
    return replace(
        sidecar,
        spans=[(host, in_window(spans, since_ns)) for host, spans in sidecar.spans],
        counters=in_window(sidecar.counters, since_ns, "time_ns"),
        stacks=in_window(sidecar.stacks, since_ns, "time_ns"),
        collectives=tuple(
            replace(each, spans=in_window(each.spans, since_ns)) for each in sidecar.collectives
        ),
    )


def _aligned_times(run: RunRecord, alignment: ClockAlignment) -> CommandTimes | None:
    """When the command ran; the recording host's clock is that of the first host of the run."""
    times = run.times
    if times is None or times.start_ns is None or times.end_ns is None or alignment.zero_ns is None:
        return None
    return CommandTimes(
        _aligned_to_run(times.start_ns, run, alignment),
        _aligned_to_run(times.end_ns, run, alignment),
    )


def _aligned_to_run(time_ns: int | None, run: RunRecord, alignment: ClockAlignment) -> int | None:
    """A time of the recording host as one of the run."""
    if time_ns is None or alignment.zero_ns is None:
        return None
    return alignment.align_time(run.hosts[0].name or "" if run.hosts else "", time_ns)
