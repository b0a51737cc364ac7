"""How a job read: times by source and size, its slowest files, how many reads were in progress, and
costly ways of reading.

All of it is found in one pass over the reads, in parts of bounded size.
"""

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Final

import numpy as np
import polars as pl

from ioprof.analysis.charge.duration_classes import UNTIMED, quantiles_ns
from ioprof.analysis.ranks.variation import steps_bounds
from ioprof.analysis.reads.queue_depth import DepthOverTime
from ioprof.analysis.reads.read_sums import (
    IS_CALL,
    IS_OPEN,
    IS_READ,
    PAGE_BYTES,
    SIZE_STEP,
    ReadSums,
)
from ioprof.analysis.reads.read_use import (
    LEAST_FETCHED,
    MOST_AMPLIFICATION,
    ReadsOfBatches,
    reads_of_ranks,
    reads_of_workers,
    repeated_reads,
)
from ioprof.analysis.reads.sources import CODE, INSTALLED, METADATA, is_received
from ioprof.analysis.reads.storage_bytes import ProcessId, StorageBytes
from ioprof.format.run_record import FileReads, ReadGroup, ReadPattern, Reads
from ioprof.format.schema import READAHEAD, READAHEAD_ENDED, SOURCES
from ioprof.format.trace import Trace

SMALL_READS: Final = "small reads"
SEARCHING: Final = "searching"
AMPLIFIED: Final = "amplified"
MAP_READAHEAD: Final = "readahead of a map"
PATTERNS: Final = (
    SMALL_READS,
    SEARCHING,
    "reopening",
    "page at a time",
    MAP_READAHEAD,
    "readahead of ranges",
    AMPLIFIED,
    "readahead ended",
)

_NUM_FILES: Final = 10
_LEAST_READS: Final = 200
"""Reads, opens or faults below which no pattern is named."""
_LEAST_MOVED: Final = 0.5
"""Of all bytes of calls, what small reads must move for those from a page on to count: a file read
in large pieces may begin with a full buffer."""
_LEAST_SHARE: Final = 0.05
"""Of the time in which batches were made, from which on small reads and opens are named."""
_PIECES: Final = 16
"""Reads each time that a file is opened, from which on a sample is searched for in it, as in an
archive without an index."""
_LEAST_OPENS: Final = 5
"""Per file and epoch."""
_MOST_OPENS: Final = 2
"""Per file and process, up to which each keeps it open: it may look into it first."""
_LEAST_PART_OF_FILE: Final = 0.5
"""Of a file that is read for each time that it is opened, from which on it is a sample, which has
to be opened each time."""
_READAHEAD_BYTES: Final = 128 << 10
"""What a call fetches beyond its own bytes at most, by the kernel's default (read_ahead_kb)."""
_RANDOM_RATIO: Final = 0.5

_MAY_BE_STORAGE: Final = np.array([source in ("storage", "unknown") for source in SOURCES])


def of_data(trace: Trace, is_counted: pl.Expr, first_ns: int) -> pl.Expr:
    """Of these reads those of data: not of the job's own code, nothing before the first step unless
    it made a batch, and of installed files only what made a batch.
    """
    code, installed = (
        _files_like(trace, pattern)
        for pattern in (f"{CODE.pattern}|{METADATA.pattern}", INSTALLED.pattern)
    )
    in_batch = pl.col("batch").is_not_null()
    is_data = in_batch | (
        (pl.col("start_ns") >= first_ns) & ~pl.col("file").is_in(installed).fill_null(value=False)
    )
    return is_counted & is_data & ~pl.col("file").is_in(code).fill_null(value=False)


def _files_like(trace: Trace, pattern: str) -> pl.Series:
    """The numbers of the files whose path has this pattern."""
    return trace.files.filter(pl.col("path").str.contains(pattern).fill_null(value=False))[
        "file"
    ].implode()


