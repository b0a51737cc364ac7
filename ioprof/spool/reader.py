"""Reads what a job left: every process's spans, on one clock, with one numbering of files.

A capture file may come from a process that was killed, from a full disk, or have been cut while it was copied; and it may be no
capture file at all. What can be understood is kept, what cannot is counted in `run["capture"]["damaged"]`; nothing raises.
"""

from pathlib import Path
from typing import Any

import polars as pl

from ioprof.errors import CaptureError
from ioprof.schema import SPAN_COLUMNS
from ioprof.spool.beside import learned, read_beside
from ioprof.spool.joining import with_batches, without_told_twice
from ioprof.spool.kineto import add_windows
from ioprof.spool.numbering import Numbering
from ioprof.spool.one_clock import OneClock, best_anchors
from ioprof.spool.rings import open_capture, processes_of, take_capture
from ioprof.spool.ties import Clock
from ioprof.trace import Trace, empty_table


def read_spool(folder: Path, run: dict[str, Any]) -> Trace:
    """The trace of all that a job left in `folder`; `run`, what else is known of the run, is taken over into `Trace.run`.

    Adds `run["processes"]`; to `run["clocks"]` the `zero_monotonic_ns`, the `anchors` and, of hosts that shared the folder, how
    their clocks were tied; and to `run["capture"]` what was `damaged`, `unseen_processes`, and what is known of faults, GPUs and
    samples. Raises `CaptureError` where there is no such folder.
    """
    if not folder.is_dir():
        raise CaptureError(f"{folder}: no such spool folder; it is made by: ioprof record -- COMMAND")
    numbering = Numbering()
    captures = [open_capture(path) for path in sorted(folder.glob("*.ring"))]
    processes = processes_of(captures)
    for process in processes:
        for capture in process.captures:
            take_capture(capture, process.rank, numbering)
    beside = read_beside(folder, processes, numbering)
    whole = [capture for process in processes for capture in process.captures]
    tables = [(capture.host, capture.spans) for capture in whole] + beside.spans
    anchors = best_anchors([(capture.host, capture.anchor) for capture in whole] + beside.anchors)
    clock = OneClock([Clock(host, anchor) for host, anchor in anchors.items()], tables)
    for capture in whole:
        capture.spans = clock.of(capture.host, capture.spans)
    spans = [capture.spans for capture in whole] + [clock.of(host, table) for host, table in beside.spans]
    config, unobserved = learned(folder, processes)
    given = run.get("capture", {})
    damaged = [*given.get("damaged", []), *(entry for capture in captures for entry in capture.damage_facts()), *beside.damaged]
    facts = {
        **run,
        "config": {**config, **run.get("config", {})},
        "clocks": {**run.get("clocks", {}), **clock.facts()},
        "processes": [process.facts() for process in processes],
        "capture": {**given, **beside.facts, "unobserved": unobserved, "damaged": damaged},
    }
    table = with_batches(without_told_twice(pl.concat([empty_table(SPAN_COLUMNS), *spans])))
    return add_windows(Trace(facts, table, numbering.files_table(), clock.of_counters(beside.counters)), folder)
