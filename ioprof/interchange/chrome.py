"""A run in the JSON format of Chrome's trace viewer, which Perfetto, Speedscope and many other
programs read.

The format: https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU. Times
are in microseconds.
"""

import gzip
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any, cast

import msgspec
import polars as pl

from ioprof.files import replaced_file
from ioprof.format.trace import Trace
from ioprof.interchange.exported import Exported, counter_series
from ioprof.interchange.stacks import PYTHON
from ioprof.interchange.tracks import Process, Track, Tracks

_ARGUMENTS = ("step", "batch", "bytes", "offset", "source")
_ROWS_AT_A_TIME = 20_000


def write_chrome(trace: Trace, path: Path) -> Exported:
    """Write the file `path`, whole or not at all; compressed if its name ends in `.gz`."""
    is_gzip = path.suffix == ".gz"
    with replaced_file(path) as temporary:
        with (
            cast(IO[bytes], gzip.open(temporary, "wb", 6)) if is_gzip else open(temporary, "wb")
        ) as file:
            file.write(
                b'{"displayTimeUnit":"ns","otherData":{"exporter":"ioprof"},"traceEvents":[\n'
            )
            writer = _Events(trace)
            separator = b""
            for block in writer.blocks():
                if block:
                    file.write(
                        separator + b",\n".join(msgspec.json.encode(event) for event in block)
                    )
                    separator = b",\n"
            file.write(b"\n]}\n")
        functions = writer.spans.pop(PYTHON, 0)
        return Exported(dict(writer.spans), writer.counters, writer.arrows, functions=functions)


class _Events:
    """The events of a run, some at a time, and how many there were."""

    def __init__(self, trace: Trace) -> None:
        self._trace, self._tracks = trace, Tracks(trace)
        self._paths = self._tracks.paths()
        self.spans: Counter[str] = Counter()
        self.counters = self.arrows = 0

    def blocks(self) -> Iterator[list[dict[str, Any]]]:
        yield [
            event
            for process in self._tracks.processes.values()
            for event in _process_names(process)
        ]
        for track in self._tracks:
            yield [_metadata("thread_name", track.process.number, track.number, name=track.name)]
            for place in range(0, len(track.spans), _ROWS_AT_A_TIME):
                rows = track.spans.slice(place, _ROWS_AT_A_TIME)
                yield list(self._of_track(track, rows))
                yield list(self._arrows_of(track, rows))
        yield from self._series()

    def _of_track(self, track: Track, rows: pl.DataFrame) -> Iterator[dict[str, Any]]:
        columns = rows.select(
            pl.col("kind", "source").cast(pl.String),
            "label",
            "start_ns",
            "end_ns",
            "file",
            "step",
            "batch",
            "bytes",
            "offset",
        )
        for row in columns.iter_rows(named=True):
            arguments = {name: value for name in _ARGUMENTS if (value := row[name]) is not None}
            if (path := self._paths.get(row["file"])) is not None:
                arguments["file"] = path
            self.spans[row["kind"]] += 1
            yield {
                "ph": "X",
                "cat": row["kind"],
                "name": row["label"],
                "pid": track.process.number,
                "tid": track.number,
                "ts": row["start_ns"] / 1e3,
                "dur": (row["end_ns"] - row["start_ns"]) / 1e3,
                "args": arguments,
            }

    def _arrows_of(self, track: Track, rows: pl.DataFrame) -> Iterator[dict[str, Any]]:
        """An arrow belongs to the slice that is open at its time, so it is drawn a nanosecond
        before the end.
        """
        found = rows.filter(pl.col("begins").is_not_null() | pl.col("ends").is_not_null()).select(
            "start_ns", "end_ns", "begins", "ends"
        )
        for start_ns, end_ns, begins, ends in found.iter_rows():
            where = {
                "cat": "pipeline",
                "name": "batch",
                "pid": track.process.number,
                "tid": track.number,
                "ts": max(start_ns, end_ns - 1) / 1e3,
            }
            for number in begins or ():
                self.arrows += 1
                yield {"ph": "s", "id": number, **where}
            for number in ends or ():
                yield {"ph": "f", "bp": "e", "id": number, **where}

    def _series(self) -> Iterator[list[dict[str, Any]]]:
        numbers = {key: process.number for key, process in self._tracks.processes.items()}
        for series in counter_series(self._trace):
            where = {
                "ph": "C",
                "pid": numbers.get((series.host, series.pid), 0),
                "name": series.name,
            }
            key = series.unit or "value"
            times_us = ((series.times_ns - self._tracks.zero_ns) / 1e3).tolist()
            self.counters += len(times_us)
            pairs = zip(times_us, series.values.tolist(), strict=True)
            yield [{**where, "ts": time_us, "args": {key: value}} for time_us, value in pairs]


def _process_names(process: Process) -> Iterator[dict[str, Any]]:
    yield _metadata("process_name", process.number, 0, name=process.name)
    yield _metadata("process_sort_index", process.number, 0, sort_index=process.order)


def _metadata(what: str, pid: int, tid: int, **arguments: Any) -> dict[str, Any]:
    return {"ph": "M", "name": what, "pid": pid, "tid": tid, "ts": 0, "args": arguments}
