"""Events of DFTracer's lines as columns of numbers.

Lines in the usual form are read by a scanner in C (native/scan/dftracer.c); it leaves any other
line to the decoder here.
"""

import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import ROUND_HALF_EVEN, Context, Decimal, InvalidOperation
from typing import Any, Final

import msgspec
import numpy as np
import numpy.typing as npt

from ioprof import _scan

COLUMNS: Final = (
    "at",
    "start_ns",
    "length_ns",
    "call",
    "pid",
    "tid",
    "ret",
    "offset",
    "host",
    "path",
)
"""Of an event: number of its line; nanoseconds; place in `Events.calls`; numbers; places in
`Found.names`."""
NONE: Final = np.iinfo(np.int64).min
"""In a column: no value, or one that is not possible."""
_LATEST_NS: Final = (1 << 61) - 1
_MOST_WHOLE: Final = (1 << 62) - 1
_MOST_DIGITS_BEFORE_POINT: Final = 19  # of microseconds
_EXACT: Final = Context(prec=100, rounding=ROUND_HALF_EVEN)

Numbers = npt.NDArray[np.int64]
Call = tuple[str, str]
"""Category and name of events."""
Name = tuple[bool, str]
"""Whether it is a hash, which may be explained later, and the name or hash."""


class _Arguments(msgspec.Struct, gc=False):
    ret: int | str | None = None
    offset: int | str | None = None
    fname: str | None = None
    fhash: int | str | None = None
    hostname: str | None = None
    hhash: int | str | None = None
    name: int | str | None = None
    value: int | str | None = None


class _Event(msgspec.Struct, gc=False):
    name: str
    ph: str
    cat: str = ""
    pid: int | str = 0
    tid: int | str = 0
    ts: Any = (
        0  # a number with a fraction as Decimal: a double loses up to 64 ns of a time since 1970
    )
    dur: Any = 0
    args: _Arguments | None = None


_NO_ARGUMENTS: Final = _Arguments()
_TIMES: Final = (int, Decimal, str)


@dataclass
class Found:
    """All events of a file that are kept."""

    columns: dict[str, Numbers]
    calls: list[Call]
    names: list[Name]
    """Of hosts and files."""
    explained: list[tuple[int, bool, str, str]]
    """Of what hashes stand for: number of the line, whether the hash is that of a file, hash,
    name."""
    left_out: Counter[Call]
    """Events that are not kept."""


class Events:
    """The events of a file, collected from its lines."""

    def __init__(self, system_calls: Sequence[str], kept: Sequence[str]) -> None:
        """Categories of which only some names are kept, and those names."""
        seed = int.from_bytes(os.urandom(8), "little")
        self._scanner = _scan.DFTracerScanner(seed, system_calls, kept)
        self._system_calls, self._kept = frozenset(system_calls), frozenset(kept)
        self._decode = msgspec.json.Decoder(_Event, float_hook=Decimal).decode
        self._rows: list[tuple[int, ...]] = []
        self._calls: dict[Call, int] = {}
        self._names: dict[Name, int] = {}
        self._explained: list[tuple[int, bool, str, str]] = []
        self._left_out: Counter[Call] = Counter()
        self._num_scanned = self._num_decoded = 0

    def __len__(self) -> int:
        """The number of events so far, also of those that are not kept."""
        return self._num_scanned + self._num_decoded

    def add(self, text: bytes, start: int, end: int, damage: Counter[str]) -> None:
        """Add the whole lines in a part of a text."""
        data, self._num_scanned = self._scanner.scan(text, start, end)
        for at, first, last in np.frombuffer(data, np.int64).reshape(-1, 3).tolist():
            self._add_line(text[start + first : start + last], at, damage)

    def _add_line(self, line: bytes, at: int, damage: Counter[str]) -> None:
        stripped = line.strip(b" \t\r\n,")
        if stripped in (b"[", b"]", b""):
            return
        try:
            event = self._decode(stripped)
        except (msgspec.DecodeError, RecursionError, UnicodeDecodeError, InvalidOperation):
            event = None
        if event is None or type(event.ts) not in _TIMES or type(event.dur) not in _TIMES:
            damage["a line that is not an event"] += 1
            return
        self._num_decoded += 1
        call = event.cat, event.name
        given = event.args or _NO_ARGUMENTS
        if event.ph == "M":
            if event.name in ("FH", "HH") and given.value is not None:
                self._explained.append((at, event.name == "FH", str(given.value), str(given.name)))
        elif event.ph == "X" and event.cat in self._system_calls and event.name not in self._kept:
            self._left_out[call] += 1
        elif event.ph == "X" and event.cat != "dftracer":
            place = self._calls.setdefault(call, len(self._calls))
            host, path = (
                self._name(given.hostname, given.hhash),
                self._name(given.fname, given.fhash),
            )
            numbers = _whole(event.pid), _whole(event.tid), _whole(given.ret), _whole(given.offset)
            self._rows.append(
                (at, _nanoseconds(event.ts), _nanoseconds(event.dur), place, *numbers, host, path)
            )

    def _name(self, name: str | None, number: int | str | None) -> int:
        if name is None and number is None:
            return NONE
        key = (False, name) if name is not None else (True, str(number))
        return self._names.setdefault(key, len(self._names))

    def finish(self) -> Found:
        """All that was found, in the order of the lines."""
        rows = np.array(self._rows, np.int64).reshape(-1, len(COLUMNS))
        columns = dict(zip(COLUMNS, np.ascontiguousarray(rows.T), strict=True))
        decoded = Found(
            columns, list(self._calls), list(self._names), self._explained, self._left_out
        )
        return _joined(_scanned(*self._scanner.tables()), decoded)


