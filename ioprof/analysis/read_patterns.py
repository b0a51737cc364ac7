"""How a job read: times by source and size, its slowest files, how many reads were in progress, and costly ways of reading.

All of it is found in one pass over the reads, in parts of bounded size.
"""

import re
from collections.abc import Iterator
from typing import Final

import polars as pl

from ioprof.analysis.duration_classes import duration_class, quantiles_ns
from ioprof.analysis.queue_depth import DepthOverTime
from ioprof.analysis.storage_bytes import StorageBytes
from ioprof.run_record import FileReads, ReadGroup, ReadPattern, Reads
from ioprof.schema import SOURCES
from ioprof.trace import Trace

SMALL_READS: Final = "small reads"
PATTERNS: Final = (SMALL_READS, "reopening", "page at a time", "readahead of a map", "readahead of ranges")

_NUM_FILES: Final = 10
_SIZE_STEP: Final = 4
"""A class of sizes has up to so many times its least size."""
_PAGE_BYTES: Final = 4096
_LEAST_READS: Final = 200
"""Reads, opens or faults below which no pattern is named."""
_SMALL_BYTES: Final = 8192
"""Largest read that is small, with the buffer that Python's `open` uses by default."""
_LEAST_MOVED: Final = 0.5
"""Of all bytes of calls, what small reads must move for those from a page on to count: a file read in large pieces may begin with
a full buffer."""
_LEAST_SHARE: Final = 0.05
"""Of the time in which batches were made, from which on small reads and opens are named."""
_LEAST_OPENS: Final = 5
"""Per file and epoch."""
_LEAST_PART_OF_FILE: Final = 0.5
"""Of a file that is read for each time that it is opened, from which on it is a sample, which has to be opened each time."""
_MOST_AMPLIFICATION: Final = 2.0
_RANDOM_RATIO: Final = 0.5

_CODE: Final = re.compile(r"\.(py|pyc|so(\.[\d.]+)?)$|^/(proc|sys|dev)/|/ioprof-[^/]+/batches-")
"""Files that a program, or its recording, reads for itself."""

_COLUMNS: Final = ("start_ns", "end_ns", "kind", "pid", "tid", "rank", "batch", "bytes", "file", "offset", "source")


class _Sums:
    """What is added up, part by part."""

    def __init__(self) -> None:
        self.groups: list[pl.DataFrame] = []
        self.files: list[pl.DataFrame] = []
        self.epochs: list[pl.DataFrame] = []
        self.opens: list[pl.DataFrame] = []
        self.jumps = 0
        """Faults that do not continue where the one before was."""
        self.faults = 0
        self.fault_bytes = 0
        self.small: list[pl.DataFrame] = []
        """Calls of up to `_SMALL_BYTES`, by whether they asked for less than a page."""


def of_data(trace: Trace, is_counted: pl.Expr, first_ns: int) -> pl.Expr:
    """Of these reads those of data: not of the job's own code, and nothing before the first step unless it made a batch."""
    is_code = pl.col("path").str.contains(_CODE.pattern).fill_null(value=False)
    code = trace.files.filter(is_code)["file"].implode()
    return (
        is_counted
        & (pl.col("batch").is_not_null() | (pl.col("start_ns") >= first_ns))
        & ~pl.col("file").is_in(code).fill_null(False)
    )


def reads(
    trace: Trace, is_counted: pl.Expr, depth: DepthOverTime, epochs: pl.DataFrame, made_ns: int, fetched: StorageBytes | None
) -> tuple[Reads, pl.DataFrame]:
    """How the reads `is_counted` were made; and per epoch the accesses and bytes by source.

    `epochs`: `rank`, `batch` and `epoch` of the batches of training. `made_ns`: the time in which batches were made.
    """
    sums = _Sums()
    is_open = (pl.col("kind") == "open") & pl.col("batch").is_not_null()
    for rows in trace.in_parts(lambda part: part.filter(is_counted | is_open).select(_COLUMNS)):
        is_read = rows["kind"] != "open"
        _add(sums, rows.filter(is_read), depth, epochs)
        sums.opens.append(_opens(rows.filter(~is_read)))
    groups, files = _merged_groups(sums.groups), _merged_files(sums)
    sizes = trace.files.drop_nulls("file").group_by("file").agg(pl.col("size_bytes").max())
    files = files.join(sizes, on="file", how="left")
    found = Reads(
        groups=tuple(_read_groups(groups)),
        files=_named(files, trace),
        patterns=tuple(_patterns(sums, groups, files, epochs, made_ns, fetched)),
        depth=depth.found(),
    )
    of_epochs = pl.concat(sums.epochs).group_by("epoch", "source").agg(pl.col("accesses").sum(), pl.col("bytes").sum())
    return found, of_epochs


