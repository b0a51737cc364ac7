"""Traces of DFTracer (.pfw: an event of Chrome's JSON format per line, with times in microseconds;
plain or gzipped).

in the file                                       span
POSIX, STDIO: open, open64, fopen, ...            open     file
POSIX, STDIO: read, pread, preadv, fread, ...     read     file, bytes (`ret`), offset; where the bytes came from is not known
other calls of POSIX and STDIO                    left out, and counted
compute, comm, device, checkpoint (its AI names)  compute, comm, h2d, checkpoint
dataloader: fetch                                 wait
data: preprocess, item                            transform
other events of the program                       user
"""  # noqa: E501

import zlib
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

import numpy as np
import polars as pl

from ioprof.errors import CommandError
from ioprof.format.inflate import BLOCK_BYTES, GZIP, inflate
from ioprof.format.schema import KINDS, SOURCES
from ioprof.interchange.dftracer_events import NONE, Events, Found, Name, Numbers
from ioprof.interchange.imported import Imported

CLOCK: Final = "the wall clock of each host, as DFTracer wrote it"
_LONGEST_LINE: Final = 1 << 20
_MOST_EVENTS: Final = 50_000_000
_OPENS: Final = frozenset(
    {
        "open",
        "open64",
        "openat",
        "openat64",
        "creat",
        "creat64",
        "fopen",
        "fopen64",
        "fopen_64",
        "__open_2",
        "__openat_2",
    }
)
_READS: Final = frozenset(
    {
        "read",
        "pread",
        "pread64",
        "readv",
        "preadv",
        "preadv64",
        "preadv2",
        "fread",
        "__read_chk",
        "__pread_chk",
    }
)
_KEPT: Final = tuple(_OPENS | _READS)
_CALLS: Final = ("POSIX", "STDIO")
_NAME_CHARS: Final = 200


def read_dftracer(paths: Sequence[Path]) -> list[Imported]:
    """The files of one job. `CommandError` for a file that holds no event of DFTracer."""
    return [_File(path).read() for path in paths]


class _File:
    def __init__(self, path: Path) -> None:
        self._path = path
        self._damage: Counter[str] = Counter()

    def read(self) -> Imported:
        events = Events(_CALLS, _KEPT)
        for text, start, end in self._lines():
            events.add(text, start, end, self._damage)
            if len(events) > _MOST_EVENTS:
                raise CommandError(
                    f"{self._path}: more than {_MOST_EVENTS:,} events; import fewer files"
                )
        if not len(events):
            reasons = "".join(f"; {what}" for what, count in self._damage.items() if count)
            raise CommandError(
                f"{self._path}: not a trace of DFTracer: no line of it is an event{reasons}"
            )
        found = events.finish()
        for (_, name), count in found.left_out.items():
            self._damage[
                f"a call of {'write' if 'write' in name else 'another kind than reads'} was"
                " left out"
            ] += count
        return Imported(
            self._path, self._table(found), damage=self._damage, has_reads=True, profiler="DFTracer"
        )

    def _lines(self) -> Iterator[tuple[bytes, int, int]]:
        """Texts, and where whole lines begin and end in them."""
        rest = b""
        try:
            for block in self._blocks():
                first, last = block.find(b"\n"), block.rfind(b"\n")
                rest += block[: first if first >= 0 else len(block)]
                if first >= 0 or len(rest) > _LONGEST_LINE:
                    yield rest, 0, len(rest)
                    rest = b""
                if first < last:
                    yield block, first + 1, last
                if first >= 0:
                    rest = block[last + 1 :]
        except (EOFError, zlib.error):
            self._damage["truncated or corrupt gzip data"] += 1
        except OSError as error:
            raise CommandError(
                f"{self._path}: cannot be read ({error.strerror or error})"
            ) from None
        yield rest, 0, len(rest)

    def _blocks(self) -> Iterator[bytes]:
        with open(self._path, "rb") as file:
            is_gzip = file.read(2) == b"\x1f\x8b"
            file.seek(0)
            yield from inflate(file, GZIP) if is_gzip else iter(lambda: file.read(BLOCK_BYTES), b"")

    def _table(self, found: Found) -> pl.DataFrame:
        columns = found.columns
        is_possible = (columns["start_ns"] != NONE) & (columns["length_ns"] != NONE)
        if not is_possible.all():
            self._damage["an event with impossible times was left out"] += int((~is_possible).sum())
            columns = {name: column[is_possible] for name, column in columns.items()}
        kinds = [_kind(*call) for call in found.calls]
        is_read = np.array([kind == "read" for kind in kinds], bool)
        names = [
            name[:_NAME_CHARS] if kind == "user" else None
            for kind, (_, name) in zip(kinds, found.calls, strict=True)
        ]
        of_calls = pl.DataFrame(
            {
                "kind": pl.Series(kinds, dtype=pl.Enum(KINDS)),
                "name": pl.Series(names, dtype=pl.String).cast(pl.Categorical()),
                "source": pl.Series(
                    [each or None for each in np.where(is_read, "unknown", "").tolist()],
                    dtype=pl.Enum(SOURCES),
                ),
            }
        )
        size = columns["ret"]
        # a call that failed returned -1
        size = np.where(is_read[columns["call"]] & (size != NONE), np.maximum(size, 0), NONE)
        # A hash may be explained after its first use.
        meanings = {(is_path, number): name for _, is_path, number, name in found.explained}
        return pl.DataFrame(
            {
                "start_ns": columns["start_ns"],
                "end_ns": columns["start_ns"] + columns["length_ns"],
                "host": _names(found, columns["host"], meanings, False),
                "path": _names(found, columns["path"], meanings, True),
                "pid": _numbers(columns["pid"]).cast(pl.Int32, strict=False),
                "tid": _numbers(columns["tid"]).cast(pl.Int32, strict=False),
                "bytes": _numbers(size),
                "offset": _numbers(columns["offset"]),
                **of_calls[columns["call"].astype(np.uint32)].to_dict(),
            }
        )


def _names(found: Found, places: Numbers, meanings: dict[Name, str], is_path: bool) -> pl.Series:
    """The names at places in those that were found, or what a hash stands for."""
    is_used = np.zeros(len(found.names) + 1, bool)
    places = np.where(places == NONE, len(found.names), places)
    is_used[places] = True
    texts: list[str | None] = [None] * len(is_used)
    for place in np.flatnonzero(is_used[:-1]).tolist():
        is_hash, text = found.names[place]
        texts[place] = meanings.get((is_path, text), f"hash {text}") if is_hash else text
    return pl.Series(texts, dtype=pl.String).cast(pl.Categorical())[places.astype(np.uint32)]


def _numbers(column: Numbers) -> pl.Series:
    is_none = column == NONE
    return pl.Series(column).set(pl.Series(is_none), None) if is_none.any() else pl.Series(column)


def _kind(category: str, name: str) -> str:
    if category in _CALLS:
        return "read" if name in _READS else "open"
    name = name.lower()
    if category in ("compute", "comm", "checkpoint"):
        return category
    if category == "device":
        return "h2d" if "transfer" in name else "user"
    if category == "dataloader":
        return "wait" if "fetch" in name else "user"
    if category == "data":
        return "transform" if name.endswith(("preprocess", "item")) else "user"
    return "user"
