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
    roles = {process.pid: process.role for process in trace.run.processes}
    fetches = trace.rows(kinds=["fetch"]).with_columns(pl.col("host").cast(pl.String))
    wakers, making_ns, served_ns = by_host(trace.blocks), 0, 0
    for (host, tid), part in fetches.group_by("host", "tid"):
        known = wakers.get(None if host is None else str(host))
        if known is None or roles.get(int(part["pid"][0] or 0)) != "worker":
            continue
        times = union(intervals(part))
        making_ns += total(times)
        served_ns += sum(
            total(when)
            for pid, when in known.by_process(int(str(tid)), times)
            if roles.get(pid) not in ("worker", "rank")
        )
    return served_ns > _LEAST * making_ns
