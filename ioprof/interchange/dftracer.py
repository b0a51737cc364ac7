"""Traces of DFTracer (.pfw: an event of Chrome's JSON format per line, with times in microseconds; plain or gzipped).

in the file                                       span
POSIX, STDIO: open, open64, fopen, ...            open     file
POSIX, STDIO: read, pread, preadv, fread, ...     read     file, bytes (`ret`), offset; where the bytes came from is not known
other calls of POSIX and STDIO                    left out, and counted
compute, comm, device, checkpoint (its AI names)  compute, comm, h2d, checkpoint
dataloader: fetch                                 wait
data: preprocess, item                            transform
other events of the program                       user
"""

import gzip
import io
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final, cast

import msgspec
import polars as pl

from ioprof.errors import CommandError
from ioprof.interchange.imported import Imported

CLOCK: Final = "the wall clock of each host, as DFTracer wrote it"
_LONGEST_LINE: Final = 1 << 20
_BLOCK_BYTES: Final = 1 << 18
_MOST_EVENTS: Final = 50_000_000
_OPENS: Final = frozenset(
    {"open", "open64", "openat", "openat64", "creat", "creat64", "fopen", "fopen64", "fopen_64", "__open_2", "__openat_2"}
)
_READS: Final = frozenset(
    {"read", "pread", "pread64", "readv", "preadv", "preadv64", "preadv2", "fread", "__read_chk", "__pread_chk"}
)
_KEPT: Final = _OPENS | _READS
_CALLS: Final = frozenset({"POSIX", "STDIO"})
_NAME_CHARS: Final = 200


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
    ts: int | float | str = 0
    dur: int | float | str = 0
    args: _Arguments | None = None


def read_dftracer(paths: Sequence[Path]) -> list[Imported]:
    """The files of one job. `CommandError` for a file that holds no event of DFTracer."""
    return [_File(path).read() for path in paths]


class _File:
    def __init__(self, path: Path) -> None:
        self._path = path
        self._damage: Counter[str] = Counter()
        self._rows: list[tuple[object, ...]] = []
        self._hashes: dict[tuple[str, str], str] = {}

    def read(self) -> Imported:
        decode = msgspec.json.Decoder(_Event).decode
        num_events = 0
        left_out: Counter[str] = Counter()
        for line in self._lines():
            stripped = line.strip(b" \t\r\n,")
            if stripped in (b"[", b"]", b""):
                continue
            try:
                event = decode(stripped)
            except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
                self._damage["a line that is not an event"] += 1
                continue
            num_events += 1
            if num_events > _MOST_EVENTS:
                raise CommandError(f"{self._path}: more than {_MOST_EVENTS:,} events; import fewer files")
            if event.cat in _CALLS and event.ph == "X" and event.name not in _KEPT:
                left_out["write" if "write" in event.name else "another kind than reads"] += 1
            else:
                self._add(event)
        if not num_events:
            raise CommandError(f"{self._path}: not a trace of DFTracer: no line of it is an event")
        self._damage += Counter({f"a call of {kind} was left out": count for kind, count in left_out.items()})
        return Imported(self._path, self._table(), damage=self._damage, has_reads=True, profiler="DFTracer")

    def _lines(self) -> Iterator[bytes]:
        rest = b""
        try:
            with open(self._path, "rb") as file:
                is_gzip = file.read(2) == b"\x1f\x8b"
            with cast(io.BufferedReader, gzip.open(self._path, "rb") if is_gzip else open(self._path, "rb")) as file:
                while block := file.read1(_BLOCK_BYTES):  # splitting is faster than readline, which gzip has in Python
                    *lines, rest = (rest + block).split(b"\n")
                    yield from lines
                    if len(rest) > _LONGEST_LINE:
                        yield rest
                        rest = b""
        except (EOFError, zlib.error):
            self._damage["truncated or corrupt gzip data"] += 1
        except OSError as error:
            raise CommandError(f"{self._path}: cannot be read ({error.strerror or error})") from None
        yield rest

    def _add(self, event: _Event) -> None:
        given = event.args or _Arguments()
        if event.ph == "M":
            if event.name in ("FH", "HH") and given.value is not None:
                self._hashes[event.name, str(given.value)] = str(given.name)
            return
        if event.ph == "X" and event.cat != "dftracer":
            label = event.name[:_NAME_CHARS]
            names = given.hostname, given.hhash, given.fname, given.fhash
            self._rows.append((event.ts, event.dur, _kind(event), event.pid, event.tid, given.ret, given.offset, label, *names))

    def _table(self) -> pl.DataFrame:
        columns: Any = zip(*self._rows, strict=True) if self._rows else [()] * 12
        ts, dur, kind, pid, tid, ret, offset, label, hostname, hhash, fname, fhash = columns
        # A hash may be explained after its first use.
        host, path = self._resolve("HH", hostname, hhash), self._resolve("FH", fname, fhash)
        is_read = pl.col("kind") == "read"
        table = pl.DataFrame({
            "start_ns": _nanoseconds(ts), "length_ns": _nanoseconds(dur), "kind": pl.Series(kind, dtype=pl.String),
            "host": pl.Series(host, dtype=pl.String), "pid": _whole(pid), "tid": _whole(tid), "bytes": _whole(ret),
            "offset": _whole(offset), "path": pl.Series(path, dtype=pl.String), "name": pl.Series(label, dtype=pl.String),
        })  # fmt: skip
        kept = table.drop_nulls(["start_ns", "length_ns"])
        if len(kept) < len(table):
            self._damage["an event with impossible times was left out"] += len(table) - len(kept)
        return kept.with_columns(
            pl.col("pid", "tid").cast(pl.Int32, strict=False),
            end_ns=pl.col("start_ns") + pl.col("length_ns"),
            bytes=pl.when(is_read).then(pl.col("bytes").clip(0)),  # a call that failed returned -1
            name=pl.when(pl.col("kind") == "user").then(pl.col("name")),
            source=pl.when(is_read).then(pl.lit("unknown")),
        ).drop("length_ns")

    def _resolve(self, kind: str, names: Sequence[str | None], numbers: Sequence[int | str | None]) -> list[str | None]:
        """The names, or where there is none what the hash stands for."""

        def text(name: str | None, number: int | str | None) -> str | None:
            return name if name is not None or number is None else self._hashes.get((kind, str(number)), f"hash {number}")

        pairs = list(zip(names, numbers, strict=True))
        known = {pair: text(*pair) for pair in set(pairs)}
        return [known[pair] for pair in pairs]