class ReadPatterns:
    """How the reads `is_counted` were made, part by part.

    `epochs`: `rank`, `batch` and `epoch` of the batches of training.
    """

    def __init__(
        self, trace: Trace, is_counted: pl.Expr, depth: DepthOverTime, epochs: pl.DataFrame
    ) -> None:
        self._trace, self._depth, self._epochs = trace, depth, epochs
        self._is_counted = is_counted
        self._sums = ReadSums(trace.files["file"], epochs)
        self._of_batches = ReadsOfBatches(trace)
        # others: stat, close, mmap
        is_open = (
            (pl.col("kind") == "open") & pl.col("name").is_null() & pl.col("batch").is_not_null()
        )
        flags = {IS_READ: is_counted, IS_OPEN: is_open, IS_CALL: pl.col("kind") != "fault"}
        self.columns = {
            **ReadSums.columns,
            **{name: pl.col(name) for name in ("kind", "pid", "tid", "file", "offset", "source")},
            "label": pl.col("name").cast(pl.String),
            **{f"{name}_id": pl.col(name).cast(pl.Int64).fill_null(-1) for name in ("pid", "tid")},
            "flags": (
                pl.sum_horizontal(
                    flag * which.fill_null(value=False).cast(pl.UInt8)
                    for flag, which in flags.items()
                ).cast(pl.UInt8)
            ),
        }
        self._jumps = 0
        """Faults that do not continue where the one before was."""
        self._faults = 0
        self._fault_bytes = 0
        self._of_values = np.zeros(2, np.int64)
        """Of maps whose loader recorded the values that it wanted: bytes from storage, and bytes of
        values."""
        self._of_maps: Counter[int] = Counter()
        """Bytes from storage by file, of other maps."""
        self._mapped: set[int] = set()
        """Files that were read by a map, too."""

    def add(self, part: pl.DataFrame) -> None:
        """Look at the next part of the spans."""
        flags = part["flags"].to_numpy()
        self._sums.add(part, flags)
        is_read = (flags & (IS_READ | IS_OPEN)) == IS_READ
        reads = part.filter(pl.Series(is_read))
        self._add_values(reads)
        self._of_batches.add(reads)
        rows = np.flatnonzero(is_read & _MAY_BE_STORAGE[part["source_code"].to_numpy()])
        columns = (
            part[name].to_numpy() for name in ("start_ns", "end_ns", "size", "pid_id", "tid_id")
        )
        self._depth.add(*(column[rows] for column in columns))
        is_fault = (flags[rows] & IS_CALL) == 0
        if is_fault.any():
            self._add_faults(part[rows[is_fault]])

    def _add_faults(self, faults: pl.DataFrame) -> None:
        faults = faults.filter(pl.col("file").is_not_null(), pl.col("offset").is_not_null())
        ordered = faults.sort("pid", "tid", "file", "start_ns")
        ahead = pl.col("offset") - pl.col("offset").shift().over("pid", "tid", "file")
        is_jump = ~ahead.is_between(0, 2 * pl.max_horizontal("size", pl.lit(PAGE_BYTES)))
        self._jumps += int(ordered.select(is_jump.fill_null(value=False).sum()).item())
        self._faults += len(faults)
        self._fault_bytes += int(faults["size"].sum())

    def _add_values(self, reads: pl.DataFrame) -> None:
        values = reads.filter(pl.col("offset").is_null())
        is_wanted = (pl.col("label") != READAHEAD).fill_null(value=True)
        self._of_values += [
            int(values.filter(which)["size"].sum())
            for which in (pl.col("source") == "storage", is_wanted)
        ]
        maps = reads.filter(pl.col("kind") == "fault", pl.col("file") >= 0)
        self._mapped |= set(maps["file"].to_list())
        maps = maps.filter(pl.col("offset") >= 0)
        for file, size in maps.group_by("file").agg(pl.col("size").sum()).iter_rows():
            self._of_maps[file] += size

    def found(self, made_ns: int, fetched: Mapping[ProcessId, StorageBytes]) -> Reads:
        """What all parts show. `made_ns`: the time in which batches were made; `fetched`: see
        `storage_bytes.by_process`.
        """
        groups, files = self._sums.groups(), self._sums.files()
        sizes = (
            self._trace.files.drop_nulls("file").group_by("file").agg(pl.col("size_bytes").max())
        )
        files = files.join(sizes, on="file", how="left")
        file_bytes = (
            int(files["end"].cast(pl.Float64).sum())
            if len(files) and not files["end"].has_nulls()
            else None
        )
        return Reads(
            groups=tuple(_read_groups(groups)),
            files=_named(files, self._trace),
            patterns=tuple(self._patterns(groups, files, made_ns, fetched)),
            depth=self._depth.found(),
            file_bytes=file_bytes,
            times_read=int(files["bytes"].sum()) / file_bytes if file_bytes else None,
            returned=self._of_batches.found(),
            repeated=repeated_reads(self._trace, self._is_counted, files),
            shared=reads_of_ranks(self._trace, steps_bounds(self._trace)[0]),
            by_each_worker=reads_of_workers(self._trace, self._is_counted, files),
        )

    def _amplified(self, files: pl.DataFrame, num_epochs: int) -> Iterator[ReadPattern]:
        """Maps for which storage delivered more than was wanted of them: the values, where a loader
        recorded these; else at most the whole file in each epoch.
        """
        (fetched, wanted), is_of_files = self._of_values.tolist(), False
        of_maps = files.filter(
            pl.col("file").is_in(list(self._of_maps)), pl.col("size_bytes").is_not_null()
        )
        sizes = dict(of_maps.select("file", "size_bytes").iter_rows())
        if not wanted and sizes:
            fetched = sum(self._of_maps[file] for file in sizes)
            wanted, is_of_files = num_epochs * sum(sizes.values()), True
        if wanted and fetched > max(MOST_AMPLIFICATION * wanted, LEAST_FETCHED):
            facts = {"fetched_bytes": fetched, "wanted_bytes": wanted, "ratio": fetched / wanted}
            if is_of_files:
                facts["epochs"] = num_epochs
            yield ReadPattern(AMPLIFIED, facts=facts)
        ended = self._trace.rows(pl.col("name").cast(pl.String) == READAHEAD_ENDED, kinds=["fault"])
        if len(ended):
            steps = self._trace.rows(kinds=["step"])
            first, begin = (
                table["start_ns"].to_numpy().min(initial=1 << 62) for table in (ended, steps)
            )
            since_s = max(0.0, int(first - begin) / 1e9)
            facts = {"processes": len(ended), "since_s": since_s}
            yield ReadPattern("readahead ended", facts=facts)

    def of_epochs(self) -> pl.DataFrame:
        """Per epoch the accesses and bytes by source: `epoch`, `source`, `accesses`, `bytes`."""
        return self._sums.epochs()

    def _patterns(
        self,
        groups: pl.DataFrame,
        files: pl.DataFrame,
        made_ns: int,
        fetched: Mapping[ProcessId, StorageBytes],
    ) -> Iterator[ReadPattern]:
        asked = int(groups["bytes"].sum()) - self._fault_bytes
        small = self._sums.small()
        if int(small["bytes"].sum()) < _LEAST_MOVED * asked:
            small = small.filter("below_page")
        accesses, spent_ns = int(small["accesses"].sum()), int(small["took_ns"].sum())
        num_epochs = max(1, self._epochs["epoch"].n_unique())
        processes = [each.role in ("rank", "worker") for each in self._trace.run.processes]
        searched = files.filter(
            pl.col("opens") >= _LEAST_OPENS * num_epochs,
            pl.col("opens") > _MOST_OPENS * sum(processes),
            pl.col("accesses") >= _PIECES * pl.col("opens"),
            ~pl.col("file").is_in(list(self._mapped)),
        )
        if not searched.is_empty() and int(searched["took_ns"].sum()) >= max(
            0.5 * spent_ns, _LEAST_SHARE * max(made_ns, 1)
        ):
            opens, pieces, took_ns = (
                int(searched[name].sum()) for name in ("opens", "accesses", "took_ns")
            )
            facts = {"files": len(searched), "opens": opens, "pieces": pieces / opens}
            yield ReadPattern(SEARCHING, seconds=took_ns / 1e9, facts=facts)
        elif (
            self._faults < 0.5 * accesses
            and accesses >= _LEAST_READS
            and spent_ns >= _LEAST_SHARE * max(made_ns, 1)
        ):
            facts = {"reads": accesses, "each_bytes": int(small["bytes"].sum()) / accesses}
            yield ReadPattern(SMALL_READS, seconds=spent_ns / 1e9, facts=facts)
        in_part = files.filter(
            pl.col("bytes") < _LEAST_PART_OF_FILE * pl.col("opens") * pl.col("size_bytes")
        )
        opens, open_ns, opened = (
            int(in_part["opens"].sum()),
            int(in_part["open_ns"].sum()),
            len(in_part),
        )
        if opens >= max(
            _LEAST_READS, _LEAST_OPENS * opened * num_epochs
        ) and open_ns >= 0.2 * _LEAST_SHARE * max(made_ns, 1):
            facts = {"files": opened, "opens": opens, "took_s": open_ns / 1e9}
            yield ReadPattern("reopening", facts=facts)
        if self._faults >= _LEAST_READS:
            each = self._fault_bytes / self._faults
            if each <= 1.25 * PAGE_BYTES:
                yield ReadPattern("page at a time", facts={"faults": self._faults})
            elif (
                self._jumps >= _RANDOM_RATIO * self._faults
                and each > MOST_AMPLIFICATION * PAGE_BYTES
            ):
                facts = {"faults": self._faults, "random_ratio": self._jumps / self._faults}
                yield ReadPattern(MAP_READAHEAD, facts=facts | {"each_bytes": each})
        yield from self._amplified(files, num_epochs)
        if asked > 0 and sum(each.by_calls for each in fetched.values()) > max(
            MOST_AMPLIFICATION * asked, LEAST_FETCHED
        ):
            for_data, asked = _fetched_for_data(self._trace, self._is_counted, fetched)
            if for_data > max(MOST_AMPLIFICATION * asked, LEAST_FETCHED):
                facts = {"fetched_bytes": for_data, "asked_bytes": asked}
                yield ReadPattern("readahead of ranges", facts=facts | {"ratio": for_data / asked})


