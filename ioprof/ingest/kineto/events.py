"""Parses the events of a Kineto file, also a truncated, corrupt or gzipped one. Events that are not
needed are skipped early.

Events in the usual form are found by a scanner in C (native/scan/kineto.c); it leaves any other
event to the parser here.
"""

import json
import os
import re
import zlib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import polars as pl

from ioprof import _scan
from ioprof.files import open_regular_file
from ioprof.format.inflate import BLOCK_BYTES, GZIP, inflate
from ioprof.ingest.untrusted_values import LATEST_NS, valid_text

_MARK: Final = b'"ph"'
# larger blocks do not fit into the CPU caches: 16 MiB took twice the time of 4
_BLOCK_BYTES: Final = 2 << 20
# longer than any event: a file with such a piece is not a Kineto file
_PIECE_BYTES: Final = 64 << 20
_HEADING_CHARS: Final = 1 << 20
CUT: Final = "truncated: its end is missing"
CUT_STREAM: Final = "truncated or corrupt gzip data"
"""Damages of a file of which a part is missing."""

_LAUNCHES: Final = ("cuda_runtime", "cuda_driver", "hip_runtime", "Runtime")
_OF_DEVICE: Final = ("kernel", "gpu_memcpy", "gpu_memset", "Kernel", "Memcpy", "Memset", *_LAUNCHES)
_OF_HOST: Final = ("user_annotation", "cpu_op", "Operator", "Trace")
_TIME: Final = r"-?[0-9]+(?:\.[0-9]*)?"
_BEGIN: Final = r'^\s*:\s*"X"\s*,\s*"cat"\s*:\s*'
_EVENT: Final = (
    rf'{_BEGIN}"(?<cat>{"|".join(_OF_DEVICE)})"\s*,\s*"name"\s*:\s*"(?<name>(?:[^"\\]|\\.)*)"\s*,'
    r'\s*"pid"\s*:\s*"?(?<device>-?[0-9]+)"?\s*,'
    r'\s*"tid"\s*:\s*(?:"stream |"?)(?<stream>-?[0-9]+)"?\s*,'
    rf'\s*"ts"\s*:\s*"?(?<ts>{_TIME})"?\s*,\s*"dur"\s*:\s*"?(?<dur>{_TIME})"?\s*[,}}]'
)
"""An event in the field order of both writers in torch, after its `"ph"`. Any other order is parsed
by `json`, which is much slower."""
_ARGUMENTS: Final = {
    "correlation": r'"correlation"\s*:\s*"?(\d{1,18})\b',
    "bytes": r'"bytes"\s*:\s*"?(\d{1,18})\b',
    "collective": r'"Collective name"\s*:\s*"([^"\\]+)"',
    "elements": r'"In msg nelems"\s*:\s*"?(\d{1,15})\b',
    "dtype": r'"dtype"\s*:\s*"([^"\\]+)"',
    "group": r'"Process Group Name"\s*:\s*"([^"\\]+)"',
}
_JSON_ARGUMENTS: Final = (
    "correlation",
    "bytes",
    "Collective name",
    "In msg nelems",
    "dtype",
    "Process Group Name",
)
_FIELDS: Final = ("cat", "name", "device", "stream", "ts", "dur", *_ARGUMENTS)
# Made once: a small file is read in less time than it takes to make these for each piece of it.
_CATEGORY_OF: Final = pl.col("text").str.extract(rf'{_BEGIN}"([^"\\]*)"').alias("cat")
_IN_OTHER_ORDER: Final = pl.col("cat").is_null() & pl.col("text").str.contains(r'(?s)^.{0,13}"X"')
_IS_OF_DEVICE: Final = pl.col("cat").is_in(_OF_DEVICE)
_NAMES_HOST, _NAMES_DEVICE = (
    pl.col("text").str.contains(rf'"cat"\s*:\s*"(?:{"|".join(names)})"')
    for names in (_OF_HOST, _OF_DEVICE)
)
_FIELDS_OF: Final = pl.col("text").str.extract_groups(_EVENT).alias("event")
_ARGUMENTS_OF: Final = [
    pl.col("text").str.extract(pattern).alias(name) for name, pattern in _ARGUMENTS.items()
]
_TEXT: Final = {"at": pl.Int64(), **dict.fromkeys(_FIELDS, pl.String())}
SCHEMA: Final = {
    "at": pl.Int64(),  # number of the event in the file
    "cat": pl.Categorical(),
    "name": pl.Categorical(),  # as in the file, with its escapes
    "device": pl.Int64(),
    "stream": pl.Int64(),
    "ts": pl.Int64(),  # nanoseconds since the base time of the file; null: invalid
    "dur": pl.Int64(),
    "correlation": pl.Int64(),  # equal for a launch and the activity that it launched; null: none
    "bytes": pl.Int64(),
    "collective": pl.Categorical(),
    "elements": pl.Int64(),
    "dtype": pl.Categorical(),
    "group": pl.Categorical(),  # the process group of a collective
}
"""Columns of an event. Text is converted to numbers block by block, which reduces its memory to a
fifth."""
_NONE: Final = np.iinfo(np.int64).min  # of the scanner: no value
LAUNCH_SCHEMA: Final = {
    "at": pl.Int64(),
    "name": pl.Categorical(),
    "thread": pl.Int64(),  # that made the call, as in the file
    "ts": pl.Int64(),
    "dur": pl.Int64(),
    "correlation": pl.Int64(),
}
"""Columns of a call of the runtime or driver; all but `thread`, which other events have as
`stream`, as in `SCHEMA`."""


