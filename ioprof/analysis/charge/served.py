"""Whether workers wait for what another process of the job answers, such as a manager of
multiprocessing.
"""

from typing import Final

import polars as pl

from ioprof.analysis.graph.wakers import by_host
from ioprof.analysis.intervals import total, union
from ioprof.analysis.selection import intervals
from ioprof.format.trace import Trace

_LEAST: Final = 0.2
"""Part of the time in which workers make batches that such a process works for them."""


def are_served(trace: Trace) -> bool:
    """By who worked for them while they made batches: a process that is no worker and no rank."""
    making_ns = served_ns = 0
    for host, wakers in by_host(_answered(trace)).items():
        roles = {each.pid: each.role for each in trace.run.processes if each.host in (host, None)}
        workers = [pid for pid, role in roles.items() if role == "worker"]
        own = pl.col("host").cast(pl.String).eq_missing(pl.lit(host, pl.String))
        fetches = trace.rows(own, pl.col("pid").is_in(workers), kinds=["fetch"])
        for (tid,), part in fetches.group_by("tid"):
            times = union(intervals(part))
            making_ns += total(times)
            served_ns += sum(
                total(when)
                for pid, when in wakers.by_process(int(str(tid)), times)
                if roles.get(pid) not in ("worker", "rank")
            )
    return served_ns > _LEAST * making_ns


def _answered(trace: Trace) -> pl.DataFrame:
    """The blocks, if such a process ended any of a worker."""
    workers, others = (
        [each.pid for each in trace.run.processes if (each.role in ("worker", "rank")) == is_own]
        for is_own in (True, False)
    )
    is_any = (pl.col("pid").is_in(workers) & pl.col("waker_pid").is_in(others)).any()
    return trace.blocks if trace.blocks.select(is_any).item() else trace.blocks.clear()