def _fetched_for_data(
    trace: Trace, is_data: pl.Expr, fetched: Mapping[ProcessId, StorageBytes]
) -> tuple[int, int]:
    """Bytes that calls which read data fetched, at least, and those that they asked for.

    What calls fetched is known of a whole process. From that is taken what came during imports, and
    the most that other calls may have fetched: the pages of what they read, and what the kernel
    reads ahead, of files that were not in memory.
    """
    names = pl.col("host").cast(pl.String), pl.col("pid"), pl.col("file")
    is_cold = pl.col("source").is_in(["storage", "unknown"]).fill_null(value=True)
    is_call = (pl.col("kind") == "read") & (pl.col("bytes") > 0) & ~is_received
    pages = (pl.col("bytes") / PAGE_BYTES).ceil() * PAGE_BYTES + PAGE_BYTES
    sums = {"bytes": pl.col("bytes").sum(), "pages": pages.sum(), "cold": is_cold.sum()}
    of_parts = trace.found(
        lambda part: (
            part.filter(is_call)
            .group_by(*names, is_data=is_data.fill_null(value=False))
            .agg(**sums)
        )
    )
    files = of_parts.group_by("host", "pid", "file", "is_data").agg(
        pl.col("bytes", "pages", "cold").sum()
    )
    most = pl.col("pages") + _READAHEAD_BYTES * pl.col("cold")
    other = pl.col("cold") > 0, ~pl.col("is_data")
    processes = files.group_by("host", "pid").agg(
        asked=pl.col("bytes").filter("is_data").sum(),
        others=most.filter(*other).sum(),
        has_data=pl.col("is_data").any(),
    )
    found = asked = 0
    for host, pid, of_data, others in (
        processes.filter("has_data").select("host", "pid", "asked", "others").iter_rows()
    ):
        if (of_process := fetched.get((host, pid))) is not None:
            found += max(0, of_process.by_calls - of_process.during_imports - int(others))
            asked += of_data
    return found, asked


