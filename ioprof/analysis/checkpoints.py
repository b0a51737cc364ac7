"""What the job wrote as checkpoints, as far as their sizes are known."""

from dataclasses import dataclass

import polars as pl

from ioprof.trace import Trace


@dataclass(frozen=True)
class Saved:
    """Checkpoints that were written to one file each."""

    number: int
    bytes: int
    """Of all of them."""
    seconds: float
    """What writing them took, summed over ranks: preparing the state, copying it from the device and writing it."""

    @property
    def text(self) -> str:
        """In words: `20 checkpoints of 537.0 MB, at 1,210.0 MB/s`."""
        rate = self.bytes / 1e6 / self.seconds if self.seconds else 0.0
        return f"{self.number:,} checkpoints of {self.bytes / self.number / 1e6:,.1f} MB, at {rate:,.1f} MB/s"


def saved(trace: Trace) -> Saved | None:
    """The checkpoints of all ranks whose size is known, in steps or not; None: there is none."""
    found = trace.rows(pl.col("bytes") > 0, pl.col("name").cast(pl.String) == "save", kinds=["checkpoint"])
    if found.is_empty():
        return None
    return Saved(len(found), int(found["bytes"].sum()), int((found["end_ns"] - found["start_ns"]).sum()) / 1e9)
