"""Sums over all spans of a job, also of those that a recording of the last minutes (`--keep`) no
longer has.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from ioprof.format.run_record import JobMinutes, KindSums, WholeJob
from ioprof.format.schema import KINDS, SOURCES

_SHAPE: Final = (len(KINDS) + 1, len(SOURCES) + 1, 3)
"""Kind, source; spans, bytes, time."""
_FIRST_LENGTH_NS: Final = 60_000_000_000
_MOST_PARTS: Final = 128
"""Parts of the job's time that are summed on their own; where there are more, each becomes twice as
long."""
_STEP, _WAIT, _READ = (KINDS.index(kind) + 1 for kind in ("step", "wait", "read"))
_STORAGE: Final = SOURCES.index("storage") + 1

_MOST_BYTES: Final = 1 << 40
"""Of one span; damaged files have more."""

_Array = npt.NDArray[Any]


class JobSums:
    """Number, bytes and time of spans by kind and source, in all and by minute. Its size does not
    depend on the length of the job.

    Times are CLOCK_MONOTONIC of the host that records.
    """

    def __init__(self) -> None:
        self.spans = 0
        self.first_ns: int | None = None
        self.last_ns: int | None = None
        self.total: _Array = np.zeros(_SHAPE, np.int64)
        self.length_ns = _FIRST_LENGTH_NS
        """Of the parts of the job's time."""
        self.parts: dict[int, _Array] = {}

    def add(self, records: _Array, shift_ns: int = 0) -> None:
        """Add spans, of `RECORD_DTYPE`, whose clock is `shift_ns` behind that of the host that
        records. Blocks and wakes among them are not summed.
        """
        records = records[records["kind"] < _SHAPE[0]]
        if not len(records):
            return
        starts, ends = records["start_ns"] + shift_ns, records["end_ns"] + shift_ns
        self._extend(int(starts.min()), int(ends.max()))
        self.spans += len(records)
        parts = starts // self.length_ns
        for part in np.unique(parts).tolist():
            chosen = parts == part
            sums = _sums(records[chosen], (ends - starts)[chosen])
            self.total += sums
            self.parts[part] = self.parts.get(part, 0) + sums
        self._coarsen()

    def merge(self, other: "JobSums") -> None:
        """Add the sums of other spans."""
        if other.first_ns is None or other.last_ns is None:
            return
        self._extend(other.first_ns, other.last_ns)
        self.spans += other.spans
        self.total += other.total
        while self.length_ns < other.length_ns:
            self._double()
        for part, sums in other.parts.items():
            own = part * other.length_ns // self.length_ns
            self.parts[own] = self.parts.get(own, 0) + sums
        self._coarsen()

    def by_kind(self) -> tuple[KindSums, ...]:
        """The sums of each kind and source that occurred."""
        found = []
        for kind, source in np.argwhere(self.total[:, :, 0]).tolist():
            spans, size, took_ns = self.total[kind, source].tolist()
            name = SOURCES[source - 1] if source else None
            found.append(
                KindSums(
                    kind=KINDS[kind - 1], source=name, spans=spans, bytes=size, took_s=took_ns / 1e9
                )
            )
        return tuple(found)

    def by_minute(self) -> tuple[JobMinutes, ...]:
        """The sums of each part of the job's time in which a span began, in order; times count from
        the first span.
        """
        return tuple(
            JobMinutes(
                start_s=max(0.0, (part * self.length_ns - (self.first_ns or 0)) / 1e9),
                steps=int(sums[_STEP, :, 0].sum()),
                step_s=float(sums[_STEP, :, 2].sum()) / 1e9,
                wait_s=float(sums[_WAIT, :, 2].sum()) / 1e9,
                reads=int(sums[_READ, :, 0].sum()),
                bytes=int(sums[_READ, :, 1].sum()),
                bytes_from_storage=int(sums[_READ, _STORAGE, 1]),
            )
            for part, sums in sorted(self.parts.items())
        )

    def to_dict(self) -> dict[str, Any]:
        """As JSON; `from_dict` reads it."""
        parts = {str(part): _sparse(sums) for part, sums in self.parts.items()}
        bounds = {"first_ns": self.first_ns, "last_ns": self.last_ns}
        return {"spans": self.spans, **bounds, "length_ns": self.length_ns, "parts": parts}

    @classmethod
    def from_dict(cls, value: Mapping[str, Any]) -> "JobSums":
        """Raises ValueError, KeyError, TypeError or AttributeError for what `to_dict` did not
        write.
        """
        found = cls()
        found.spans, found.length_ns = (
            int(value["spans"]),
            max(_FIRST_LENGTH_NS, int(value["length_ns"])),
        )
        found.first_ns, found.last_ns = (
            None if value[name] is None else int(value[name]) for name in ("first_ns", "last_ns")
        )
        for part, rows in value["parts"].items():
            sums = np.zeros(_SHAPE, np.int64)
            for kind, source, *row in rows:
                if not (0 < kind < _SHAPE[0] and 0 <= source < _SHAPE[1] and len(row) == 3):
                    raise ValueError("sums of an unknown kind")
                sums[kind, source] = row
            found.parts[int(part)] = sums
            found.total += sums
        return found

    def _extend(self, first_ns: int, last_ns: int) -> None:
        self.first_ns = first_ns if self.first_ns is None else min(first_ns, self.first_ns)
        self.last_ns = last_ns if self.last_ns is None else max(last_ns, self.last_ns)

    def _coarsen(self) -> None:
        while len(self.parts) > _MOST_PARTS:
            self._double()

    def _double(self) -> None:
        halves, self.parts = self.parts, {}
        self.length_ns *= 2
        for part, sums in halves.items():
            self.parts[part // 2] = self.parts.get(part // 2, 0) + sums


def _sums(records: _Array, took_ns: _Array) -> _Array:
    places = records["kind"].astype(np.int64) * _SHAPE[1] + np.where(
        records["source"] < _SHAPE[1], records["source"], 0
    )
    found = np.zeros((_SHAPE[0] * _SHAPE[1], 3), np.int64)
    found[:, 0] = np.bincount(places, minlength=len(found))
    for column, values in ((1, np.clip(records["bytes"], 0, _MOST_BYTES)), (2, took_ns)):
        # in float64, which is exact up to 2^53
        found[:, column] = np.bincount(places, values, len(found))
    return found.reshape(_SHAPE)


def _sparse(sums: _Array) -> list[list[int]]:
    return [
        [kind, source, *sums[kind, source].tolist()]
        for kind, source in np.argwhere(sums[:, :, 0]).tolist()
    ]


def merged_jobs(parts: Sequence[WholeJob | None]) -> WholeJob | None:
    """What is known of all of a job that was recorded in parts, without its minutes; None: its run
    has all of each.
    """
    known = [part for part in parts if part is not None]
    if len(known) < 2:
        return known[0] if known else None
    sums: Counter[tuple[str, str, str | None]] = Counter()
    took_s: Counter[tuple[str | None, str | None]] = Counter()
    for each in (kind for part in known for kind in part.kinds):
        sums["spans", each.kind or "", each.source] += each.spans
        sums["bytes", each.kind or "", each.source] += each.bytes
        took_s[each.kind or "", each.source] += each.took_s  # type: ignore[assignment]
    names = dict.fromkeys((each.kind or "", each.source) for part in known for each in part.kinds)
    return WholeJob(
        keep_s=max(part.keep_s for part in known),
        window_s=max(part.window_s for part in known),
        job_s=max(part.job_s for part in known),
        spans=sum(part.spans for part in known),
        lost=sum(part.lost for part in known),
        processes_removed=sum(part.processes_removed for part in known),
        steps_left_out=sum(part.steps_left_out for part in known),
        ended=all(part.ended for part in known),
        kinds=tuple(
            KindSums(
                kind=kind,
                source=source,
                spans=sums["spans", kind, source],
                bytes=sums["bytes", kind, source],
                took_s=took_s[kind, source],
            )
            for kind, source in names
        ),
    )
