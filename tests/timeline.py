"""Creates a Trace from a drawing: each line is a lane, each character 10 ns.

    timeline('''
    step            0000000000 1111111111
    wait            .000...... .1........
    fetch w0        0000111111 1.........
    read w0         ##........ ..........
    read w0 cache   ......###. ..........
    decode w0       ..##.....# ..........
    compute         ....000000 ..11111111
    ''')

A line consists of words and a bar. Blanks within the bar are for readability and take no time. The
first word is the kind; others:

    r1              rank 1 (default r0)
    w0              in loader worker 0 of the rank (default: in the rank's main thread; compute,
                    copies and exchange on a stream)
    main            in the rank's main thread (for compute on a CPU)
    t0              in thread 0 of the rank's process that is not the main thread
    storage, cache, unknown, socket, pipe       where a read's bytes came from (default storage)
    file=3          number of the file of each span of the line
    4096B           bytes of each span of the line
    name=gradients  name of each span of the line; a `comm` is called "gradients" unless it says
                    otherwise

In the bar `.` is nothing. A digit is a span with that number (hexadecimal: a is 10), as its step
and its batch; `#`, `=` and `-` are spans without a number. Equal neighbours are one span, so `#=`
are two spans that touch.
"""

import re
from itertools import groupby
from typing import Any, Final

import polars as pl

from ioprof.analysis.charge.blame import charges
from ioprof.format.run_record import RunRecord
from ioprof.format.schema import BLOCK_COLUMNS, CAUSES, KINDS, SPAN_COLUMNS
from ioprof.format.trace import Trace, table_schema

TICK_NS: Final = 10
"""Duration of one character."""

_SOURCES: Final = {
    "storage": "storage",
    "cache": "page_cache",
    "unknown": "unknown",
    "socket": "socket",
    "pipe": "pipe",
}
_STREAMS: Final = {"compute": 0, "kernel": 0, "h2d": 1, "d2h": 1, "comm": 2}
_DIGITS: Final = "0123456789abcdef"
_LANE: Final = re.compile(
    r"(?P<kind>\w+)(?P<words>(\s+([rwt]\d+|main|storage|cache|unknown|socket|pipe|\d+B|name=\S+|file=\d+))*)(?P<bar>(\s+[.0-9a-f#=-]+)+)"
)


def timeline(drawing: str, **run: Any) -> Trace:
    """The trace of a drawing. `run` sets whole keys of run.json; `config` is merged into one that
    fits the drawing."""
    spans = [span for line in drawing.splitlines() if line.strip() for span in _lane(line)]
    ranks = len({span["rank"] for span in spans})
    workers = len({span["pid"] for span in spans if span["rank"] == 0 and span["pid"] != pid(0)})
    config = {
        "ranks": ranks,
        "workers": workers,
        "batch_size": 1,
        "device": "cuda",
        "loader": "files",
    } | run.pop("config", {})
    record = RunRecord.of({"config": config, "status": "complete", **run})
    return Trace(record, pl.DataFrame(spans, schema=table_schema(SPAN_COLUMNS)))


def block(
    start: int,
    end: int,
    tid: int,
    waker: int | None,
    *,
    of: tuple[str, int] = ("condition", 5),
    woken: int | None = None,
) -> dict[str, Any]:
    """A block of a thread on an object, in characters of a drawing. `waker`: None, its time was
    over; `woken`: None, at its end."""
    return {
        "start_ns": start * TICK_NS,
        "end_ns": end * TICK_NS,
        "host": "node1",
        "pid": tid % 10_000,
        "tid": tid,
        "object": of[0],
        "id": of[1],
        "timed_out": waker is None,
        "waker_tid": waker,
        "woken_ns": None if waker is None else (end if woken is None else woken) * TICK_NS,
    }


def with_blocks(trace: Trace, *blocks: dict[str, Any]) -> Trace:
    """The trace with these blocks."""
    return trace.with_facts(blocks=pl.DataFrame(blocks, schema=table_schema(BLOCK_COLUMNS)))


def charged(steps: pl.DataFrame) -> dict[tuple[int, int], dict[str, int]]:
    """A table of blame as characters: (rank, step) to cause to count, without zeros; a null stays
    None."""
    return {
        (row["rank"], row["step"]): {
            cause: _ticks(row[f"{cause}_ns"]) for cause in CAUSES if row[f"{cause}_ns"] != 0
        }
        for row in steps.iter_rows(named=True)
    }


def details(trace: Trace, *causes: str) -> dict[str, list[tuple[str, int]]]:
    """The named parts of causes, in nanoseconds."""
    found = charges(trace)
    return {
        cause: [
            (code.label(subject), took_ns)
            for (code, subject), took_ns in found.details.of_cause(
                cause, int(found.steps[f"{cause}_ns"].sum()), trace
            )
        ]
        for cause in causes
    }


def pid(rank: int, worker: int | None = None) -> int:
    """The process of a rank, or of a worker of it."""
    return 100 * (rank + 1) + (0 if worker is None else worker + 1)


def _ticks(time_ns: int | None) -> int | None:
    assert time_ns is None or time_ns % TICK_NS == 0, time_ns
    return None if time_ns is None else time_ns // TICK_NS


def _lane(line: str) -> list[dict[str, Any]]:
    parts = _LANE.fullmatch(line.strip())
    assert parts is not None, f"not a lane: {line!r}"
    assert parts["kind"] in KINDS, f"not a kind: {line!r}"
    common = _common(parts["kind"], parts["words"].split())
    bar = "".join(parts["bar"].split())
    spans, at = [], 0
    for mark, run in groupby(bar):
        length = len(list(run))
        if mark != ".":
            spans.append(
                common
                | _number(mark)
                | {"start_ns": at * TICK_NS, "end_ns": (at + length) * TICK_NS}
            )
        at += length
    return spans


def _number(mark: str) -> dict[str, int]:
    return {"step": _DIGITS.index(mark), "batch": _DIGITS.index(mark)} if mark in _DIGITS else {}


def _common(kind: str, words: list[str]) -> dict[str, Any]:
    found: dict[str, Any] = {"kind": kind, "host": "node1", "rank": 0}
    worker, main, own_thread = None, False, None
    for word in words:
        match word[0], word[1:]:
            case "r", number if number.isdigit():
                found["rank"] = int(number)
            case "w", number if number.isdigit():
                worker = int(number)
            case "t", number if number.isdigit():
                own_thread = int(number)
            case _ if word == "main":
                main = True
            case _ if word.startswith("file="):
                found["file"] = int(word.removeprefix("file="))
            case _ if word in _SOURCES:
                found["source"] = _SOURCES[word]
            case _ if word.endswith("B"):
                found["bytes"] = int(word[:-1])
            case _:
                found["name"] = word.removeprefix("name=")
    process = pid(found["rank"], worker)
    stream = (
        {}
        if main or worker is not None or own_thread is not None or kind not in _STREAMS
        else {"stream": _STREAMS[kind]}
    )
    thread = process + 10_000 * (1 + stream["stream"]) if stream else process
    thread = process + 50_000 + own_thread if own_thread is not None else thread
    defaults = (
        {"source": "storage"}
        if kind in ("read", "fault")
        else {"name": "gradients"}
        if kind == "comm"
        else {}
    )
    return defaults | found | {"pid": process, "tid": thread} | stream
