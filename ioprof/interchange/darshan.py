"""Logs of Darshan with extended tracing (DXT): every read through POSIX calls, by file and rank.

The format of versions 3.10 to 3.41, as in Darshan's `include/darshan-log-format.h` and
`darshan-dxt-log-format.h`: a header with the places of the regions, each of which is compressed.
Times are seconds since the start of the job. Where the bytes came from is not known. Writes are
left out, and counted.
"""

import bz2
import io
import struct
import zlib
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
import polars as pl

from ioprof.errors import CommandError
from ioprof.format.inflate import BLOCK_BYTES, ZLIB, inflate
from ioprof.format.schema import KINDS, SOURCES
from ioprof.interchange.darshan_reads import Layout, Reads, reads_in
from ioprof.interchange.imported import Imported

CLOCK: Final = "the clock of each rank since the job's start, as Darshan wrote it"
_MAGIC: Final = 6567223
_VERSIONS: Final = ("3.10", "3.20", "3.21", "3.41")
_POSIX: Final = 1
_DXT_POSIX: Final = {"3.10": 8, "3.20": 9, "3.21": 9, "3.41": 10}
"""Number of the module, by version."""
_MOST_BYTES: Final = 4 << 30
"""Of one region, decompressed."""
_POSIX_RECORD: Final = 16 + 69 * 8 + 17 * 8  # of version 4 of the module
_POSIX_BYTES_READ: Final = 16 + 14 * 8


def read_darshan(paths: Sequence[Path]) -> list[Imported]:
    """The logs of one job. `CommandError` for a file that is no log, or has no DXT trace."""
    return [_Log(path).read() for path in paths]


@dataclass
class _Region:
    offset: int
    length: int


