"""Reads the sample files of a spool folder into the table of counters;
`ioprof.instrument.samplers.file` specifies the format.
"""

import json
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from io import BytesIO
from itertools import chain
from pathlib import Path
from typing import Any, Final

import polars as pl

from ioprof.format.schema import COUNTER_COLUMNS
from ioprof.format.series import COUNTER_FORMAT
from ioprof.format.trace import empty_table, table_schema
from ioprof.ingest.appended_files import read_appended

_Row = tuple[int, int | None, str, float, str]  # time, pid, name, value, unit


@dataclass(frozen=True)
class SampledProcess:
    """A process of the job that the sampler found, with or without the capture library."""

    host: str
    pid: int
    parent: int
    command: str
    """Name of its last program as in the kernel, at most 15 bytes."""
    seen_ns: int
    """CLOCK_MONOTONIC of the first sample with this command and these CPUs."""
    cpus: str = ""
    """The CPUs that it may use, e.g. `0-3,8`; empty: not known."""
    sees_spool: bool = True
    """False: the folder of the recording was not there for it."""


@dataclass(frozen=True)
class Counters:
    """Contents of the sample files of a job."""

    table: pl.DataFrame
    """Columns of `ioprof.format.schema.COUNTER_COLUMNS`, in no particular order; times are
    CLOCK_MONOTONIC ns.

    A series has a row at each sample in which its value changed and at the sample before, so linear
    interpolation is exact.
    """
    processes: tuple[SampledProcess, ...] = ()
    notes: tuple[str, ...] = ()
    """What could not be sampled and why, one sentence each."""
    damaged: int = 0
    """Lines that could not be parsed, such as the last one of a launcher that was killed."""
    lost: int = 0
    """Lines that could not be written because the spool was full."""


def read_counters(spool: Path, ranks: Mapping[tuple[str, int], int] | None = None) -> Counters:
    """Read all samples in the folder `spool`; `ranks` maps (host, pid) to the rank.

    Never raises for invalid contents. A file that cannot be opened counts as one damaged line.
    """
    frames, files = [empty_table(COUNTER_COLUMNS)], []
    for path in sorted(spool.glob("counters-*.jsonl")):
        file = _File()
        try:
            found = read_appended(path)
            file.damaged += found.is_damaged
            file.read(chain(BytesIO(found.state), BytesIO(found.rest)))
        except OSError:
            file.damaged += 1
        files.append(file)
        frames.append(_table(file, ranks or {}))
    return Counters(
        table=pl.concat(frames),
        processes=tuple(process for file in files for process in file.processes.values()),
        notes=tuple(dict.fromkeys(note for file in files for note in file.notes)),
        damaged=sum(file.damaged for file in files),
        lost=sum(file.lost for file in files),
    )


_MOST_ENDED: Final = 1024
"""Processes and notes that are still known when what was sampled of them was dropped."""


def fold_counters(_header: bytes, state: bytes, part: bytes, _folder: bytes) -> tuple[bytes, int]:
    """Lines after which the rest of a sample file means what it does after the state and this part
    (`appended_files.Fold`).
    """
    used = part.rfind(b"\n") + 1
    file = _File()
    file.read_lines(chain(BytesIO(state), BytesIO(part[:used])))
    return "".join(
        json.dumps(line, separators=(",", ":")) + "\n" for line in file.lines()
    ).encode(), used


def _table(file: "_File", ranks: Mapping[tuple[str, int], int]) -> pl.DataFrame:
    times, pids, names, values, units = (
        zip(*file.rows, strict=True) if file.rows else ((), (), (), (), ())
    )
    columns = {
        "time_ns": times,
        "host": [file.host] * len(times),
        "rank": [None if pid is None else ranks.get((file.host, pid)) for pid in pids],
        "pid": pids,
        "name": names,
        "value": values,
        "unit": units,
    }
    return pl.DataFrame(columns, schema=table_schema(COUNTER_COLUMNS))


@dataclass
class _Series:
    name: str
    unit: str
    pid: int | None
    last: tuple[int, float] | None = None
    """Time and value of its last row."""


