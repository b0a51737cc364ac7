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
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final, cast

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


class _Arguments(msgspec.Struct):
    ret: int | str | None = None
    offset: int | str | None = None
    fname: str | None = None
    fhash: int | str | None = None
    hostname: str | None = None
    hhash: int | str | None = None
    name: int | str | None = None
    value: int | str | None = None


class _Event(msgspec.Struct):
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
        if event.ph != "X" or event.cat == "dftracer":
            return
        kind = _kind(event)
        start, length = _nanoseconds(event.ts), _nanoseconds(event.dur)
        if start is None or length is None:
            self._damage["an event with impossible times was left out"] += 1
            return
        moved = _whole(given.ret) if kind == "read" else None
        if moved is not None and moved < 0:
            moved = 0  # the call failed
        label = event.name[:_NAME_CHARS] if kind == "user" else None
        file = given.fname if given.fname is not None else None if given.fhash is None else ("FH", str(given.fhash))
        host = given.hostname if given.hostname is not None else None if given.hhash is None else ("HH", str(given.hhash))
        self._rows.append(
            (start, start + length, kind, host, _whole(event.pid), _whole(event.tid), moved, _whole(given.offset), file, label)
        )

    def _table(self) -> pl.DataFrame:
        columns = ("start_ns", "end_ns", "kind", "host", "pid", "tid", "bytes", "offset", "path", "name")
        resolved = (
            (*row[:3], self._resolve(row[3]), *row[4:8], self._resolve(row[8]), row[9]) for row in self._rows
        )  # a hash may be explained after its first use
        schema = dict.fromkeys(columns, pl.Int64()) | dict.fromkeys(("kind", "host", "path", "name"), pl.String())
        table = pl.DataFrame(resolved, schema=schema, orient="row", strict=False)
        source = pl.when(pl.col("kind") == "read").then(pl.lit("unknown"))
        return table.with_columns(pl.col("pid", "tid").cast(pl.Int32, strict=False), source=source)

    def _resolve(self, value: object) -> str | None:
        if isinstance(value, tuple):
            return self._hashes.get(value, f"hash {value[1]}")
        return None if value is None else str(value)


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


def _whole(value: int | float | str | None) -> int | None:
    try:
        number = int(value) if value is not None else None
    except (ValueError, OverflowError):
        return None
    return number if number is not None and -(1 << 62) < number < 1 << 62 else None


def _nanoseconds(value: int | float | str) -> int | None:
    """Microseconds as nanoseconds."""
    try:
        number = value * 1000 if isinstance(value, int) else round(float(value) * 1000)
    except (ValueError, OverflowError):
        return None
    return number if 0 <= number < 1 << 61 else None
