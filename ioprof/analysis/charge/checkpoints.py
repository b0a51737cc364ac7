"""What the job wrote as checkpoints, and where, as far as it is known."""

import os
from collections import Counter
from dataclasses import dataclass

import polars as pl

from ioprof.format.run_record import Facts
from ioprof.format.trace import Trace


@dataclass(frozen=True)
class Saved:
    """Checkpoints whose size is known."""

    number: int
    bytes: int
    """Of all of them."""
    seconds: float
    """What writing them took, summed over ranks: preparing the state, copying it from the device
    and writing it."""
    ranks: int = 1
    """How many wrote them, each a part or a file of its own."""
    folder: str = ""
    """Where most of them were written; empty: not known."""

    @property
    def facts(self) -> Facts:
        """As facts of a finding: how often each rank wrote one, how large, how fast, and where."""
        return {
            "checkpoints": self.number / self.ranks,
            "ranks": self.ranks if self.ranks > 1 else None,
            "each_bytes": self.bytes / self.number,
            "bytes_per_s": self.bytes / self.seconds if self.seconds else 0.0,
            "folder": self.folder,
        }


def saved(trace: Trace) -> Saved | None:
    """The checkpoints of all ranks whose size is known, in steps or not; None: there is none."""
    found = trace.rows(
        pl.col("bytes") > 0, pl.col("name").cast(pl.String) == "save", kinds=["checkpoint"]
    )
    if found.is_empty():
        return None
    took_s, ranks = (
        int((found["end_ns"] - found["start_ns"]).sum()) / 1e9,
        max(1, found["rank"].n_unique()),
    )
    return Saved(len(found), int(found["bytes"].sum()), took_s, ranks, _folder(trace, found))


def _folder(trace: Trace, found: pl.DataFrame) -> str:
    """The folder in which most files were opened while checkpoints were written."""
    by = ["host", "pid", "tid"]
    opened = trace.rows(
        pl.col("name").is_null(), pl.col("file").is_not_null(), kinds=["open"]
    ).sort("start_ns")
    times = found.select(*by, "start_ns", until_ns="end_ns").sort("start_ns")
    inside = opened.select(*by, "start_ns", "file").join_asof(
        times, on="start_ns", by=by, check_sortedness=False
    )
    files = inside.filter(pl.col("start_ns") < pl.col("until_ns")).join(trace.files, on="file")
    paths = files.filter(~pl.col("path").str.contains(r"\.pyc?$|^/(proc|sys|dev)/"))[
        "path"
    ].to_list()
    counts = Counter(map(os.path.dirname, paths))
    return max(counts, key=lambda folder: (counts[folder], folder), default="")
