"""How often workers that each read all of the data do the work of a record for each sample that
they deliver.

Whoever divides an iterable dataset by taking every n-th sample of an iterator that decodes makes
each worker decode all: for each sample that it delivers, it does the work of as many records as
there are workers. What is done for each record is known of decoders, and of transforms with a name.
"""

from typing import Final

import polars as pl

from ioprof.analysis.loaders import known_samples
from ioprof.format.run_record import RepeatedWork
from ioprof.format.trace import Trace

NEARLY: Final = 0.75, 1.25
"""Of what each worker does once for all of the data, how much may be seen: the last pass of a job
may be cut short, and so may the last batch. What is done at random, or for another reason, seldom
is as often."""
_LOOKED_AT: Final = 64
"""Batches, spread over the job, whose single spans are looked at: some thousand records, of which
even a tenth is known to a few percent."""
_BATCH: Final = ("host", "pid", "rank", "batch")
_THREAD: Final = (*_BATCH, "tid")
_COVERING: Final = ("decode", "transform", "collate", "read")
_CALL: Final = ("kind", "call")
_host: Final = pl.col("host").cast(pl.String)
_name: Final = pl.col("name").cast(pl.String)
_call: Final = (
    # Pillow's have the name of the format, of which a dataset may have several
    pl.when((pl.col("kind") != "decode") | _name.str.contains(".", literal=True))
    .then(_name)
    .alias("call")
)


def repeated_work(trace: Trace, workers: pl.DataFrame) -> RepeatedWork | None:
    """What these workers (`host`, `pid`, `rank`, `worker`) do for about as many records as there
    are workers, of a rank or of all of them, for each sample that they deliver. None: it is not
    known, or for fewer records or more.

    A sample that is made of as many records as there are workers looks alike.
    """
    fetches = _of_workers(
        trace.rows(
            pl.col("rank").is_not_null(), pl.col("batch").is_not_null(), kinds=["fetch"]
        ).select(_host, "pid", "rank", "batch", samples="offset", until_ns="end_ns"),
        workers,
    )
    samples = known_samples(fetches["samples"])
    called = _most_called(trace, workers, fetches)
    if not samples or called is None:
        return None
    (kind, call), times = called[0], called[1] / samples
    of_ranks = workers.unique(["rank", "worker"])["rank"].value_counts()["count"].to_numpy()
    number = min(int(of_ranks.max()), int(of_ranks.sum()), key=lambda each: abs(times - each))
    low, high = NEARLY
    if number < 2 or not low * number <= times <= high * number:
        return None
    by_cause = _by_cause(trace, workers, fetches, called[0], number)
    return RepeatedWork(kind, call, times, number, by_cause)


def _of_workers(spans: pl.DataFrame, workers: pl.DataFrame) -> pl.DataFrame:
    return spans.join(workers.select("host", "pid").unique(), on=["host", "pid"], how="semi")


def _most_called(
    trace: Trace, workers: pl.DataFrame, fetches: pl.DataFrame
) -> tuple[tuple[str, str | None], int] | None:
    """What is done for each record in these batches, as its kind and name, and how often: the
    decoder, or without any the transform with a name, that takes most time.
    """
    by, pids = [*_BATCH, *_CALL], workers["pid"].unique().to_list()
    calls = trace.summed(
        lambda part: (
            part.filter(
                pl.col("kind").is_in(["decode", "transform"]),
                pl.col("pid").is_in(pids),
                (pl.col("kind") == "decode") | pl.col("name").is_not_null(),
            )
            .group_by(_host, "pid", "rank", "batch", "kind", _call)
            .agg(calls=pl.len(), took_ns=(pl.col("end_ns") - pl.col("start_ns")).sum())
        ),
        by,
    )
    found = (
        calls.join(fetches, on=_BATCH, how="semi")
        .group_by(_CALL)
        .agg(pl.col("calls", "took_ns").sum())
        .sort(pl.col("kind") != "decode", -pl.col("took_ns").cast(pl.Int64), "call")
    )
    if found.is_empty():
        return None
    return (str(found["kind"][0]), found["call"][0]), int(found["calls"][0])


def _by_cause(
    trace: Trace,
    workers: pl.DataFrame,
    fetches: pl.DataFrame,
    call: tuple[str, str | None],
    number: int,
) -> dict[str, float]:
    """By cause, for how many records it is done for each sample, by the time that it takes."""
    spans, records = _records(trace, workers, fetches, call)
    transforms = (
        spans.filter(pl.col("kind") == "transform")
        .with_columns(at=pl.col("start_ns").rank("ordinal").over(*_THREAD, "record"))
        .group_by("at")
        .agg(pl.col("took_ns").sum(), records=pl.len())
    )
    # the first transform of a record, the second and so on: those that come after a worker finds
    # that a record is not its own are of one in `number`
    of_each = (number * pl.col("records") / max(len(records), 1)).clip(1, number)
    once_ns, whole_ns = transforms.select(
        (pl.col("took_ns") / of_each).sum(), pl.col("took_ns").sum().alias("whole")
    ).row(0)
    # a batch ends with a record that is delivered; of the others, the middle one of those that are
    # discarded, if these take less (means are those of the few that were preempted)
    kept_ns = float(records.filter("is_last")["rest_ns"].quantile(0.5) or 0.0)
    others = records.filter(~pl.col("is_last"))["rest_ns"]
    discarded_ns = min(kept_ns, others.quantile(0.5 * (1 - 1 / number)) or 0.0)
    return {
        **dict.fromkeys(("storage", "page_cache", "decode"), float(number)),
        "transform": whole_ns / once_ns if once_ns else float(number),
        "loader": 1 + (number - 1) * discarded_ns / kept_ns if kept_ns else float(number),
    }


def _records(
    trace: Trace, workers: pl.DataFrame, fetches: pl.DataFrame, call: tuple[str, str | None]
) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Spans of some of these batches, with the `record` that they are of and `took_ns`; and of each
    record the time that no span covers (`rest_ns`), and whether it is the last one of its batch.

    A record lasts from its call to the next one of the thread, or to the end of the fetch.
    """
    batches = fetches.sort(_BATCH).gather_every(max(1, len(fetches) // _LOOKED_AT))
    numbers, pids = batches["batch"].unique().to_list(), workers["pid"].unique().to_list()
    spans = trace.found(
        lambda part: part.filter(
            pl.col("kind").is_in(_COVERING),
            pl.col("pid").is_in(pids),
            pl.col("batch").is_in(numbers),
        ).select(_host, "pid", "rank", "batch", "tid", "start_ns", "end_ns", "kind", _call)
    ).join(batches.select(*_BATCH, "until_ns"), on=_BATCH)
    is_call = (pl.col("kind") == call[0]) & pl.col("call").eq_missing(call[1])
    spans = (
        spans.sort(*_THREAD, "start_ns", ~is_call)
        .with_columns(
            record=is_call.cum_sum().over(_THREAD), took_ns=pl.col("end_ns") - pl.col("start_ns")
        )
        .filter(pl.col("record") > 0)
    )
    records = (
        spans.group_by(*_THREAD, "record")
        .agg(
            pl.col("until_ns").first(),
            begin_ns=pl.col("start_ns").min(),
            covered_ns=pl.col("took_ns").sum(),
        )
        .sort(*_THREAD, "record")
    )
    end_ns = pl.col("begin_ns").shift(-1).over(_THREAD).fill_null(pl.col("until_ns"))
    return spans, records.select(
        rest_ns=(end_ns - pl.col("begin_ns") - pl.col("covered_ns")).clip(0),
        is_last=pl.col("record") == pl.col("record").max().over(_THREAD),
    )