def pieces(path: Path, damage: Counter[str]) -> Iterator[bytes]:
    """The file in pieces of about 2 MiB, none of which ends within an event."""
    rest = b""
    try:
        with open_regular_file(path) as file:
            is_gzip = file.read(2) == b"\x1f\x8b"
            file.seek(0)
            whole = iter(lambda: file.read(_BLOCK_BYTES), b"")
            for block in (
                _gathered(inflate(file, GZIP, min(_BLOCK_BYTES, BLOCK_BYTES))) if is_gzip else whole
            ):
                rest += block
                end = rest.rfind(_MARK)
                if end > 0:
                    yield rest[:end]
                    rest = rest[end:]
                if len(rest) > _PIECE_BYTES:
                    damage["data that is not an event"] += 1
                    return
    except FileNotFoundError:
        damage["no trace of this window was written"] += 1
    except OSError as error:
        damage[f"cannot be read: {error.strerror}"] += 1
    except (EOFError, zlib.error):
        damage[CUT_STREAM] += 1
    if rest:
        yield rest


def _gathered(blocks: Iterator[bytes]) -> Iterator[bytes]:
    """Blocks of at least `_BLOCK_BYTES`: of small ones the parser takes twice the time."""
    parts: list[bytes] = []
    try:
        for block in blocks:
            parts.append(block)
            if sum(map(len, parts)) >= _BLOCK_BYTES:
                yield b"".join(parts)
                parts = []
    except (EOFError, zlib.error):
        yield b"".join(parts)
        raise
    yield b"".join(parts)


@dataclass(frozen=True)
class Tables:
    """The events of one file."""

    of_device: pl.DataFrame
    """Kernels, copies and memsets; columns of `SCHEMA`."""
    launches: pl.DataFrame
    """Calls of the runtime and driver; columns of `LAUNCH_SCHEMA`."""
    ranges: pl.DataFrame
    """Ranges of the host that were asked for; columns of `SCHEMA`, where `device` and `stream` are
    process and thread."""


