"""The loaders of a job, told apart: how many batches and samples each gave, and how long the ranks
waited for them.
"""

from typing import Final

import numpy as np
import polars as pl
from numpy.typing import NDArray

from ioprof.format.run_record import LoaderTime
from ioprof.format.trace import Trace

_LEAST_KNOWN: Final = 0.99
"""Part of the batches whose samples must be known for a rate in samples."""
_LEAST_BEGUN: Final = 0.1
"""Part of the steps that must begin with a batch of a loader if it feeds them."""
UNNAMED: Final = "loader"
"""A loader whose library tells no name."""
_FEWEST_FALLS: Final = 4
_LEAST_FALL: Final = 128
"""By how much the number of a batch is below that of the one before, where that is of another
loader: loaders take numbers in blocks. Batches of one loader that come in the order in which they
were made differ by less."""


POOLS: Final = ("future", "pool", "joblib", "queue")
"""Names of waits for what is made by whoever of several threads or processes is free. It need be no
whole batch."""


def batches(trace: Trace) -> pl.DataFrame:
    """One row per batch that a rank received: `rank`, `batch`, `start_ns` and `end_ns` of the wait
    for it, `validates`, `of_pool`, and, where known, `samples`, `making_ns` and `loader`.
    """
    spans = trace.rows(
        pl.col("rank").is_not_null(),
        pl.col("batch").is_not_null(),
        kinds=["wait", "fetch", "sampler"],
    )
    spans = spans.select(
        "rank", "batch", "kind", "start_ns", "end_ns", "offset", pl.col("name").cast(pl.String)
    )
    waits = (
        spans.filter(pl.col("kind") == "wait")
        .sort("start_ns", "end_ns", "name")
        .unique(["rank", "batch"], keep="first", maintain_order=True)
    )
    length = pl.col("end_ns") - pl.col("start_ns")
    fetches = spans.filter(pl.col("kind") == "fetch").group_by("rank", "batch")
    samplers = spans.filter(pl.col("kind") == "sampler").group_by("rank", "batch")
    found = waits.join(
        fetches.agg(samples=pl.col("offset").max(), making_ns=length.sum()),
        on=["rank", "batch"],
        how="left",
    )
    found = found.join(samplers.agg(loader=pl.col("name").min()), on=["rank", "batch"], how="left")
    validates = (pl.col("name") == "validate").fill_null(value=False)
    return found.select(
        "rank",
        "batch",
        "start_ns",
        "end_ns",
        "samples",
        "making_ns",
        "loader",
        validates=validates,
        of_pool=pl.col("name").is_in(POOLS).fill_null(value=False),
    )


def take_turns(received: pl.DataFrame) -> bool:
    """Whether a rank took batches to train on from several loaders in turn, by the rows of
    `batches`.
    """
    taken = received.filter(~pl.col("validates")).sort("rank", "start_ns", "end_ns")
    fell = pl.col("batch").shift().over("rank") - pl.col("batch") >= _LEAST_FALL
    return int(taken.select(fell.sum()).item() or 0) >= _FEWEST_FALLS


def generations(begins: NDArray[np.int64], ends: NDArray[np.int64]) -> NDArray[np.int64]:
    """Of workers that began and ended then: the generation of each, from 0. One begins with a
    worker that begins when all before it have ended, as those of a pool that is made anew.

    >>> generations(np.array([0, 1, 9]), np.array([5, 6, 12])).tolist()
    [0, 0, 1]
    """
    order, found = np.argsort(begins, kind="stable"), np.zeros(len(begins), np.int64)
    is_new = begins[order][1:] > np.maximum.accumulate(ends[order])[:-1]
    found[order[1:]] = np.cumsum(is_new)
    return found


def loaders(received: pl.DataFrame) -> tuple[LoaderTime, ...]:
    """What the rows of `batches` say of each loader, most waiting first."""
    length = pl.col("end_ns") - pl.col("start_ns")
    sums = received.group_by(pl.col("loader").fill_null(UNNAMED), "validates").agg(
        pl.len(), pl.col("samples").null_count().alias("unknown"), pl.col("samples").sum(),
        pl.col("samples").min().alias("fewest"), pl.col("samples").max().alias("most"),
        waited=length.sum(), making=pl.col("making_ns").sum(),
    )  # fmt: skip
    return tuple(
        LoaderTime(
            name=row["loader"],
            purpose="validate" if row["validates"] else "train",
            batches=row["len"],
            samples=None if row["unknown"] else row["samples"],
            fewest_samples=row["fewest"],
            most_samples=row["most"],
            waited_s=row["waited"] / 1e9,
            making_s=row["making"] / 1e9,
        )
        for row in sums.sort(-pl.col("waited"), "loader", "validates").iter_rows(named=True)
    )


def samples_in(received: pl.DataFrame, windows: pl.DataFrame) -> tuple[int, int | None]:
    """Batches to train on that ranks received in these steps (rows of `steps`), and their samples;
    None: not known of all.

    A step of an optimizer may take several batches, and a loop may take from several loaders. One
    that steps do not begin with, and that has as many samples as one that they do, adds to the
    samples of that one.
    """
    bounds = windows.group_by("rank").agg(
        first=pl.col("start_ns").min(), last=pl.col("end_ns").max()
    )
    inside = received.filter(~pl.col("validates")).join(bounds, on="rank")
    inside = inside.filter(pl.col("end_ns") > pl.col("first"), pl.col("end_ns") <= pl.col("last"))
    if inside["loader"].n_unique() > 1:
        begun = inside.sort("end_ns").join_asof(
            windows.select("rank", "step", begin_ns="start_ns").sort("begin_ns"),
            left_on="end_ns",
            right_on="begin_ns",
            by="rank",
            check_sortedness=False,
        )
        first = begun.group_by("rank", "step").agg(pl.col("loader").first())
        counts = first.group_by("loader").len().filter(pl.col("len") >= _LEAST_BEGUN * len(first))
        sizes = inside.group_by("loader").agg(pl.col("samples").median())
        feeding = sizes.join(counts, on="loader", how="semi", nulls_equal=True)
        adding = sizes.join(counts, on="loader", how="anti", nulls_equal=True)
        adding = adding.join(feeding, on="samples", how="semi", nulls_equal=True)
        inside = inside.join(adding, on="loader", how="anti", nulls_equal=True)
    return len(inside), known_samples(inside["samples"])


def known_samples(of_batches: pl.Series) -> int | None:
    """The sum of the samples of batches; None: not known of nearly all of them."""
    if not len(of_batches) or of_batches.null_count() > (1 - _LEAST_KNOWN) * len(of_batches):
        return None
    return int(of_batches.fill_null(of_batches.median()).sum())