def _scanned(
    events: tuple[Any, int],
    uses: list[bytes],
    explained: list[bytes],
    calls: list[bytes],
    names: list[bytes],
    hashes: list[bytes],
) -> Found:
    """What the scanner returned; its texts are ASCII."""
    cells, num_events = events
    table = np.frombuffer(memoryview(cells), np.int64).reshape(len(COLUMNS), -1)[:, :num_events]
    columns = dict(zip(COLUMNS, table, strict=True))
    # twice the number of a name, or of a hash plus 1; hashes are numbered after the names
    for name in (
        "host",
        "path",
    ):
        codes = columns[name]
        columns[name] = np.where(codes == NONE, NONE, (codes >> 1) + (codes & 1) * len(names))
    texts, of_hashes = [each.decode() for each in names], [each.decode() for each in hashes]
    meanings = zip(*(np.frombuffer(data, np.int64).tolist() for data in explained), strict=True)
    pairs = [
        (category, name) for category, _, name in (each.decode().partition("\0") for each in calls)
    ]
    counts, is_kept = (np.frombuffer(data, np.int64).tolist() for data in uses)
    return Found(
        columns,
        pairs,
        [(False, text) for text in texts] + [(True, text) for text in of_hashes],
        [
            (at, bool(is_path), of_hashes[number], texts[name])
            for at, is_path, number, name in meanings
        ],
        Counter(
            {
                call: count
                for call, count, is_row in zip(pairs, counts, is_kept, strict=True)
                if not is_row
            }
        ),
    )


def _joined(first: Found, second: Found) -> Found:
    """Both, in the order of the lines; what the second numbers comes after that of the first."""
    columns = first.columns
    if len(second.columns["at"]):
        added = {"call": len(first.calls), "host": len(first.names), "path": len(first.names)}
        moved = {
            name: np.where(column == NONE, NONE, column + added.get(name, 0))
            if name in added
            else column
            for name, column in second.columns.items()
        }
        order = np.argsort(np.concatenate([first.columns["at"], moved["at"]]), kind="stable")
        columns = {
            name: np.concatenate([first.columns[name], moved[name]])[order] for name in COLUMNS
        }
    return Found(
        columns,
        first.calls + second.calls,
        first.names + second.names,
        sorted(first.explained + second.explained),
        first.left_out + second.left_out,
    )


def _whole(value: int | str | None) -> int:
    """A whole number, which may be a text; `NONE` for what is none, or needs more than 62 bits."""
    try:
        number = NONE if value is None else int(value)
    except ValueError:
        return NONE
    return number if -_MOST_WHOLE <= number <= _MOST_WHOLE else NONE


def _nanoseconds(value: int | Decimal | str) -> int:
    """Microseconds as nanoseconds, rounded half to even; `NONE` for what cannot be a time."""
    if type(value) is int:
        found = value * 1000
    else:
        try:
            number = Decimal(value)
        except InvalidOperation:
            return NONE
        if not number.is_finite() or (number and number.adjusted() >= _MOST_DIGITS_BEFORE_POINT):
            return NONE
        found = int(_EXACT.scaleb(number, 3).to_integral_value(context=_EXACT))
    return found if 0 <= found <= _LATEST_NS else NONE
