"""What was read and not used: more for a batch than the dataset returned for it, again in the same
epoch, by each worker of a rank, or by each rank of a node.

What a dataset returned is known of torch's DataLoader, see
`instrument/hooks/pytorch/sent_batches.py`.
"""

import posixpath
from collections.abc import Sequence
from typing import Final

import polars as pl

from ioprof.analysis.loaders import known_samples
from ioprof.analysis.reads.repeated_work import NEARLY, repeated_work
from ioprof.analysis.reads.sources import CODE, INSTALLED, METADATA, is_access, is_received
from ioprof.format.run_record import (
    ReadsOfRanks,
    ReadsOfWorkers,
    RepeatedReads,
    ReturnedBytes,
)
from ioprof.format.schema import RETURNED
from ioprof.format.trace import Trace

MOST_AMPLIFICATION: Final = 2.0
"""Bytes that are fetched for each that is wanted, up to which nothing is said: a sample that begins
and ends within a page, or within what is read ahead, needs up to twice its bytes."""
LEAST_FETCHED: Final = 1 << 24
"""Bytes that were fetched, up to which it is not said that less would do: fast disks deliver so
much within 10 ms."""
_SAMPLERS_THAT_END: Final = {
    "RandomSampler",
    "SequentialSampler",
    "SubsetRandomSampler",
    "WeightedRandomSampler",
    "DistributedSampler",
}
"""Of torch, after one pass over the data."""
_OF_ITERABLE: Final = "_InfiniteConstantSampler"
"""What torch's DataLoader gives an iterable dataset for a sampler."""
_MOSTLY: Final = 0.5
_IS_MAPPED: Final = pl.col("kind") == "fault"
_FROM_STORAGE: Final = pl.col("source") == "storage"


class ReadsOfBatches:
    """What was read for the batches of which it is known what the dataset returned, part by part.

    Of maps it counts what page faults fetched from storage, which is less than what was touched.
    """

    def __init__(self, trace: Trace) -> None:
        self._trace = trace
        is_known = pl.col("name").cast(pl.String) == RETURNED
        known = trace.rows(pl.col("rank").is_not_null(), is_known, kinds=["deliver"])
        self._known = known.select(
            pl.col("rank", "batch").cast(pl.Int64), returned=pl.col("bytes").cast(pl.Int64)
        ).drop_nulls()
        self._batches = self._known["batch"].unique().implode()
        self._parts: list[pl.DataFrame] = []

    def add(self, reads: pl.DataFrame) -> None:
        """Look at the next reads, in the columns of `ReadPatterns`."""
        if len(self._known):
            of_batches = pl.col("batch_id").is_in(self._batches), ~_IS_MAPPED | _FROM_STORAGE
            found = reads.filter(*of_batches).group_by(
                "file", rank="rank_id", batch="batch_id", mapped=_IS_MAPPED
            )
            self._parts.append(found.agg(bytes=pl.col("size").sum()))

    def found(self) -> ReturnedBytes | None:
        """The means of these batches; the ratio that of all, where it is less: a dataset that reads
        for many batches at once reads for each of them less than for that one.
        """
        every = self._trace.sums.filter(
            pl.col("kind").is_in(["read", "fault"]),
            pl.col("in_batch"),
            ~is_received,
            ~_IS_MAPPED | _FROM_STORAGE,
        )
        whole = int(every["bytes"].sum())
        if not self._parts or whole <= LEAST_FETCHED:
            return None
        in_batch = pl.col("rank").is_not_null(), pl.col("batch").is_not_null()
        fetches = self._trace.rows(*in_batch, kinds=["fetch"])
        fetches = fetches.select(pl.col("rank", "batch").cast(pl.Int64), samples="offset")
        which = ["rank", "batch"]
        reads = pl.concat(self._parts).join(self._known, on=which, how="semi")
        number, read = len(self._known), int(reads["bytes"].sum())
        returned = int(self._known["returned"].sum())
        samples = known_samples(fetches.join(self._known, on=which, how="semi")["samples"])
        read_of_mean = whole * number / fetches.select(which).n_unique()
        return ReturnedBytes(
            file=_name(self._trace, reads.group_by("file").agg(pl.col("bytes").sum())),
            read_bytes=read / number,
            returned_bytes=returned / number,
            samples=samples / number if samples else None,
            ratio=min(read, read_of_mean) / returned,
            mapped=2 * int(reads.filter("mapped")["bytes"].sum()) > read,
        )