def _kind(event: _Event) -> str:
    if event.cat in _CALLS:
        return "read" if event.name in _READS else "open"
    name = event.name.lower()
    if event.cat in ("compute", "comm", "checkpoint"):
        return event.cat
    if event.cat == "device":
        return "h2d" if "transfer" in name else "user"
    if event.cat == "dataloader":
        return "wait" if "fetch" in name else "user"
    if event.cat == "data":
        return "transform" if name.endswith(("preprocess", "item")) else "user"
    return "user"


def _whole(values: Sequence[int | float | str | None]) -> pl.Series:
    """Whole numbers, which may be texts; null for what is none, or needs more than 62 bits."""
    found = _as_they_are(values)
    return _within(_converted(values, int) if found is None else found, 1 - (1 << 62), (1 << 62) - 1)


def _nanoseconds(values: Sequence[int | float | str]) -> pl.Series:
    """Microseconds as nanoseconds; null for what cannot be a time."""
    found = _as_they_are(values)
    if found is None:
        converted = _converted(values, lambda value: value * 1000 if isinstance(value, int) else round(float(value) * 1000))
        return _within(converted, 0, (1 << 61) - 1)
    return _within(found, 0, (1 << 61) // 1000) * 1000


def _as_they_are(values: Sequence[Any]) -> pl.Series | None:
    """The values, if all are integers, as newer versions write them."""
    try:
        return pl.Series(values, dtype=pl.Int64)
    except (TypeError, OverflowError):
        return None


def _converted(values: Sequence[Any], convert: Callable[[Any], int]) -> pl.Series:
    def integer(value: Any) -> int | None:
        try:
            number = None if value is None else convert(value)
        except (ValueError, OverflowError):
            return None
        return number if number is not None and abs(number) < 1 << 63 else None

    return pl.Series([integer(value) for value in values], dtype=pl.Int64)


def _within(values: pl.Series, least: int, most: int) -> pl.Series:
    return values.to_frame("value").select(pl.when(pl.col("value").is_between(least, most)).then(pl.col("value"))).to_series()
