"""Parses the events of a Kineto file, also a truncated, corrupt or gzipped one. Events that are not needed are skipped early."""

import gzip
import json
import zlib
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO, Any, Final, cast

import polars as pl

from ioprof.ingest.untrusted_values import LATEST_NS

_BLOCK_BYTES: Final = 4 << 20  # larger blocks do not fit into the CPU caches: 16 MiB took twice the time
_PIECE_BYTES: Final = 64 << 20  # longer than any event: a file with such a piece is not a Kineto file
_HEADING_CHARS: Final = 1 << 20

_LAUNCHES: Final = ("cuda_runtime", "cuda_driver", "hip_runtime", "Runtime")
_OF_DEVICE: Final = ("kernel", "gpu_memcpy", "gpu_memset", "Kernel", "Memcpy", "Memset", *_LAUNCHES)
_OF_HOST: Final = ("user_annotation", "cpu_op", "Operator")
_TIME: Final = r"-?[0-9]+(?:\.[0-9]*)?"
_BEGIN: Final = r'^\s*:\s*"X"\s*,\s*"cat"\s*:\s*'
_EVENT: Final = (
    rf'{_BEGIN}"(?<cat>{"|".join(_OF_DEVICE)})"\s*,\s*"name"\s*:\s*"(?<name>(?:[^"\\]|\\.)*)"\s*,'
    r'\s*"pid"\s*:\s*"?(?<device>-?[0-9]+)"?\s*,\s*"tid"\s*:\s*"?(?<stream>-?[0-9]+)"?\s*,'
    rf'\s*"ts"\s*:\s*"?(?<ts>{_TIME})"?\s*,\s*"dur"\s*:\s*"?(?<dur>{_TIME})"?\s*[,}}]'
)
"""An event in the field order of both writers in torch, after its `"ph"`. Any other order is parsed by `json`, which is much
slower."""
_ARGUMENTS: Final = {
    "correlation": r'"correlation"\s*:\s*"?(\d{1,18})\b',
    "bytes": r'"bytes"\s*:\s*"?(\d{1,18})\b',
    "collective": r'"Collective name"\s*:\s*"([^"\\]+)"',
    "elements": r'"In msg nelems"\s*:\s*"?(\d{1,15})\b',
    "dtype": r'"dtype"\s*:\s*"([^"\\]+)"',
    "group": r'"Process Group Name"\s*:\s*"([^"\\]+)"',
}
_JSON_ARGUMENTS: Final = ("correlation", "bytes", "Collective name", "In msg nelems", "dtype", "Process Group Name")
_FIELDS: Final = ("cat", "name", "device", "stream", "ts", "dur", *_ARGUMENTS)
# Made once: a small file is read in less time than it takes to make these for each piece of it.
_CATEGORY_OF: Final = pl.col("text").str.extract(rf'{_BEGIN}"([^"\\]*)"').alias("cat")
_IN_OTHER_ORDER: Final = pl.col("cat").is_null() & pl.col("text").str.contains(r'(?s)^.{0,13}"X"')
_IS_OF_DEVICE: Final = pl.col("cat").is_in(_OF_DEVICE)
_NAMES_HOST, _NAMES_DEVICE = (
    pl.col("text").str.contains(rf'"cat"\s*:\s*"(?:{"|".join(names)})"') for names in (_OF_HOST, _OF_DEVICE)
)
_FIELDS_OF: Final = pl.col("text").str.extract_groups(_EVENT).alias("event")
_ARGUMENTS_OF: Final = [pl.col("text").str.extract(pattern).alias(name) for name, pattern in _ARGUMENTS.items()]
_TEXT: Final = dict.fromkeys(_FIELDS, pl.String())
SCHEMA: Final = {
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
"""Columns of an event. Text is converted to numbers block by block, which reduces its memory to a fifth."""
LAUNCH_SCHEMA: Final = {name: SCHEMA[name] for name in ("name", "ts", "correlation")}


def texts(path: Path, damage: Counter[str]) -> Iterator[str]:
    """The file in pieces of about 4 MiB, none of which ends within an event."""
    rest = b""
    try:
        if not path.is_file():
            raise FileNotFoundError(path)
        with open(path, "rb") as file:
            is_gzip = file.read(2) == b"\x1f\x8b"
        with cast(IO[bytes], gzip.open(path, "rb")) if is_gzip else open(path, "rb") as file:
            for block in iter(lambda: file.read(_BLOCK_BYTES), b""):
                rest += block
                end = rest.rfind(b'"ph"')
                if end > 0:
                    yield rest[:end].decode("utf-8", "replace")
                    rest = rest[end:]
                if len(rest) > _PIECE_BYTES:
                    damage["data that is not an event"] += 1
                    return
    except FileNotFoundError:
        damage["no trace of this window was written"] += 1
    except OSError as error:
        damage[f"cannot be read: {error.strerror or 'not a gzip file'}"] += 1
    except (EOFError, zlib.error):
        damage["truncated or corrupt gzip data"] += 1
    if rest:
        yield rest.decode("utf-8", "replace")


class Events:
    """The events of one file, collected piece by piece."""

    def __init__(self, ranges: str | None = None) -> None:
        """`ranges`: an expression that finds the names of ranges of the host, besides what is read anyway."""
        self._is_range = pl.col("text").str.contains(rf'"name"\s*:\s*"(?:{ranges})') if ranges else pl.lit(False)
        self._of_host: list[pl.DataFrame] = []
        self._of_device: list[pl.DataFrame] = []
        self._launches: list[pl.DataFrame] = []
        self.heading = ""
        """Text before the first event and after the last."""
        self._tail = ""
        self._num_pieces = 0

    def add(self, text: str, damage: Counter[str]) -> None:
        """Add the events of a piece. Each begins with `"ph"`, the first field in both writers."""
        parts = pl.Series("text", [text]).str.split('"ph"').explode()
        if not self._num_pieces:
            before = parts[0]
            self.heading = before[:_HEADING_CHARS]
            damage["its events are not in the format of Kineto"] += len(parts) > 1 and not before.rstrip().endswith("{")
        self._num_pieces += 1
        if len(parts) > 1:
            self._parse(parts[1:-1], damage)
            if self._tail:
                self._parse(pl.Series("text", [self._tail]), damage)
            self._tail = parts[-1]

    def finish(self, damage: Counter[str]) -> None:
        """Add the last event if it is complete, and the text after it."""
        self.heading += self._tail[-_HEADING_CHARS:]
        end = (self._tail or self.heading).rstrip()
        closed = end.count("}") - end.count("{")
        # Brackets that must be closed at the end: the last event, if there is one, and the outer object or array.
        if closed < (2 if self._tail else 0) - (1 if self._tail and end.endswith("]") else 0):
            damage["truncated: its end is missing"] += 1
        elif self._num_pieces and not self._tail and '"traceEvents"' not in self.heading:
            damage["not a Kineto trace"] += 1
        if self._tail and closed > 0:
            self._parse(pl.Series("text", [self._tail]), damage)

    def _parse(self, events: pl.Series, damage: Counter[str]) -> None:
        frame = events.to_frame().with_columns(_CATEGORY_OF)
        other = frame.filter(_IN_OTHER_ORDER)
        if len(other):
            self._parse_slowly(other, damage)
        self._add_ranges(frame.filter(pl.col("cat").is_in(_OF_HOST) & self._is_range)["text"], damage)
        found = frame.filter(_IS_OF_DEVICE).select("text", _FIELDS_OF).unnest("event")
        is_launch = pl.col("cat").is_in(_LAUNCHES)
        self._launches.append(_convert_types(found.filter(is_launch).with_columns(_ARGUMENTS_OF[0]), LAUNCH_SCHEMA))
        self._of_device.append(_convert_types(found.filter(~is_launch).with_columns(_ARGUMENTS_OF), SCHEMA))
        self._add_activities(found.filter(pl.col("cat").is_null())["text"], damage)

    def _parse_slowly(self, events: pl.DataFrame, damage: Counter[str]) -> None:
        """Add events that do not begin with their category."""
        self._add_ranges(events.filter(_NAMES_HOST & self._is_range)["text"], damage)
        self._add_activities(events.filter(_NAMES_DEVICE)["text"], damage)

    def _add_ranges(self, events: pl.Series, damage: Counter[str]) -> None:
        if len(events):
            self._of_host.append(_convert_types(_parse_by_json(events, damage), SCHEMA))

    def _add_activities(self, events: pl.Series, damage: Counter[str]) -> None:
        if len(events):
            found = _parse_by_json(events, damage)
            is_launch = pl.col("cat").is_in(_LAUNCHES)
            self._launches.append(_convert_types(found.filter(is_launch), LAUNCH_SCHEMA))
            self._of_device.append(_convert_types(found.filter(~is_launch), SCHEMA))

    @property
    def ranges(self) -> pl.DataFrame:
        """Ranges of the host that were asked for; columns of `SCHEMA`, where `device` and `stream` are process and thread."""
        return pl.concat([pl.DataFrame(schema=SCHEMA), *self._of_host])

    @property
    def of_device(self) -> pl.DataFrame:
        """Kernels, copies and memsets; columns of `SCHEMA`."""
        return pl.concat([pl.DataFrame(schema=SCHEMA), *self._of_device])

    @property
    def launches(self) -> pl.DataFrame:
        """Calls of the CUDA runtime and driver; columns of `LAUNCH_SCHEMA`."""
        return pl.concat([pl.DataFrame(schema=LAUNCH_SCHEMA), *self._launches])


def _parse_by_json(events: pl.Series, damage: Counter[str]) -> pl.DataFrame:
    """Parse events whose fields are in another order, or that are malformed."""
    rows = []
    decoder = json.JSONDecoder(parse_float=str)
    for text in events:
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
            rows.append((*head, *(_field(arguments.get(name)) for name in _JSON_ARGUMENTS)))
    return pl.DataFrame(rows, schema=_TEXT, orient="row")


def _field(value: Any) -> str | None:
    return str(value) if isinstance(value, str | int) and not isinstance(value, bool) else None


def _convert_types(events: pl.DataFrame, schema: Mapping[str, pl.DataType]) -> pl.DataFrame:
    """Convert the text of events to the types of `schema`."""
    return events.select(_CONVERTED[name] for name in schema)


def _whole(name: str) -> pl.Expr:
    return pl.col(name).cast(pl.Int64, strict=False)


def _nanoseconds(name: str) -> pl.Expr:
    """Convert microseconds as text to nanoseconds exactly; a double lacks the precision."""
    parts = pl.col(name).str.split_exact(".", 1)
    whole = parts.struct.field("field_0").cast(pl.Int64, strict=False)
    thousandths = parts.struct.field("field_1").fill_null("").str.slice(0, 3).str.pad_end(3, "0").cast(pl.Int64, strict=False)
    possible = whole.is_between(0, LATEST_NS // 1000) & ~pl.col(name).str.starts_with("-")
    return pl.when(possible).then(whole * 1000 + thousandths)


_CONVERTED: Final = {
    name: (_whole(name) if dtype == pl.Int64() else pl.col(name).cast(dtype)).alias(name) for name, dtype in SCHEMA.items()
} | {
    "ts": _nanoseconds("ts").alias("ts"),
    "dur": _nanoseconds("dur").alias("dur"),
    "correlation": _whole("correlation").replace(0, None).alias("correlation"),
}