def repeated_reads(trace: Trace, is_counted: pl.Expr, files: pl.DataFrame) -> RepeatedReads | None:
    """Of `files`, as `ReadSums.files` has them, those that calls read more than once in a pass over
    the data: more bytes than there are up to the last one that was read.

    How many passes there were is known of loaders with workers, which wait for these to start, and
    of samplers that end.
    """
    passes = _passes(trace)
    samplers = {each.sampler for each in trace.run.loaders if each.is_trained_from}
    if passes.is_empty() or not samplers or not samplers <= _SAMPLERS_THAT_END:
        return None
    fewest = int(passes["passes"].to_numpy().min())
    often = files.filter(
        pl.col("end") > 0, pl.col("bytes") >= MOST_AMPLIFICATION * fewest * pl.col("end")
    ).select("file", "end")
    if often.is_empty():
        return None
    by, numbers = ["rank", "file"], often["file"].to_list()
    reads = trace.summed(
        lambda part: (
            part.filter(is_counted, pl.col("kind") == "read", pl.col("file").is_in(numbers))
            .group_by(by)
            .agg(
                pl.col("bytes").sum(),
                stored=pl.col("bytes").filter(_FROM_STORAGE).sum(),
                cached=pl.col("bytes").filter(pl.col("source") == "page_cache").sum(),
            )
        ),
        by,
    )
    again = (
        reads.join(often, on="file")
        .join(passes, on="rank")
        .with_columns(once=pl.col("passes") * pl.col("end"))
        .filter(pl.col("bytes") >= MOST_AMPLIFICATION * pl.col("once"))
    )
    moved, needed = int(again["bytes"].sum()), int(again["once"].sum())
    if moved - needed <= LEAST_FETCHED:
        return None
    stored = int(again.select((pl.col("stored") - pl.col("once")).clip(0).sum()).item())
    return RepeatedReads(
        file=_name(trace, again.group_by("file").agg(pl.col("bytes").sum())),
        file_bytes=int(again.unique("file")["end"].sum()),
        times_read=moved / needed,
        again_from_storage=stored,
        again_from_cache=min(int(again["cached"].sum()), moved - needed - stored),
    )


def _passes(trace: Trace) -> pl.DataFrame:
    """How often loaders with workers were iterated, by `rank`: `passes`."""
    starts = trace.rows(
        pl.col("name").cast(pl.String) == "start", pl.col("rank").is_not_null(), kinds=["wait"]
    )
    return starts.group_by("rank").agg(passes=pl.len())


def reads_of_workers(
    trace: Trace, is_counted: pl.Expr, files: pl.DataFrame
) -> ReadsOfWorkers | None:
    """Of `files`, as `ReadSums.files` has them, those that each of several workers, also of several
    ranks, reads from begin to end in each pass over an iterable dataset: who divides the data only
    then makes each worker read, decompress and parse all of them, and who does not gets each sample
    of each worker.

    Workers that read all several times in a pass of the loader may deliver all of it, each its own
    copy, as a stream without an end does. That they do not is seen in what they do for each record.
    """
    passes = _passes(trace)
    samplers = {each.sampler for each in trace.run.loaders if each.is_trained_from}
    if passes.is_empty() or samplers != {_OF_ITERABLE}:
        return None
    (low, high), fewest = NEARLY, int(passes["passes"].to_numpy().min())
    large = files.filter(
        pl.col("end") > 0, pl.col("bytes") >= 2 * low * fewest * pl.col("end")
    ).select("file", "end")
    if large.is_empty():
        return None
    by, numbers = ["host", "pid", "file"], large["file"].to_list()

    def sums(part: pl.LazyFrame) -> pl.LazyFrame:
        is_read = pl.col("kind") == "read", pl.col("file").is_in(numbers), pl.col("offset") >= 0
        reads = part.filter(is_counted, *is_read).sort("start_ns")
        ends = (pl.col("offset") + pl.col("bytes")).shift().over("host", "pid", "tid", "file")
        follows = (pl.col("offset") == ends).fill_null(value=False)
        return reads.group_by(by).agg(pl.col("bytes").sum(), follows=follows.sum(), reads=pl.len())

    of_processes = trace.summed(sums, by).with_columns(pl.col("host").cast(pl.String))
    workers = pl.DataFrame(
        [
            (each.host, each.pid, each.rank, each.worker)
            for each in trace.run.processes
            if each.role == "worker"
        ],
        schema={"host": pl.String, "pid": pl.Int64, "rank": pl.Int64, "worker": pl.Int64},
        orient="row",
    )
    read = (
        of_processes.join(workers, on=["host", "pid"])
        .group_by("rank", "worker", "file")
        .agg(pl.col("bytes", "follows", "reads").sum())
        .join(large, on="file")
        .join(passes.with_columns(pl.col("rank").cast(pl.Int64)), on="rank")
    )
    once = pl.col("passes") * pl.col("end")
    is_whole = (pl.col("bytes") >= low * once) & (
        pl.col("follows") >= _MOSTLY * (pl.col("reads") - pl.col("passes"))
    )
    found = (
        read.group_by("file")
        .agg(
            is_whole.all().alias("is_whole"),
            (pl.col("bytes") <= high * once).all().alias("is_once"),
            pl.col("bytes").sum(),
            workers=pl.len(),
        )
        .filter("is_whole", pl.col("workers") > 1)
    )
    repeated = None
    if int(found["bytes"].sum()) >= _MOSTLY * int(files["bytes"].sum()):
        readers = read.join(found, on="file", how="semi").select("rank", "worker").unique()
        repeated = repeated_work(trace, workers.join(readers, on=["rank", "worker"], how="semi"))
    if repeated is None:
        found = found.filter("is_once")
    if int(found["bytes"].sum()) <= LEAST_FETCHED:
        return None
    return ReadsOfWorkers(
        file=_name(trace, found.group_by("file").agg(pl.col("bytes").sum())),
        workers=int(found["workers"].to_numpy().min()),
        file_bytes=int(large.join(found, on="file", how="semi")["end"].sum()),
        repeated=repeated,
    )