class Events:
    """The events of one file, collected piece by piece."""

    def __init__(self, ranges: Sequence[str] = ()) -> None:
        """`ranges`: how the names of ranges of the host begin that are read besides what is read
        anyway.
        """
        names = "|".join(re.escape(name) for name in ranges)
        self._is_range = (
            pl.col("text").str.contains(rf'"name"\s*:\s*"(?:{names})') if ranges else pl.lit(False)
        )
        seed = int.from_bytes(os.urandom(8), "little")
        self._scanner = _scan.KinetoScanner(seed, _OF_DEVICE, _LAUNCHES, _OF_HOST, ranges)
        self._of_host: list[pl.DataFrame] = []
        self._of_device: list[pl.DataFrame] = []
        self._launches: list[pl.DataFrame] = []
        self.heading = ""
        """Text before the first event and after the last."""
        self._tail = b""
        self._num_pieces = 0

    def add(self, piece: bytes, damage: Counter[str]) -> None:
        """Add the events of a piece. Each begins with `"ph"`, the first field in both writers."""
        first = piece.find(_MARK)
        if not self._num_pieces:
            before = (piece if first < 0 else piece[:first]).decode("utf-8", "replace")
            self.heading = before[:_HEADING_CHARS]
            damage["its events are not in the format of Kineto"] += (
                first >= 0 and not before.rstrip().endswith("{")
            )
        self._num_pieces += 1
        if first >= 0:
            self._end_last(damage)
            self._tail = piece[self._take(piece, first, False, damage) :]

    def _end_last(self, damage: Counter[str]) -> None:
        if self._tail:
            self._take(self._tail, 0, True, damage)

    def _take(self, piece: bytes, begin: int, is_whole: bool, damage: Counter[str]) -> int:
        """Add the events of a piece from the first on, the last only where it is whole; returns
        where the last begins.
        """
        data, last = self._scanner.scan(piece, begin, is_whole)
        left = np.frombuffer(data, np.int64).reshape(-1, 3)
        texts = [piece[start:end].decode("utf-8", "replace") for start, end in left[:, 1:].tolist()]
        if texts:
            self._parse(
                pl.DataFrame({"at": left[:, 0], "text": pl.Series(texts, dtype=pl.String)}), damage
            )
        return last

    def finish(self, damage: Counter[str]) -> None:
        """Add the last event if it is complete, and the text after it."""
        tail = self._tail[len(_MARK) :].decode("utf-8", "replace")
        self.heading += tail[-_HEADING_CHARS:]
        end = (tail or self.heading).rstrip()
        closed = end.count("}") - end.count("{")
        # Brackets that must be closed at the end: the last event, if there is one, and the outer
        # object or array.
        if closed < (2 if tail else 0) - (1 if tail and end.endswith("]") else 0):
            damage[CUT] += 1
        elif self._num_pieces and not tail and '"traceEvents"' not in self.heading:
            damage["not a Kineto trace"] += 1
        if tail and closed > 0:
            self._end_last(damage)
        self._add_scanned(*self._scanner.tables())

    def _add_scanned(self, of_device: bytes, launches: bytes, strings: list[bytes]) -> None:
        texts = pl.Series(
            [each.decode("utf-8", "replace") for each in strings], dtype=pl.Categorical()
        )
        for data, schema, tables in (
            (of_device, SCHEMA, self._of_device),
            (launches, LAUNCH_SCHEMA, self._launches),
        ):
            columns = np.ascontiguousarray(np.frombuffer(data, np.int64).reshape(-1, len(schema)).T)
            found = (
                pl.DataFrame(dict(zip(schema, columns, strict=True)))
                if columns.size
                else pl.DataFrame(schema=schema)
            )
            if columns.size:
                values = pl.all().replace(_NONE, None) if (columns == _NONE).any() else pl.all()
                numbers = found.select(values)
                tables.append(
                    numbers.with_columns(
                        texts.gather(numbers[name].cast(pl.UInt32)).alias(name)
                        for name, dtype in schema.items()
                        if dtype != pl.Int64()
                    )
                )

    def _parse(self, frame: pl.DataFrame, damage: Counter[str]) -> None:
        frame = frame.with_columns(_CATEGORY_OF)
        other = frame.filter(_IN_OTHER_ORDER)
        if len(other):
            self._parse_slowly(other, damage)
        self._add_ranges(frame.filter(pl.col("cat").is_in(_OF_HOST) & self._is_range), damage)
        found = frame.filter(_IS_OF_DEVICE).select("at", "text", _FIELDS_OF).unnest("event")
        is_launch = pl.col("cat").is_in(_LAUNCHES)
        self._launches.append(
            _convert_types(found.filter(is_launch).with_columns(_ARGUMENTS_OF[0]), LAUNCH_SCHEMA)
        )
        self._of_device.append(
            _convert_types(found.filter(~is_launch).with_columns(_ARGUMENTS_OF), SCHEMA)
        )
        self._add_activities(found.filter(pl.col("cat").is_null()), damage)

    def _parse_slowly(self, events: pl.DataFrame, damage: Counter[str]) -> None:
        """Add events that do not begin with their category."""
        self._add_ranges(events.filter(_NAMES_HOST & self._is_range), damage)
        self._add_activities(events.filter(_NAMES_DEVICE), damage)

    def _add_ranges(self, events: pl.DataFrame, damage: Counter[str]) -> None:
        if len(events):
            self._of_host.append(_convert_types(_parse_by_json(events, damage), SCHEMA))

    def _add_activities(self, events: pl.DataFrame, damage: Counter[str]) -> None:
        if len(events):
            found = _parse_by_json(events, damage)
            is_launch = pl.col("cat").is_in(_LAUNCHES)
            self._launches.append(_convert_types(found.filter(is_launch), LAUNCH_SCHEMA))
            self._of_device.append(_convert_types(found.filter(~is_launch), SCHEMA))

    @property
    def tables(self) -> Tables:
        """What was found, in the order of the file."""
        found = (
            pl.concat([pl.DataFrame(schema=schema), *parts]).sort("at")
            for schema, parts in (
                (SCHEMA, self._of_device),
                (LAUNCH_SCHEMA, self._launches),
                (SCHEMA, self._of_host),
            )
        )
        return Tables(*found)