def _add(sums: _Sums, rows: pl.DataFrame, depth: DepthOverTime, epochs: pl.DataFrame) -> None:
    took, size, source = pl.col("end_ns") - pl.col("start_ns"), pl.col("bytes").fill_null(0), pl.col("source").fill_null("unknown")
    rows = rows.with_columns(took_ns=took, size=size, source=source).drop("bytes")
    size_class = (pl.col("size").clip(1).log(_SIZE_STEP) + 1e-9).floor().cast(pl.Int32)
    sums.groups.append(
        rows.select("source", "size", "took_ns")
        .group_by("source", size_class=size_class, time_class=duration_class(pl.col("took_ns")))
        .agg(accesses=pl.len(), bytes=pl.col("size").sum(), took_ns=pl.col("took_ns").sum(), max_ns=pl.col("took_ns").max())
        .with_columns(pl.col("source").cast(pl.String))
    )
    calls = rows.select("kind", "size", "took_ns").filter(pl.col("kind") != "fault", pl.col("size") <= _SMALL_BYTES)
    sums.small.append(
        calls.group_by(below_page=pl.col("size") < _PAGE_BYTES).agg(
            accesses=pl.len(), bytes=pl.col("size").sum(), took_ns=pl.col("took_ns").sum()
        )
    )
    slowest = pl.col("offset").get(pl.col("took_ns").arg_max())
    sums.files.append(
        rows.select("file", "size", "took_ns", "offset").drop_nulls("file").group_by("file").agg(
            accesses=pl.len(), bytes=pl.col("size").sum(), took_ns=pl.col("took_ns").sum(),
            max_ns=pl.col("took_ns").max(), max_offset=slowest,
        )
    )  # fmt: skip
    of_batch = (
        rows.select("rank", "batch", "source", "size")
        .group_by("rank", "batch", "source")
        .agg(accesses=pl.len(), bytes=pl.col("size").sum())
        .join(epochs, on=["rank", "batch"])
    )
    of_epoch = of_batch.group_by("epoch", "source").agg(pl.col("accesses", "bytes").sum())
    sums.epochs.append(of_epoch.with_columns(pl.col("source").cast(pl.String)))
    from_storage = rows.filter(pl.col("source").is_in(["storage", "unknown"]))
    depth.add(from_storage)
    faults = from_storage.filter(pl.col("kind") == "fault", pl.col("file").is_not_null(), pl.col("offset").is_not_null())
    if len(faults):
        ordered = faults.sort("pid", "tid", "file", "start_ns")
        ahead = pl.col("offset") - pl.col("offset").shift().over("pid", "tid", "file")
        is_jump = ~ahead.is_between(0, 2 * pl.max_horizontal("size", pl.lit(_PAGE_BYTES)))
        sums.jumps += int(ordered.select(is_jump.fill_null(value=False).sum()).item())
        sums.faults += len(faults)
        sums.fault_bytes += int(faults["size"].sum())


def _opens(rows: pl.DataFrame) -> pl.DataFrame:
    took = (pl.col("end_ns") - pl.col("start_ns")).sum()
    return rows.drop_nulls("file").group_by("file").agg(opens=pl.len(), open_ns=took)


def _merged_groups(groups: list[pl.DataFrame]) -> pl.DataFrame:
    by = ("source", "size_class", "time_class")
    sums = [pl.col(name).sum() for name in ("accesses", "bytes", "took_ns")]
    return pl.concat(groups).group_by(by).agg(*sums, pl.col("max_ns").max()).sort(by)


def _merged_files(sums: _Sums) -> pl.DataFrame:
    added = [pl.col(name).sum() for name in ("accesses", "bytes", "took_ns")]
    slowest = pl.col("max_ns").arg_max()
    files = pl.concat(sums.files).sort("file", "max_ns", "max_offset").group_by("file").agg(
        *added, pl.col("max_offset").get(slowest), pl.col("max_ns").max()
    )  # fmt: skip
    opens = pl.concat(sums.opens).group_by("file").agg(pl.col("opens").sum(), pl.col("open_ns").sum())
    return files.join(opens, on="file", how="left").with_columns(pl.col("opens", "open_ns").fill_null(0))