def reads_of_ranks(trace: Trace, first_ns: int) -> ReadsOfRanks | None:
    """Files that ranks of one node read from storage before the first step, which begins at
    `first_ns`: together more bytes than there are up to the last one that was read.
    """
    start = pl.col("kind") == "read", ~pl.col("in_batch"), _FROM_STORAGE
    before = trace.sums.filter(*start, pl.col("rank").is_not_null())
    if before["rank"].n_unique() < 2 or int(before["bytes"].sum()) <= LEAST_FETCHED:
        return None
    programs = f"{CODE.pattern}|{METADATA.pattern}|{INSTALLED.pattern}"
    is_program = pl.col("path").cast(pl.String).str.contains(programs).fill_null(value=False)
    left_out = trace.files.filter(is_program)["file"].implode()
    is_read = is_access & ~is_received & (pl.col("kind") == "read") & _FROM_STORAGE
    reads = trace.found(
        lambda part: (
            part.filter(
                is_read,
                pl.col("rank").is_not_null(),
                pl.col("batch").is_null(),
                pl.col("start_ns") < first_ns,
                pl.col("offset") >= 0,
                ~pl.col("file").is_in(left_out).fill_null(value=True),
            )
            .group_by("host", "rank", "file")
            .agg(
                pl.col("bytes").sum(),
                took_ns=(pl.col("end_ns") - pl.col("start_ns")).sum(),
                end=(pl.col("offset") + pl.col("bytes")).max(),
            )
        )
    )
    per_rank = reads.group_by("host", "rank", "file").agg(
        pl.col("bytes", "took_ns").sum(), pl.col("end").max()
    )
    end = pl.col("end").max()
    of_files = (
        per_rank.group_by("host", "file")
        .agg(
            pl.col("bytes", "took_ns").sum(),
            end=end,
            once=pl.min_horizontal("bytes", end).sum(),
            ranks=pl.len(),
        )
        .filter(pl.col("once") >= MOST_AMPLIFICATION * pl.col("end"))
    )
    once = int(of_files["end"].sum())
    if int(of_files["once"].sum()) - once <= LEAST_FETCHED:
        return None
    ranks = of_files.select((pl.col("took_ns") / pl.col("ranks")).sum()).item()
    return ReadsOfRanks(
        file=_name(trace, of_files.group_by("file").agg(pl.col("bytes").sum())),
        ranks=int(of_files["ranks"].to_numpy().max()),
        file_bytes=once,
        read_bytes=int(of_files["bytes"].sum()),
        seconds=float(ranks) / 1e9,
    )


def _name(trace: Trace, files: pl.DataFrame) -> str | None:
    """What most of the `bytes` of these files are of: a path, or a folder with the end of names."""
    paths = trace.files.filter(pl.col("path").is_not_null()).unique("file").select("file", "path")
    named = files.join(paths, on="file").with_columns(
        ends=pl.col("path").cast(pl.String).str.extract(r"(\.[^./]+)$").fill_null("")
    )
    kinds = named.group_by("ends").agg("path", pl.col("bytes").sum()).sort("bytes", "ends")
    if kinds.is_empty():
        return None
    found: Sequence[str] = kinds["path"][-1].to_list()
    if len(found) == 1:
        return found[0]
    folder = posixpath.commonpath(found) if all(map(posixpath.isabs, found)) else ""
    return posixpath.join(folder, f"*{kinds['ends'][-1]}")
