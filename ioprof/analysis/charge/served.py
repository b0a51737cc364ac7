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
    workers = [pid for pid, role in roles.items() if role == "worker"]
    others = [pid for pid, role in roles.items() if role not in ("worker", "rank")]
    answered = pl.col("pid").is_in(workers) & pl.col("waker_pid").is_in(others)
    if not trace.blocks.select(answered.any()).item():
        return False
    fetches = trace.rows(pl.col("pid").is_in(workers), kinds=["fetch"])
    fetches = fetches.with_columns(pl.col("host").cast(pl.String))
    wakers, making_ns, served_ns = by_host(trace.blocks), 0, 0
    for (host, tid), part in fetches.group_by("host", "tid"):
        known = wakers.get(None if host is None else str(host))
        if known is None:
            continue
        times = union(intervals(part))
        making_ns += total(times)
        by_process = known.by_process(int(str(tid)), times)
        served_ns += sum(total(when) for pid, when in by_process if pid in others)
    return served_ns > _LEAST * making_ns
