"""The file of samples: JSON lines, only ever appended to, so that a killed launcher loses the line that it was writing, no more.

    {"format": "ioprof.spool.counters/1", "host": "node1", "pid": 4700, "period_s": 1.0}     the first line; pid is the launcher's
    {"series": 3, "name": "disk.vda.reads", "unit": "requests", "pid": null}           gives a number to a series, before its use
    {"process": 4711, "parent": 4700, "command": "python", "time_ns": 1204117340}      first seen, or its command changed
    {"lost": 2}                                                                        so many lines before this one found no room
    {"note": "..."}                                                                    what cannot be sampled here, and why
    [1204117340, 0, [3, 17, 5, 0.25], [8]]                                             a sample

A sample is its time (CLOCK_MONOTONIC, ns), the group that was read at that time (each group is read at an instant of its own),
number and value of every series of the group that changed since the group's last sample, and the series that ended since then.
So a series that is not named kept its value: hundreds of idle processes cost nothing. A series whose name and pid are given out
anew (for a reused pid) begins anew, and so do all after a lost line.
"""

import json
import os
from collections.abc import Mapping
from typing import Any

from ioprof.record.samplers.readings import Readings, Subject
from ioprof.series import COUNTER_FORMAT, described


class SampleFile:
    """Writes samples to `counters-<host>-<pid>.jsonl` in a folder; OSError from the constructor if the file cannot be made.

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
        self._given_out = 0
        self._torn = self._untold = False
        self.lost: int = 0
        """Samples and notes that could not be written."""
        self.sampled_bytes: int = 0
        """About the size of all samples so far, without the lines that name their series, which come once."""
        self._write([{"format": COUNTER_FORMAT, "host": host, "pid": os.getpid(), "period_s": period_s}])

    def note(self, text: str) -> None:
        """Say what cannot be sampled."""
        self._write([{"note": text}])

    def process(self, time_ns: int, pid: int, parent: int, command: str) -> None:
        """A process of the job was seen for the first time, or runs another program now."""
        self._write([{"process": pid, "parent": parent, "command": command, "time_ns": time_ns}])

    def sample(self, time_ns: int, group: int, readings: Readings) -> None:
        """All that a group of series reads at `time_ns`: per subject, the values by name."""
        last, changes = self._last.get(group, {}), _Changes()
        lines: list[Any] = []
        for subject, values in readings.items():
            before: Mapping[str, float] = last.get(subject, {})
            if values == before:
                continue
            for name, value in values.items():
                if before.get(name) != value:
                    changes.values += (self._number(subject, name, lines), value)
            changes.ended += [self._numbers.pop((subject, name)) for name in before if name not in values]
        for subject in last.keys() - readings.keys():
            changes.ended += [self._numbers.pop((subject, name)) for name in last[subject]]
        line = [time_ns, group, changes.values, changes.ended]
        self.sampled_bytes += 8 * len(changes.values)
        if self._write([*lines, line]):
            self._last[group] = readings
        else:  # the reader knows neither of these values nor of the new numbers: give out all anew
            self._last.clear()
            self._numbers.clear()

    def close(self) -> None:
        """Nothing can be written after this."""
        os.close(self._descriptor)

    def _number(self, subject: Subject, name: str, lines: list[Any]) -> int:
        number = self._numbers.get((subject, name))
        if number is None:
            number = self._numbers[subject, name] = self._given_out
            self._given_out += 1
            series = described(name)
            lines.append({"series": number, "name": name, "unit": series.unit if series else "", "pid": subject[0]})
        return number

    def _write(self, lines: list[Any]) -> bool:
        said = [{"lost": self.lost}] if self._untold else []
        text = "".join(json.dumps(line, separators=(",", ":")) + "\n" for line in [*said, *lines])
        data = (b"\n" if self._torn else b"") + text.encode()
        try:
            written = os.write(self._descriptor, data)
        except OSError:
            written = 0
        else:
            self._torn = written < len(data)
        self._untold = written < len(data)
        self.lost += self._untold
        return not self._untold


class _Changes:
    def __init__(self) -> None:
        self.values: list[float] = []
        self.ended: list[int] = []