def _read_groups(groups: pl.DataFrame) -> Iterator[ReadGroup]:
    for source in SOURCES:
        of_source = groups.filter(pl.col("source") == source)
        sizes = of_source["size_class"].unique().sort().to_list()
        for size in [None, *sizes] if len(sizes) > 1 else [None]:
            part = of_source if size is None else of_source.filter(pl.col("size_class") == size)
            if part.is_empty():
                continue
            counts = part.group_by("time_class").agg(pl.col("accesses").sum()).sort("time_class")
            quantiles = quantiles_ns(counts["time_class"].to_numpy(), counts["accesses"].to_numpy(), (0.50, 0.95, 0.99))
            max_s = int(part["max_ns"].to_numpy().max()) / 1e9
            p50_s, p95_s, p99_s = (min(quantile / 1e9, max_s) for quantile in quantiles)
            yield ReadGroup(
                source, None if size is None else _SIZE_STEP**size, int(part["accesses"].sum()), int(part["bytes"].sum()),
                int(part["took_ns"].sum()) / 1e9, p50_s, p95_s, p99_s, max_s,
            )  # fmt: skip


def _named(files: pl.DataFrame, trace: Trace) -> tuple[FileReads, ...]:
    paths = trace.files.filter(pl.col("path").is_not_null()).select("file", "path").unique("file")
    found = files.join(paths, on="file").sort(-pl.col("took_ns"), "path").head(_NUM_FILES)
    return tuple(
        FileReads(
            row["path"], row["accesses"], row["bytes"], row["took_ns"] / 1e9, row["max_ns"] / 1e9, row["max_offset"], row["opens"]
        )
        for row in found.iter_rows(named=True)
    )


def _patterns(
    sums: _Sums, groups: pl.DataFrame, files: pl.DataFrame, epochs: pl.DataFrame, made_ns: int, fetched: StorageBytes | None
) -> Iterator[ReadPattern]:
    asked = int(groups["bytes"].sum()) - sums.fault_bytes
    small = pl.concat(sums.small)
    if int(small["bytes"].sum()) < _LEAST_MOVED * asked:
        small = small.filter("below_page")
    accesses, spent_ns = int(small["accesses"].sum()), int(small["took_ns"].sum())
    if sums.faults < 0.5 * accesses and accesses >= _LEAST_READS and spent_ns >= _LEAST_SHARE * max(made_ns, 1):
        mean = int(small["bytes"].sum()) / accesses
        yield ReadPattern(
            SMALL_READS,
            f"{accesses:,} reads moved {mean:,.0f} bytes each and took {spent_ns / 1e9:,.2f} s",
            "read whole records at once, or through a buffer of 1 MB (open(..., buffering=1 << 20))",
            spent_ns / 1e9,
        )
    in_part = files.filter(pl.col("bytes") < _LEAST_PART_OF_FILE * pl.col("opens") * pl.col("size_bytes"))
    opens, open_ns, opened = int(in_part["opens"].sum()), int(in_part["open_ns"].sum()), len(in_part)
    num_epochs = max(1, epochs["epoch"].n_unique())
    if opens >= max(_LEAST_READS, _LEAST_OPENS * opened * num_epochs) and open_ns >= 0.2 * _LEAST_SHARE * max(made_ns, 1):
        yield ReadPattern(
            "reopening",
            f"{opened:,} files were opened {opens:,} times, which took {open_ns / 1e9:,.2f} s",
            "open each file once per worker and keep it open",
        )
    if sums.faults >= _LEAST_READS:
        each = sums.fault_bytes / sums.faults
        if each <= 1.25 * _PAGE_BYTES:
            yield ReadPattern(
                "page at a time",
                f"{sums.faults:,} page faults waited for storage and fetched one page each",
                "read the mapped file by read() or pread(), or tell the kernel what comes next (madvise, MADV_WILLNEED)",
            )
        elif sums.jumps >= _RANDOM_RATIO * sums.faults and each > _MOST_AMPLIFICATION * _PAGE_BYTES:
            yield ReadPattern(
                "readahead of a map",
                f"{sums.jumps / sums.faults:.0%} of {sums.faults:,} page faults were at random places, and each fetched "
                f"{each / 1e3:,.0f} kB",
                "if samples are smaller than that, switch readahead off for the map (madvise, MADV_RANDOM), or use pread()",
            )
    if fetched is not None and asked > 0 and fetched.by_calls > _MOST_AMPLIFICATION * asked and fetched.by_calls > 1 << 24:
        yield ReadPattern(
            "readahead of ranges",
            f"{fetched.by_calls / 1e6:,.0f} MB were fetched during calls that asked for {asked / 1e6:,.0f} MB",
            "read ranges at random places without readahead (os.posix_fadvise, POSIX_FADV_RANDOM), or neighbours together",
        )
