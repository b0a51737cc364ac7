"""A run as a trace of https://ui.perfetto.dev: one slice for each span, one track for each thread
and stream, arrows and counters; beside the track of a thread one of its sampled functions.

The category of a slice is its kind. Arrows lead from each read to the fetch of its batch, to the
wait for it, and to the step; Perfetto turns an arrow around where the second span began first, as a
fetch before its reads. A file is a sequence of `TracePacket`; names and numbers of the fields are
those of Perfetto's `protos/perfetto/trace`.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO, Final

import numpy as np
import numpy.typing as npt
import polars as pl

from ioprof.files import replaced_file
from ioprof.format.trace import Trace
from ioprof.interchange import rows
from ioprof.interchange.exported import Exported, counter_series
from ioprof.interchange.rows import Rows
from ioprof.interchange.stacks import PYTHON
from ioprof.interchange.tracks import CATEGORIES, Process, Track, Tracks

_Array = npt.NDArray[Any]

_PACKET: Final = 1  # of Trace
# of TracePacket
_TIMESTAMP, _SEQUENCE, _INTERNED, _FLAGS, _EVENT, _DESCRIPTOR = (
    8,
    10,
    12,
    13,
    11,
    60,
)
_UUID, _NAME, _PROCESS, _THREAD, _PARENT, _COUNTER = 1, 2, 3, 4, 5, 8  # of TrackDescriptor
_CATEGORY_IID, _ANNOTATION, _TYPE, _NAME_IID, _TRACK, _DOUBLE_VALUE, _FLOW, _LAST_FLOW = (
    3,
    4,
    9,
    10,
    11,
    44,
    47,
    48,
)  # of TrackEvent
_CATEGORIES, _NAMES, _ANNOTATION_NAMES, _ANNOTATION_TEXTS = 1, 2, 3, 29  # of InternedData
_IID, _INTERNED_TEXT = 1, 2  # of each entry of it
_KEY_IID, _INTEGER, _TEXT_IID = 1, 4, 17  # of DebugAnnotation
_BEGIN, _END, _COUNT = 1, 2, 4  # TrackEvent.Type
_STATE_CLEARED, _NEEDS_STATE = 1, 2  # TracePacket.SequenceFlags

_NEXT_OF_SEQUENCE: Final = rows.number(_SEQUENCE, 1) + rows.number(_FLAGS, _NEEDS_STATE)
_EVENTS_AT_A_TIME: Final = 50_000
_FEW_ARROWS: Final = 3
_INTEGERS: Final = ("step", "batch", "bytes", "offset")
_ARGUMENTS: Final = (*_INTEGERS, "source", "file")


def write_perfetto(trace: Trace, path: Path) -> Exported:
    """Write the trace file `path`, whole or not at all."""
    with replaced_file(path) as temporary, open(temporary, "wb") as file:
        return _Writer(trace, file).write()


class _Writer:
    def __init__(self, trace: Trace, file: BinaryIO) -> None:
        self._trace, self._file = trace, file
        self._tracks = Tracks(trace)
        self._paths = self._tracks.paths()
        self._labels: dict[str, int] = {}
        self._texts: dict[str, int] = {}
        self._uuids = 0
        self._arrows = 0
        self._spans: dict[str, int] = {}

    def write(self) -> Exported:
        interned = b"".join(
            _entry(_CATEGORIES, number, kind) for number, kind in enumerate(CATEGORIES, 1)
        )
        interned += b"".join(
            _entry(_ANNOTATION_NAMES, number, name) for number, name in enumerate(_ARGUMENTS, 1)
        )
        flags = rows.number(_FLAGS, _STATE_CLEARED | _NEEDS_STATE)
        self._packet(rows.number(_SEQUENCE, 1) + flags + rows.text(_INTERNED, interned))
        described = {
            key: self._describe_process(process) for key, process in self._tracks.processes.items()
        }
        of_process = {
            process.number: described[key] for key, process in self._tracks.processes.items()
        }
        for track in self._tracks:
            uuid = self._describe_track(track)
            self._write_track(track.spans, uuid)
        counters = self._write_counters(of_process)
        functions = self._spans.pop(PYTHON, 0)
        return Exported(self._spans, counters, self._arrows, functions=functions)

    def _packet(self, content: bytes) -> None:
        self._file.write(rows.text(_PACKET, content))

    def _new_uuid(self) -> int:
        self._uuids += 1
        return self._uuids

    def _describe(self, content: bytes) -> int:
        uuid = self._new_uuid()
        self._packet(
            rows.number(_SEQUENCE, 1) + rows.text(_DESCRIPTOR, rows.number(_UUID, uuid) + content)
        )
        return uuid

    def _describe_process(self, process: Process) -> int:
        # pid, process_name, process_priority (the order of processes) of ProcessDescriptor
        content = (
            rows.number(1, process.number)
            + rows.text(6, process.name)
            + rows.number(7, process.order)
        )
        return self._describe(rows.text(_PROCESS, content) + rows.text(_NAME, process.name))

    def _describe_track(self, track: Track) -> int:
        # pid, tid, thread_name of ThreadDescriptor
        content = (
            rows.number(1, track.process.number)
            + rows.number(2, track.number)
            + rows.text(5, track.name)
        )
        return self._describe(rows.text(_THREAD, content))

    def _intern(self, texts: pl.Series, known: dict[str, int], field: int) -> _Array:
        """The number of each text, after an entry for each new one."""
        new = [text for text in texts.unique(maintain_order=True).drop_nulls() if text not in known]
        for text in new:
            known[text] = len(known) + 1
        if new:
            entries = b"".join(_entry(field, known[text], text) for text in new)
            state = rows.number(_SEQUENCE, 1) + rows.number(_FLAGS, _NEEDS_STATE)
            self._packet(state + rows.text(_INTERNED, entries))
        return texts.replace_strict(known, default=0, return_dtype=pl.Int64).fill_null(0).to_numpy()

    def _write_track(self, spans: pl.DataFrame, uuid: int) -> None:
        kinds = spans["kind"].to_physical().to_numpy()
        for kind, count in zip(*np.unique(kinds, return_counts=True), strict=True):
            self._spans[CATEGORIES[kind]] = self._spans.get(CATEGORIES[kind], 0) + int(count)
        self._arrows += int(spans["begins"].list.len().sum())
        starts, ends = spans["start_ns"].to_numpy(), spans["end_ns"].to_numpy()
        order, num = _nested_order(starts, ends), len(spans)
        for first in range(0, 2 * num, _EVENTS_AT_A_TIME):
            events = order[first : first + _EVENTS_AT_A_TIME]
            self._write_part(spans, uuid, events[events < num], events[events >= num] - num, events)

    def _write_part(
        self, spans: pl.DataFrame, uuid: int, begun: _Array, ended: _Array, events: _Array
    ) -> None:
        """Some events of a track: `begun` and `ended` are places of spans, `events` are both in
        their order.
        """
        track, num = rows.number(_TRACK, uuid), len(spans)
        of_begin = spans[begun]
        begins = rows.join(
            rows.constant(rows.number(_TYPE, _BEGIN) + track, len(begun)),
            rows.number_field(
                _CATEGORY_IID, of_begin["kind"].to_physical().to_numpy().astype(np.int64) + 1
            ),
            rows.number_field(_NAME_IID, self._intern(of_begin["label"], self._labels, _NAMES)),
            *self._annotations(of_begin),
        )
        of_end = spans[ended]
        arrows = (
            pl.col("begins").list.len().fill_null(0) + pl.col("ends").list.len().fill_null(0)
        ).alias("arrows")
        is_wide = (of_end.select(arrows).to_series() > _FEW_ARROWS).to_numpy()
        few = of_end.with_columns(pl.when(pl.Series(~is_wide)).then(pl.col("begins", "ends")))
        constant = rows.constant(rows.number(_TYPE, _END) + track, len(ended))
        ends = rows.join(
            constant, *_arrows(few["begins"], _FLOW), *_arrows(few["ends"], _LAST_FLOW)
        )
        place_of = np.empty(2 * num, np.int64)
        place_of[begun], place_of[num + ended] = (
            np.arange(len(begun)),
            len(begun) + np.arange(len(ended)),
        )
        order = place_of[events]
        times = np.concatenate([of_begin["start_ns"].to_numpy(), of_end["end_ns"].to_numpy()])[
            order
        ]
        packets = self._packets(rows.stack(begins, ends).take(order), times)
        data, after = packets.flat(), np.cumsum(packets.lengths)
        # Spans with many arrows, such as the fetch of a large batch, would make all rows as wide as
        # they are.
        written, by_end = (
            0,
            {len(begun) + int(place): int(place) for place in np.flatnonzero(is_wide)},
        )
        for position in np.flatnonzero(np.isin(order, list(by_end))).tolist():
            place = by_end[int(order[position])]
            start = int(after[position - 1]) if position else 0
            self._file.write(data[written:start].tobytes())
            self._file.write(
                _wide_end(
                    track, int(times[position]), of_end["begins"][place], of_end["ends"][place]
                )
            )
            written = int(after[position])
        self._file.write(data[written:].tobytes())

    def _annotations(self, spans: pl.DataFrame) -> Iterator[Rows]:
        for place, name in enumerate(_ARGUMENTS, 1):
            if name in _INTEGERS:
                mask = (spans[name] >= 0).fill_null(value=False).to_numpy()
                value = rows.number_field(_INTEGER, spans[name].fill_null(0).clip(0).to_numpy())
            else:
                own = (
                    spans[name].cast(pl.String)
                    if name == "source"
                    else self._path_of(spans["file"])
                )
                mask = own.is_not_null().to_numpy()
                value = rows.number_field(
                    _TEXT_IID, self._intern(own, self._texts, _ANNOTATION_TEXTS)
                )
            if mask.any():
                key = rows.constant(rows.number(_KEY_IID, place), len(spans))
                yield rows.message_field(_ANNOTATION, rows.join(key, value)).only(mask)

    def _path_of(self, files: pl.Series) -> pl.Series:
        used = {
            number: self._paths[number]
            for number in files.drop_nulls().unique()
            if number in self._paths
        }
        return files.replace_strict(used, default=None, return_dtype=pl.String)

    def _write_counters(self, of_process: dict[int, int]) -> int:
        found = 0
        numbers = {key: process.number for key, process in self._tracks.processes.items()}
        for series in counter_series(self._trace):
            parent = of_process.get(numbers.get((series.host, series.pid), -1), 0)
            unit = rows.text(_COUNTER, rows.text(6, series.unit))  # unit_name of CounterDescriptor
            name = rows.text(_NAME, series.name)
            uuid = self._describe(name + unit + (rows.number(_PARENT, parent) if parent else b""))
            num = len(series.times_ns)
            value = rows.fixed_field(_DOUBLE_VALUE, series.values)
            constant = rows.number(_TYPE, _COUNT) + rows.number(_TRACK, uuid)
            events = rows.join(rows.constant(constant, num), value)
            self._file.write(
                self._packets(events, series.times_ns - self._tracks.zero_ns).flat().tobytes()
            )
            found += num
        return found

    def _packets(self, events: Rows, times_ns: _Array) -> Rows:
        time = rows.number_field(_TIMESTAMP, np.maximum(times_ns, 0))
        state = rows.constant(_NEXT_OF_SEQUENCE, len(events))
        return rows.message_field(
            _PACKET, rows.join(time, state, rows.message_field(_EVENT, events))
        )


def _entry(field: int, number: int, text: str) -> bytes:
    return rows.text(field, rows.number(_IID, number) + rows.text(_INTERNED_TEXT, text))


def _arrows(lists: pl.Series, field: int) -> Iterator[Rows]:
    """A field for each of the first `_FEW_ARROWS` arrows of each row."""
    for place in range(_FEW_ARROWS):
        number = lists.list.get(place, null_on_oob=True)
        if number.null_count() == len(number):
            return
        yield rows.fixed_field(field, number.fill_null(0).to_numpy().astype(np.uint64)).only(
            number.is_not_null().to_numpy()
        )


def _wide_end(
    track: bytes, time_ns: int, begins: pl.Series | None, ends: pl.Series | None
) -> bytes:
    """The packet of an end with any number of arrows."""
    content = rows.number(_TYPE, _END) + track
    for field, arrows in ((_FLOW, begins), (_LAST_FLOW, ends)):
        prefix = rows.tag(field, rows.FIXED64)
        content += b"".join(
            prefix + int(number).to_bytes(8, "little")
            for number in ([] if arrows is None else arrows)
        )
    packet = (
        rows.number(_TIMESTAMP, max(0, time_ns)) + _NEXT_OF_SEQUENCE + rows.text(_EVENT, content)
    )
    return rows.text(_PACKET, packet)


def _nested_order(starts: _Array, ends: _Array) -> _Array:
    """The order of begins (0 to n - 1) and ends (n to 2n - 1) of nested spans, such that each end
    closes the last that was begun.

    The spans are ordered by start, and of equal starts the longer first. At one time the ends of
    spans that began before come first, the inner one first; then begins, each of a span of no
    length with its end.
    """
    place = np.arange(len(starts))
    is_empty = starts == ends
    times = np.concatenate([starts, ends])
    phase = np.concatenate([np.ones_like(place), np.where(is_empty, 1, 0)])
    rank = np.concatenate([2 * place, np.where(is_empty, 2 * place + 1, -2 * place)])
    found: _Array = np.lexsort((rank, phase, times))
    return found
