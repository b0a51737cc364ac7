"""Writes the sample file: JSON lines that are only appended, so a launcher that is killed loses at
most the line being written.

    {"format": "ioprof.spool.counters/1", "host": "node1", "pid": 4700, "period_s": 1.0}     first
                                                                                             line;
                                                                                             pid of
                                                                                             the
                                                                                             launcher
    {"series": 3, "name": "disk.vda.reads", "unit": "requests", "pid": null}           assigns a
                                                                                       number to a
                                                                                       series
    {"process": 4711, "parent": 4700, "command": "python", "cpus": "0-3", "time_ns": 1204117340}    new
                                                                                                    process,
                                                                                                    or
                                                                                                    changed
    {..., "sees_spool": false}                       the folder of this file is not there for that
                                                     process
    {"lost": 2}                                                                        lines before
                                                                                       this one that
                                                                                       were lost
    {"note": "..."}                                                                    what cannot
                                                                                       be sampled,
                                                                                       and why
    [1204117340, 0, [3, 17, 5, 0.25], [8]]                                             a sample

A sample consists of its time (CLOCK_MONOTONIC, ns), the group that was read at that time (each
group is read at its own time), number and value of every series of the group that changed since the
last sample of the group, and the series that ended since then. A series that is not listed kept its
value, so hundreds of idle processes cost nothing. If name and pid of a series are assigned again
(for a reused pid), the series starts anew; after a lost line all series do.
"""  # noqa: E501

import json
import os
from collections.abc import Mapping
from typing import Any, Final

from ioprof.format.series import COUNTER_FORMAT, find_series
from ioprof.instrument.samplers.processes import JobProcess
from ioprof.instrument.samplers.readings import Readings, Subject

_as_json: Final = json.JSONEncoder(separators=(",", ":")).encode


class SampleFile:
    """Writes samples to `counters-<host>-<pid>.jsonl` in a folder. The constructor raises OSError
    if it cannot create the file.

    Later errors lose lines and raise nothing: a full spool must not end the job.
    """

    def __init__(self, folder: str, host: str, period_s: float) -> None:
        self._descriptor = os.open(
            os.path.join(folder, f"counters-{host}-{os.getpid()}.jsonl"),
            os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC,
            0o644,
        )
        self._numbers: dict[tuple[Subject, str], int] = {}
        self._last: dict[int, Readings] = {}
        self._next_number = 0
        self._is_line_incomplete = self._has_unreported_loss = False
        self.lost: int = 0
        """Number of lines that could not be written."""
        self.sampled_bytes: int = 0
        """Approximate size of all samples so far, without the lines that define series, which are
        written once."""
        self._write(
            [{"format": COUNTER_FORMAT, "host": host, "pid": os.getpid(), "period_s": period_s}]
        )

    def note(self, text: str) -> None:
        """Write what cannot be sampled."""
        self._write([{"note": text}])

    def process(self, time_ns: int, process: JobProcess) -> None:
        """Write that a process of the job is new, runs another program, or may use other CPUs."""
        line = {
            "process": process.pid,
            "parent": process.parent,
            "command": process.command,
            "cpus": process.cpus,
        }
        self._write(
            [{**line, "time_ns": time_ns, **({} if process.sees_spool else {"sees_spool": False})}]
        )

    def sample(self, time_ns: int, group: int, readings: Readings) -> None:
        """Write the values of a group of series at `time_ns`: per subject, the values by name."""
        last, lines = self._last.get(group, {}), list[Any]()
        changed, ended = list[float](), list[int]()
        for subject, values in readings.items():
            before: Mapping[str, float] = last.get(subject, {})
            if values == before:
                continue
            for name, value in values.items():
                if before.get(name) != value:
                    changed += (self._number(subject, name, lines), value)
            ended += [self._numbers.pop((subject, name)) for name in before if name not in values]
        for subject in last.keys() - readings.keys():
            ended += [self._numbers.pop((subject, name)) for name in last[subject]]
        line = [time_ns, group, changed, ended]
        self.sampled_bytes += 8 * len(changed)
        if self._write([*lines, line]):
            self._last[group] = readings
        else:  # the line is lost: define all series again
            self._last.clear()
            self._numbers.clear()

    def close(self) -> None:
        """Close the file."""
        os.close(self._descriptor)

    def _number(self, subject: Subject, name: str, lines: list[Any]) -> int:
        number = self._numbers.get((subject, name))
        if number is None:
            number = self._numbers[subject, name] = self._next_number
            self._next_number += 1
            series = find_series(name)
            lines.append(
                {
                    "series": number,
                    "name": name,
                    "unit": series.unit if series else "",
                    "pid": subject[0],
                }
            )
        return number

    def _write(self, lines: list[Any]) -> bool:
        loss = [{"lost": self.lost}] if self._has_unreported_loss else []
        text = "".join(_as_json(line) + "\n" for line in [*loss, *lines])
        data = (b"\n" if self._is_line_incomplete else b"") + text.encode()
        try:
            written = os.write(self._descriptor, data)
        except OSError:
            written = 0
        else:
            self._is_line_incomplete = written < len(data)
        self._has_unreported_loss = written < len(data)
        self.lost += self._has_unreported_loss
        return not self._has_unreported_loss
