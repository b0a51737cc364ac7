"""Which causes a run could not measure, and why. Such a cause is null, never 0."""

from typing import Final

import polars as pl

from ioprof.analysis.reads.lineage import LEAVES
from ioprof.analysis.selection import COMPUTE, COPIES, WORK, with_tasks
from ioprof.format.run_record import JobKind, Reason
from ioprof.format.trace import Trace

_SEEN: Final = {**WORK, "loader": pl.col("kind") == "sampler"}
_KIND_OF: Final = {"validation": "validate", "checkpoint": "checkpoint", "gc": "gc"}
_IS_KNOWN: Final = (
    pl.col("source").is_in(["storage", "page_cache", "socket", "pipe"]).fill_null(False)
)


def unmeasured(trace: Trace) -> dict[str, Reason]:
    """Cause to reason, for each cause that could not be measured. A cause that did not occur is not
    here: it is 0.
    """
    if trace.run.job_kind is JobKind.RAY:
        trace = with_tasks(trace)
    kinds = set(trace.sums["kind"].unique().drop_nulls().to_list())
    return (
        _of_device(trace, kinds)
        | _of_reads(trace)
        | _of_loader(trace, kinds)
        | _of_first_schema(trace, kinds)
        | _of_import(trace, kinds)
    )


def unknown_read_ratio(trace: Trace) -> float | None:
    """Share of the read time whose source is unknown, 0 to 1; null: no read took time."""
    reads = _reads(trace)
    total = int(reads["took_ns"].sum())
    return int(reads.filter(~_IS_KNOWN)["took_ns"].sum()) / total if total else None


def _reads(trace: Trace) -> pl.DataFrame:
    return trace.sums.filter(pl.col("kind").is_in(["read", "fault"]))


def _of_device(trace: Trace, kinds: set[str]) -> dict[str, Reason]:
    found = {}
    if kinds.isdisjoint(COMPUTE):
        found["compute"] = Reason.NO_COMPUTE
    if kinds.isdisjoint(COPIES) and _has_device(trace):
        found["h2d"] = Reason.NO_COPY
    if "comm" not in kinds and (trace.run.config.ranks or len(trace.ranks)) > 1:
        found |= dict.fromkeys(("exchange", "straggler"), Reason.NO_EXCHANGE)
    return found


def _has_device(trace: Trace) -> bool:
    """Whether the model ran elsewhere than on the CPU; if the run does not say, a span on a stream
    does.
    """
    device = trace.run.device_name
    return device != "cpu" if device else bool(trace.sums["on_stream"].any())


def _of_reads(trace: Trace) -> dict[str, Reason]:
    if not trace.run.reads_captured:
        return dict.fromkeys(("storage", "page_cache"), Reason.READS_NOT_CAPTURED)
    reads = _reads(trace)
    all_unknown = len(reads) and not reads.select(_IS_KNOWN.any()).item()
    return {"page_cache": Reason.SOURCES_UNKNOWN} if all_unknown else {}


def _of_loader(trace: Trace, kinds: set[str]) -> dict[str, Reason]:
    if "wait" not in kinds:
        reason, causes = Reason.NO_WAIT, set(LEAVES)
    elif "fetch" not in kinds and trace.run.config.loader != "null":
        reason, causes = Reason.NO_FETCH, set(LEAVES) - {"loader"}
    else:
        return {}
    causes = causes - _seen_in_process(trace)
    return {cause: reason for cause in LEAVES if cause in causes}


def _seen_in_process(trace: Trace) -> set[str]:
    """Causes of which a span began during the steps of a rank, in the process that made them. Of
    reads all sources count as seen.
    """
    process = ["rank", "pid"]
    steps = trace.rows(kinds=["step"]).group_by(process)
    when = steps.agg(since_ns=pl.col("start_ns").min(), until_ns=pl.col("end_ns").max())
    if when.is_empty():
        return set()
    is_work = pl.any_horizontal(*WORK.values(), pl.col("kind") == "sampler")
    is_inside = (pl.col("start_ns") < pl.col("until_ns")) & (pl.col("end_ns") > pl.col("since_ns"))
    flags = [of_cause.any().alias(cause) for cause, of_cause in _SEEN.items()]
    parts = trace.found(
        lambda part: (
            part.filter(is_work, pl.col("pid").is_in(when["pid"].unique().implode()))
            .join(when.lazy(), on=process)
            .filter(is_inside)
            .select(flags)
        )
    )
    row = parts.select(pl.all().any()).row(0, named=True)
    found = {cause for cause, is_seen in row.items() if is_seen}
    return found | {"storage", "page_cache"} if found & {"storage", "page_cache"} else found


def _of_first_schema(trace: Trace, kinds: set[str]) -> dict[str, Reason]:
    """Runs of the first schema did not record these, except for waits for batches to validate
    on.
    """
    if not trace.run.is_of_first_schema:
        return {}
    names = trace.rows(kinds=["wait"])["name"].cast(pl.String)
    seen = kinds | ({"validate"} if (names == "validate").any() else set())
    return {cause: Reason.NOT_DISTINGUISHED for cause, kind in _KIND_OF.items() if kind not in seen}


def _of_import(trace: Trace, kinds: set[str]) -> dict[str, Reason]:
    """What other profilers do not record; of one rank alone, waiting for other ranks is part of its
    exchange.
    """
    if trace.run.capture.imported_from is None:
        return {}
    found = {
        cause: Reason.NOT_OF_THIS_PROFILER for cause, kind in _KIND_OF.items() if kind not in kinds
    }
    if "wait" in kinds:
        stages = {"decode": "decode", "transform": "transform", "collate": "collate"}
        found |= {
            cause: Reason.NO_FETCH
            for cause, kind in (stages | {"delivery": "deliver"}).items()
            if kind not in kinds
        }
    return found | (
        {"straggler": Reason.NOT_OF_THIS_PROFILER}
        if "comm" in kinds and len(trace.ranks) < 2
        else {}
    )
