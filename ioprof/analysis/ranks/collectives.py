"""By what means operations of NCCL were recorded, and what the recording of them does not show."""

from collections.abc import Iterator
from typing import Final

import polars as pl

from ioprof.analysis.selection import COMPUTE
from ioprof.format.run_record import CollectiveSources, Reason, Sentence, sentence
from ioprof.format.trace import Trace

_MOST_PROCESSES: Final = 8


def collective_sources(trace: Trace) -> CollectiveSources | None:
    """How many operations were timed by which means; None: the NCCL plugin recorded none."""
    recorded = trace.run.capture.collectives
    if not recorded:
        return None
    seen = sum(each.seen_by_others or 0 for each in recorded)
    by_gpu_timer = sum(each.by_gpu_timer or 0 for each in recorded)
    by_host = sum(each.by_host or 0 for each in recorded)
    by_network = sum(each.by_network or 0 for each in recorded)
    spans = len(trace.rows(pl.col("stream") >= 0, kinds=["comm"]))
    return CollectiveSources(
        operations=sum(each.operations or 0 for each in recorded),
        by_gpu_timer=by_gpu_timer,
        by_host=by_host,
        by_network=by_network,
        apis=tuple(sorted({each.api for each in recorded if each.api})),
        seen_by_others=seen,
        other_spans=max(0, spans - (by_gpu_timer + by_host + by_network - seen)),
        without_times=sum(each.without_times or 0 for each in recorded),
    )


def may_be_hidden(trace: Trace) -> bool:
    """Whether exchange was recorded by NCCL's plugin alone: it is not known what the device
    computed at the same time.
    """
    recorded = trace.run.capture.collectives
    has_compute = bool(trace.sums["kind"].is_in(list(COMPUTE)).any())
    return bool(recorded) and not has_compute


def collective_gaps(trace: Trace) -> Iterator[Sentence]:
    """What operations of NCCL did and the recording does not show."""
    recorded, reason = trace.run.capture.collectives, trace.run.capture.collectives_reason
    if reason and not recorded and "nccl" in (trace.run.config.backend or ""):
        yield sentence("collectives_of_gpu", why=reason)
    if reason is Reason.NCCL_PLUGIN_OF_JOB and recorded:
        yield sentence("no_collectives_of_some", why=reason)
    for each in recorded[:_MOST_PROCESSES]:
        if each.unended:
            names, others = each.unended_names, each.unended > len(each.unended_names)
            facts = {"operations": each.unended, "names": list(names), "others": others}
            yield sentence("unended_collectives", rank=each.rank, pid=each.pid, **facts)
    untimed = sum((each.without_times or 0) - (each.by_copy_engine or 0) for each in recorded)
    if untimed > 0:
        is_old = any((each.api or 0) < 3 for each in recorded)
        yield sentence("untimed_collectives", number=untimed, is_old=is_old)
    if by_copies := sum(each.by_copy_engine or 0 for each in recorded):
        yield sentence("collectives_by_copy_engines", number=by_copies)
    if captured := sum(each.captured or 0 for each in recorded):
        yield sentence("captured_collectives", number=captured)
    if untracked := sum((each.untracked or 0) + (each.lost or 0) for each in recorded):
        yield sentence("untracked_collectives", number=untracked)