@dataclass
class _File:
    host: str = "?"
    rows: list[_Row] = field(default_factory=list)
    processes: dict[int, SampledProcess] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    damaged: int = 0
    lost: int = 0
    _series: dict[int, _Series] = field(default_factory=dict)
    _numbers: dict[tuple[str, int | None], int] = field(default_factory=dict)
    _times: dict[int, int] = field(default_factory=dict)
    """Time of the last sample of each group."""
    _groups: dict[int, set[int]] = field(default_factory=dict)
    """The open series of each group."""

    def read(self, lines: Iterable[bytes]) -> None:
        self.read_lines(lines)
        self._end_series()

    def read_lines(self, lines: Iterable[bytes]) -> None:
        """Read lines that others may follow."""
        for line in lines:
            if not line.strip():
                continue
            try:
                self._parse_line(json.loads(line.decode()))
            except (ValueError, TypeError, KeyError, OverflowError, RecursionError):
                self.damaged += 1
                self._end_series()

    def lines(self) -> Iterator[Any]:
        """Lines that give what is known now, with the last value of each series only."""
        if self.host != "?":
            yield {"format": COUNTER_FORMAT, "host": self.host}
        if self.lost:
            yield {"lost": self.lost}
        if self.damaged:
            yield {"damaged": self.damaged}
        yield from ({"note": note} for note in list(dict.fromkeys(self.notes))[:_MOST_ENDED])
        alive = {pid for _, pid in self._numbers}
        ended = [pid for pid in self.processes if pid not in alive]
        gone = set(ended[: max(0, len(ended) - _MOST_ENDED)])
        for each in (process for pid, process in self.processes.items() if pid not in gone):
            line = {
                "process": each.pid,
                "parent": each.parent,
                "command": each.command,
                "cpus": each.cpus,
            }
            yield {
                **line,
                "time_ns": each.seen_ns,
                **({} if each.sees_spool else {"sees_spool": False}),
            }
        for (name, pid), number in self._numbers.items():
            yield {"series": number, "name": name, "unit": self._series[number].unit, "pid": pid}
        for group, time_ns in self._times.items():
            values: list[float] = []
            for number in sorted(self._groups.get(group, ())):
                if (last := self._series[number].last) is not None:
                    values += (number, last[1])
            yield [time_ns, group, values, []]

    def _end_series(self) -> None:
        """End all series at their last sample, at the end of the file or because the contents of a
        lost line are unknown.
        """
        for group, numbers in self._groups.items():
            for number in numbers:
                self._extend(self._series[number], self._times[group])
            numbers.clear()
        for series in self._series.values():
            series.last = None

    def _parse_line(self, line: Any) -> None:
        if isinstance(line, list):
            self._add_sample(*line)
        elif "series" in line:
            number, name, unit, pid = (
                _integer(line["series"]),
                _text(line["name"]),
                _text(line["unit"]),
                _pid(line["pid"]),
            )
            self._forget(self._numbers.get((name, pid)))
            self._forget(number)
            self._numbers[name, pid] = number
            self._series[number] = _Series(name, unit, pid)
        elif "process" in line:
            pid, parent, seen_ns = (
                _pid(line["process"]),
                _integer(line["parent"]),
                _integer(line["time_ns"]),
            )
            cpus = _text(line.get("cpus", ""))
            sees, command = line.get("sees_spool") is not False, _text(line["command"])
            self.processes[pid or 0] = SampledProcess(
                self.host, pid or 0, parent, command, seen_ns, cpus, sees
            )
        elif "damaged" in line:
            self.damaged += _integer(line["damaged"])
        elif "lost" in line:
            self.lost = _integer(line["lost"])
            self._end_series()
        elif "note" in line:
            self.notes.append(_text(line["note"]))
        elif line["format"] == COUNTER_FORMAT:
            self.host = _text(line["host"])
        else:
            raise ValueError(line["format"])

    def _forget(self, number: int | None) -> None:
        for numbers in self._groups.values():
            numbers -= {number}

    def _add_sample(self, time_ns: int, group: int, values: list[Any], ended: list[int]) -> None:
        time_ns, before_ns = _integer(time_ns), self._times.get(_integer(group))
        changed = [(self._series[number], number, value) for number, value in _pairs(values)]
        gone = [(self._series[_integer(number)], number) for number in ended]
        open_numbers = self._groups.setdefault(group, set())
        self._times[group] = time_ns
        for series, number, value in changed:
            self._extend(series, before_ns)
            self._row(series, time_ns, value)
            open_numbers.add(number)
        for series, number in gone:
            self._extend(series, before_ns)
            open_numbers.discard(number)
            if self._numbers.get((series.name, series.pid)) == number:
                del self._numbers[series.name, series.pid]

    def _extend(self, series: _Series, time_ns: int | None) -> None:
        """Add a row: the series kept its value until `time_ns`."""
        if series.last and time_ns is not None and series.last[0] < time_ns:
            self._row(series, time_ns, series.last[1])

    def _row(self, series: _Series, time_ns: int, value: float) -> None:
        self.rows.append((time_ns, series.pid, series.name, value, series.unit))
        series.last = time_ns, value


def _pairs(values: list[Any]) -> Iterator[tuple[int, float]]:
    for place in range(0, len(values), 2):
        number, value = values[place : place + 2]
        if (
            isinstance(value, bool)
            or not isinstance(value, int | float)
            or not math.isfinite(value)
        ):
            raise ValueError(value)
        yield _integer(number), float(value)


def _integer(value: Any) -> int:
    if type(value) is not int or not -(2**63) <= value < 2**63:
        raise ValueError(value)
    return value


def _pid(value: Any) -> int | None:
    if value is not None and not 0 <= _integer(value) < 2**31:
        raise ValueError(value)
    return None if value is None else int(value)


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(value)
    value.encode()  # raises for a lone surrogate, which no table can hold
    return value
