"""By what means operations of NCCL were recorded, and what the recording of them does not show."""

from collections.abc import Iterator
from typing import Final

import polars as pl

from ioprof.analysis.selection import COMPUTE
from ioprof.format.run_record import CollectiveCapture, CollectiveSources, Reason
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


def collectives_not_seen(trace: Trace) -> Iterator[str]:
    """One sentence for each thing that operations of NCCL did and the recording does not show."""
    recorded, reason = trace.run.capture.collectives, trace.run.capture.collectives_reason
    if reason and not recorded and "nccl" in (trace.run.config.backend or ""):
        yield f"collectives were recorded only where the GPU was: {reason.text}"
    if reason is Reason.NCCL_PLUGIN_OF_JOB and recorded:
        yield f"some processes recorded no collectives: {reason.text}"
    for each in recorded[:_MOST_PROCESSES]:
        if each.unended:
            names = ", ".join(each.unended_names) + (
                " and others" if each.unended > len(each.unended_names) else ""
            )
            yield (
                f"{_name(each)} had not left {each.unended:,} operation{'s' * (each.unended > 1)}"
                f" of NCCL when it ended: {names}"
            )
    untimed = sum((each.without_times or 0) - (each.by_copy_engine or 0) for each in recorded)
    if untimed > 0:
        yield (
            f"{untimed:,} operations of NCCL have no times: no kernel and no transfer of them was"
            f" reported ({_why(recorded)})"
        )
    by_copies = sum(each.by_copy_engine or 0 for each in recorded)
    if by_copies:
        yield (
            f"{by_copies:,} operations of NCCL were made by copy engines, whose times NCCL does not"
            " report"
        )
    captured = sum(each.captured or 0 for each in recorded)
    if captured:
        yield (
            f"{captured:,} operations of NCCL were launched by CUDA graphs: their step is that in"
            " which they ran"
        )
    untracked = sum((each.untracked or 0) + (each.lost or 0) for each in recorded)
    if untracked:
        yield f"{untracked:,} operations or records of NCCL found no room, and are not here"


def _why(recorded: tuple[CollectiveCapture, ...]) -> str:
    if any((each.api or 0) < 3 for each in recorded):
        return "NCCL before 2.26 reports only transfers by the network"
    return "they did not begin before the recording ended"


def _name(each: CollectiveCapture) -> str:
    return f"process {each.pid}" if each.rank is None else f"rank {each.rank} (pid {each.pid})"