def _read_groups(groups: pl.DataFrame) -> Iterator[ReadGroup]:
    for source in SOURCES:
        of_source = groups.filter(pl.col("source") == source)
        sizes = of_source["size_class"].unique().sort().to_list()
        for size in [None, *sizes] if len(sizes) > 1 else [None]:
            part = of_source if size is None else of_source.filter(pl.col("size_class") == size)
            if part.is_empty():
                continue
            timed = part.filter(pl.col("time_class") != UNTIMED)
            accesses = int(part["accesses"].sum())
            yield ReadGroup(
                source,
                None if size is None else SIZE_STEP**size,
                accesses,
                int(part["bytes"].sum()),
                int(part["took_ns"].sum()) / 1e9,
                *_times_of(timed),
                untimed=accesses - int(timed["accesses"].sum()),
            )


def _times_of(timed: pl.DataFrame) -> tuple[float | None, float | None, float | None, float | None]:
    """Percentiles 50, 95 and 99, and the greatest, in seconds."""
    if timed.is_empty():
        return None, None, None, None
    counts = timed.group_by("time_class").agg(pl.col("accesses").sum()).sort("time_class")
    quantiles = quantiles_ns(
        counts["time_class"].to_numpy(), counts["accesses"].to_numpy(), (0.50, 0.95, 0.99)
    )
    max_s = int(timed["max_ns"].to_numpy().max()) / 1e9
    p50_s, p95_s, p99_s = (min(quantile / 1e9, max_s) for quantile in quantiles)
    return p50_s, p95_s, p99_s, max_s


def _named(files: pl.DataFrame, trace: Trace) -> tuple[FileReads, ...]:
    paths = trace.files.filter(pl.col("path").is_not_null()).select("file", "path").unique("file")
    found = files.join(paths, on="file").sort(-pl.col("took_ns"), "path").head(_NUM_FILES)
    return tuple(
        FileReads(
            row["path"],
            row["accesses"],
            row["bytes"],
            row["took_ns"] / 1e9,
            row["max_ns"] / 1e9,
            row["max_offset"],
            row["opens"],
        )
        for row in found.iter_rows(named=True)
    )