def _parse_by_json(events: pl.DataFrame, damage: Counter[str]) -> pl.DataFrame:
    """Parse events whose fields are in another order, or that are malformed."""
    rows = []
    decoder = json.JSONDecoder(parse_float=str)
    for at, text in events.select("at", "text").iter_rows():
        try:
            event, _ = decoder.raw_decode('{"ph"' + text)
        except (ValueError, RecursionError):
            damage["an event that cannot be parsed"] += 1
            continue
        given = event.get("args")
        arguments: dict[str, Any] = given if isinstance(given, dict) else {}
        head = [_field(event.get(name)) for name in ("cat", "name", "pid", "tid", "ts", "dur")]
        if None in head:
            damage["an event without a required field"] += 1
        elif event["ph"] == "X":
            head[3] = str(head[3]).removeprefix("stream ")
            rows.append((at, *head, *(_field(arguments.get(name)) for name in _JSON_ARGUMENTS)))
    return pl.DataFrame(rows, schema=_TEXT, orient="row")


def _field(value: Any) -> str | None:
    return (
        valid_text(str(value))
        if isinstance(value, str | int) and not isinstance(value, bool)
        else None
    )


def _convert_types(events: pl.DataFrame, schema: Mapping[str, pl.DataType]) -> pl.DataFrame:
    """Convert the text of events to the types of `schema`."""
    return events.select(_CONVERTED[name] for name in schema)


def _whole(name: str) -> pl.Expr:
    return pl.col(name).cast(pl.Int64, strict=False)


def _nanoseconds(name: str) -> pl.Expr:
    """Convert microseconds as text to nanoseconds exactly; a double lacks the precision."""
    parts = pl.col(name).str.split_exact(".", 1)
    whole = parts.struct.field("field_0").cast(pl.Int64, strict=False)
    thousandths = (
        parts.struct.field("field_1")
        .fill_null("")
        .str.slice(0, 3)
        .str.pad_end(3, "0")
        .cast(pl.Int64, strict=False)
    )
    possible = whole.is_between(0, LATEST_NS // 1000) & ~pl.col(name).str.starts_with("-")
    return pl.when(possible).then(whole * 1000 + thousandths)


_CONVERTED: Final = {
    name: (_whole(name) if dtype == pl.Int64() else pl.col(name).cast(dtype)).alias(name)
    for name, dtype in SCHEMA.items()
} | {
    "ts": _nanoseconds("ts").alias("ts"),
    "dur": _nanoseconds("dur").alias("dur"),
    "correlation": _whole("correlation").replace(0, None).alias("correlation"),
    "thread": _whole("stream").alias("thread"),
}
