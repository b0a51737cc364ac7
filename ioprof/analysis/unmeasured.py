"""Which causes a run could not measure, and why. Such a cause is null, never 0."""

from typing import Final

import polars as pl

from ioprof.analysis.facts import Facts
from ioprof.analysis.lineage import LEAVES
from ioprof.analysis.selection import COMPUTE, COPIES
from ioprof.trace import Trace

SOURCES_UNKNOWN: Final = "reads could not be told apart from storage reads; included in storage"
READS_NOT_CAPTURED: Final = "reads were not captured; their time is in loader"
_NO_WAIT: Final = "no wait for a batch was recorded; its time is in host"
_NO_FETCH: Final = "what the loader's workers did was not recorded; its time is in loader"
_NO_COMPUTE: Final = "no activity of the accelerator was recorded; its time is in the other causes"
_NO_COPY: Final = "no copy to the device was recorded; its time is in host"
_NO_EXCHANGE: Final = "no gradient exchange was recorded; its time is in host"


def unmeasured(trace: Trace) -> dict[str, str]:
    """Cause to reason, for each cause that could not be measured. What truly did not occur is not here: it is 0."""
    facts = Facts.of(trace.run)
    kinds = set(trace.spans["kind"].unique().drop_nulls().to_list())
    return _of_device(trace, facts, kinds) | _of_reads(trace, facts) | _of_loader(facts, kinds)


def unknown_read_ratio(trace: Trace) -> float | None:
    """Share of the read time whose source is unknown, 0 to 1; null: no read took time."""
    reads = _reads(trace).select(took=pl.col("end_ns") - pl.col("start_ns"), known=_KNOWN)
    total = int(reads["took"].sum())
    return int(reads.filter(~pl.col("known"))["took"].sum()) / total if total else None


_KNOWN: Final = pl.col("source").is_in(["storage", "page_cache"]).fill_null(False)


def _reads(trace: Trace) -> pl.DataFrame:
    return trace.spans.select("start_ns", "end_ns", "kind", "source").filter(pl.col("kind").is_in(["read", "fault"]))


def _of_device(trace: Trace, facts: Facts, kinds: set[str]) -> dict[str, str]:
    found = {}
    if kinds.isdisjoint(COMPUTE):
        found["compute"] = _NO_COMPUTE
    if kinds.isdisjoint(COPIES) and _has_device(trace, facts):
        found["h2d"] = _NO_COPY
    if "comm" not in kinds and (facts.ranks or len(trace.ranks)) > 1:
        found["communication"] = _NO_EXCHANGE
    return found


def _has_device(trace: Trace, facts: Facts) -> bool:
    """Whether the model ran elsewhere than on the CPU; if the run does not say, a span on a stream does."""
    return facts.device != "cpu" if facts.device else bool((trace.spans["stream"] >= 0).any())


def _of_reads(trace: Trace, facts: Facts) -> dict[str, str]:
    if not facts.reads_captured:
        return dict.fromkeys(("storage", "page_cache"), READS_NOT_CAPTURED)
    reads = _reads(trace)
    all_unknown = len(reads) and not reads.select(_KNOWN.any()).item()
    return {"page_cache": SOURCES_UNKNOWN} if all_unknown else {}


def _of_loader(facts: Facts, kinds: set[str]) -> dict[str, str]:
    if "wait" not in kinds:
        return dict.fromkeys(LEAVES, _NO_WAIT)
    if "fetch" not in kinds and facts.loader != "null":
        return {cause: _NO_FETCH for cause in LEAVES if cause != "loader"}
    return {}
