"""The window of a run whose recording kept the last part of a job only: which spans are in it, and
what is known of the rest.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import polars as pl

from ioprof.format.run_record import WholeJob
from ioprof.ingest.dropping import FileDropper, file_header
from ioprof.ingest.job_sums import JobSums
from ioprof.ingest.kept_state import KeptState
from ioprof.ingest.rings import Capture
from ioprof.ingest.untrusted_values import anchor_of, text


@dataclass(frozen=True)
class JobWindow:
    """What part of a spool is a run."""

    state: KeptState
    since_ns: int | None
    """Where it begins, CLOCK_MONOTONIC of the host that records. None: all of the spool is in
    it."""

    @classmethod
    def of(cls, folder: Path) -> "JobWindow | None":
        """That of a spool folder; None: the spool has all of a job, which has ended."""
        state = KeptState.load(folder)
        if state is None:
            return None
        last_ns = (
            state.end_ns
            if state.keep_ns is None or state.end_ns is not None
            else _last_ns(folder, state)
        )
        return cls(state, state.since_ns(last_ns))

    def limit(self, capture: Capture) -> None:
        """Have a capture file give the spans of the window only, and sum all of them."""
        shift_ns = self.state.shift_ns(capture.host, capture.anchor)
        capture.sums, capture.shift_ns = JobSums(), shift_ns
        if self.since_ns is not None:
            capture.since_ns = self.since_ns - shift_ns

    def facts(self, captures: Iterable[Capture], steps_left_out: int) -> WholeJob:
        """What is known of all of the job, after its files were read."""
        sums = JobSums()
        for each in (
            self.state.sums,
            *(capture.sums for capture in captures if capture.sums is not None),
        ):
            sums.merge(each)
        first_ns, last_ns = sums.first_ns or 0, sums.last_ns or 0
        end_ns = max(first_ns, self.state.end_ns if self.state.end_ns is not None else last_ns)
        since_ns = first_ns if self.since_ns is None else min(max(first_ns, self.since_ns), end_ns)
        return WholeJob(
            keep_s=(self.state.keep_ns or 0) / 1e9,
            window_s=(end_ns - since_ns) / 1e9,
            job_s=(end_ns - first_ns) / 1e9,
            spans=sums.spans,
            lost=self.state.lost,
            processes_removed=self.state.removed,
            steps_left_out=steps_left_out,
            ended=self.state.ended,
            kinds=sums.by_kind(),
            minutes=sums.by_minute(),
        )


def in_window(table: pl.DataFrame, since_ns: int | None, column: str = "start_ns") -> pl.DataFrame:
    """The rows whose time is in the window."""
    return table if since_ns is None else table.filter(pl.col(column) >= since_ns)


def without_begun_steps(spans: pl.DataFrame) -> tuple[pl.DataFrame, int]:
    """The spans of a window without the first steps, whose batches were begun before it; and how
    many these are.

    The reads of such a batch are not in the window, so that its wait would be charged to something
    else.
    """
    fetched = (
        spans.filter(pl.col("kind") == "fetch", pl.col("batch").is_not_null())
        .select("rank", "batch")
        .unique()
    )
    waits = spans.filter(
        pl.col("kind") == "wait", pl.col("batch").is_not_null(), pl.col("step").is_not_null()
    )
    first = (
        waits.join(fetched, on=["rank", "batch"], how="semi")
        .group_by("rank")
        .agg(first=pl.col("step").min())
    )
    begins = spans.select("rank", "kind", "step").join(
        first, on="rank", how="left", maintain_order="left"
    )
    is_begun = begins.select(
        ((pl.col("kind") == "step") & (pl.col("step") < pl.col("first")))
        .fill_null(False)
        .alias("begun")
    )
    return spans.filter(~is_begun["begun"]), int(is_begun["begun"].sum())


def _last_ns(folder: Path, state: KeptState) -> int | None:
    found = []
    for path in folder.glob("*.ring"):
        header = file_header(path)
        if header is not None and (last_ns := FileDropper(path).last_ns()) is not None:
            found.append(last_ns + state.shift_ns(text(bytes(header["host"])), anchor_of(header)))
    return max(found, default=None)
