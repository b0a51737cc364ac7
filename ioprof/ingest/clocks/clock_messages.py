"""Reads what the ranks of a job found by messages about the offsets of their clocks, see
`ioprof.instrument.clock_exchange`.
"""

import json
from pathlib import Path
from typing import Any, Final

from ioprof.format.run_record import ClockMessages
from ioprof.ingest.untrusted_values import lines_of

_MOST_ROUNDS: Final = 256
"""Of a longer job each is the tightest of several."""
_Times = tuple[int, int, int]


def read_clock_messages(folder: Path) -> tuple[ClockMessages, ...]:
    """Of each other clock, in the order of its first message. Lines that are damaged are left out:
    their job was killed.
    """
    found: dict[tuple[Any, ...], list[_Times]] = {}
    for path in sorted(folder.glob("clocks-*.jsonl")):
        by = path.name.removeprefix("clocks-").rpartition("-")[0]
        for line in lines_of(path):
            try:
                entry = json.loads(line)
                key = by, str(entry["host"]), entry["kernel"], int(entry["shift_ns"])
                times = [
                    (int(sent), int(read), int(received))
                    for sent, read, received in entry["messages"]
                ]
            except (ValueError, KeyError, TypeError, RecursionError):
                continue
            found.setdefault(key, []).extend(each for each in times if each[0] <= each[2])
    found = {key: times for key, times in found.items() if times}
    return tuple(
        ClockMessages(
            by=by,
            host=host,
            kernel=kernel,
            monotonic_shift_ns=shift_ns,
            sent_ns=sent,
            read_ns=read,
            received_ns=received,
        )
        for (by, host, kernel, shift_ns), times in found.items()
        for sent, read, received in [tuple(zip(*_thinned(times), strict=True))]
    )


def _thinned(times: list[_Times]) -> list[_Times]:
    """At most two messages of each of so many rounds: without a bound the offset is only known less
    well.
    """
    stride = -(-len(times) // (2 * _MOST_ROUNDS)) * 2
    if stride <= 2:
        return times
    kept = []
    for first in range(0, len(times), stride):
        group = times[first : first + stride]
        kept += [
            max(group, key=lambda each: each[0] - each[1]),
            min(group, key=lambda each: each[2] - each[1]),
        ]
    return kept