class _Log:
    def __init__(self, path: Path) -> None:
        self._path = path
        self._damage: Counter[str] = Counter()
        try:
            self._data = memoryview(path.read_bytes())
        except OSError as error:
            raise CommandError(f"{path}: cannot be read ({error.strerror or error})") from None
        self._version = bytes(self._data[:8]).split(b"\0")[0].decode("ascii", "replace")
        if self._version not in _VERSIONS:
            known = (
                "a log of Darshan 3.0 has no traces"
                if self._version == "3.00"
                else "not a log of Darshan 3.1 to 3.5"
            )
            raise self._error(known)
        self._read_header()

    def _error(self, what: str) -> CommandError:
        return CommandError(f"{self._path}: {what}")

    def _read_header(self) -> None:
        is_new = self._version == "3.41"
        modules, size, maps = (64, 1328, 32) if is_new else (16, 360, 24)
        if len(self._data) < size:
            raise self._error("truncated within its header")
        self._order = "<" if struct.unpack_from("<q", self._data, 8)[0] == _MAGIC else ">"
        if struct.unpack_from(f"{self._order}q", self._data, 8)[0] != _MAGIC:
            raise self._error("not a log of Darshan (its magic number is wrong)")
        self._compression = self._data[16]
        partial = struct.unpack_from(
            f"{self._order}{'Q' if is_new else 'I'}", self._data, 24 if is_new else 20
        )[0]
        pairs = struct.unpack_from(f"{self._order}{2 * modules + 2}Q", self._data, maps)
        regions = [_Region(*pair) for pair in zip(pairs[::2], pairs[1::2], strict=True)]
        self._names, self._modules = regions[0], regions[1:]
        self._module_versions = struct.unpack_from(
            f"{self._order}{modules}I", self._data, maps + 16 * (modules + 1)
        )
        self._job = _Region(size, max(0, self._names.offset - size))
        self._dxt = _DXT_POSIX[self._version]
        if partial >> self._dxt & 1:
            self._damage["Darshan's memory for traces was full: later reads are missing"] += 1

    def read(self) -> Imported:
        """The reads of all ranks."""
        if not self._modules[self._dxt].length:
            raise self._error(
                "has no DXT trace, only sums per file; run the job with DXT_ENABLE_IO_TRACE=1"
            )
        start_ns = self._start_ns()
        names = dict(self._names_by_id())
        reads = self._reads(start_ns)
        spans = (
            self._spans(reads, names)
            if reads.files
            else pl.DataFrame(schema={"start_ns": pl.Int64, "end_ns": pl.Int64})
        )
        self._compare(spans)
        return Imported(
            self._path, spans, damage=self._damage, has_reads=True, profiler="Darshan DXT"
        )

    def _start_ns(self) -> int:
        job = self._inflate(self._job)
        fields = struct.unpack_from(f"{self._order}3q", job) if len(job) >= 24 else (0, 0, 0)
        seconds, nanoseconds = fields[1], fields[2] if self._version == "3.41" else 0
        return (
            int(seconds * 10**9 + nanoseconds)
            if 0 < seconds < 1 << 32 and 0 <= nanoseconds < 10**9
            else 10**18
        )

    def _names_by_id(self) -> Iterator[tuple[int, str]]:
        data = self._inflate(self._names)
        place = 0
        while place + 9 <= len(data):
            end = data.find(b"\0", place + 8)
            if end < 0:
                self._damage["truncated within its names"] += 1
                return
            yield (
                struct.unpack_from(f"{self._order}Q", data, place)[0],
                data[place + 8 : end].decode("utf-8", "backslashreplace"),
            )
            place = end + 1

    def _reads(self, start_ns: int) -> Reads:
        layout = Layout(self._order, has_threads=self._module_versions[self._dxt] >= 2)
        reads = reads_in(self._blocks(self._modules[self._dxt]), layout, start_ns)
        if reads.num_writes:
            self._damage["a call of write was left out"] += reads.num_writes
        if reads.is_damaged:
            self._damage["truncated or damaged within its trace"] += 1
        if reads.num_impossible:
            self._damage["a read with impossible times or sizes was left out"] += (
                reads.num_impossible
            )
        return reads

    def _spans(self, reads: Reads, names: dict[int, str]) -> pl.DataFrame:
        files, columns = reads.files, reads.columns
        hosts = [file.host.decode("utf-8", "backslashreplace") or None for file in files]
        of_files = pl.DataFrame(
            {
                "host": pl.Series(hosts, dtype=pl.String).cast(pl.Categorical()),
                "path": pl.Series(
                    [names.get(file.number, f"record {file.number:x}") for file in files]
                ).cast(pl.Categorical()),
                "rank": pl.Series([file.rank for file in files], dtype=pl.Int32),
                "kind": pl.Series(["read"], dtype=pl.Enum(KINDS)).new_from_index(0, len(files)),
                "source": pl.Series(["unknown"], dtype=pl.Enum(SOURCES)).new_from_index(
                    0, len(files)
                ),
            }
        )
        place = np.repeat(
            np.arange(len(files), dtype=np.uint32), [file.num_reads for file in files]
        )
        offset = pl.Series(columns["offset"])
        has_unknown = bool((columns["offset"] < 0).any())
        spans = {**columns, "offset": offset.set(offset < 0, None) if has_unknown else offset}
        return pl.DataFrame({**spans, **of_files[place].to_dict()})

    def _compare(self, spans: pl.DataFrame) -> None:
        """Say so where the trace has fewer bytes than Darshan counted in the same files."""
        if self._module_versions[_POSIX] != 4 or "bytes" not in spans.columns:
            return
        data = self._inflate(self._modules[_POSIX])
        records = len(data) // _POSIX_RECORD
        sums = (
            struct.unpack_from(f"{self._order}q", data, place * _POSIX_RECORD + _POSIX_BYTES_READ)[
                0
            ]
            for place in range(records)
        )
        counted, seen = sum(max(0, each) for each in sums), int(spans["bytes"].sum())
        if seen < counted:
            self._damage[
                f"the trace has {seen:,} of the {counted:,} bytes that Darshan counted by POSIX"
                " calls"
            ] += 1

    def _inflate(self, region: _Region) -> bytes:
        return b"".join(self._blocks(region))

    def _blocks(self, region: _Region) -> Iterator[bytes]:
        """The bytes of a region, which may be several compressed streams, of which each rank wrote
        one.
        """
        if region.offset + region.length > len(self._data):
            self._damage["truncated: a region ends after the file"] += 1
        data = self._data[region.offset : region.offset + region.length]
        if self._compression == 2:
            yield bytes(data)
            return
        if self._compression not in (0, 1):
            raise self._error(f"compressed in an unknown way ({self._compression})")
        size = 0
        try:
            for block in (
                inflate(io.BytesIO(data), ZLIB) if self._compression == 0 else _bunzip(bytes(data))
            ):
                yield block
                size += len(block)
                if size > _MOST_BYTES:
                    raise self._error(f"one of its regions has more than {_MOST_BYTES >> 30} GiB")
        except (zlib.error, OSError, ValueError):
            self._damage["corrupt compressed data"] += 1
        except EOFError:
            self._damage["truncated compressed data"] += 1


def _bunzip(data: bytes) -> Iterator[bytes]:
    while data:
        stream = bz2.BZ2Decompressor()
        while not stream.eof:
            block = stream.decompress(data, BLOCK_BYTES)
            if not block and not stream.eof and stream.needs_input:
                raise EOFError
            yield block
            data = b""
        data = stream.unused_data
