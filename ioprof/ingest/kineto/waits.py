"""Finds the calls of the runtime in which a thread of the host waited for the device: spans of kind
`sync`.

    in the file                                          waits
    cudaStreamSynchronize, cuCtxSynchronize, ...         always
    cudaMemcpy and other copies that are not Async       always
    cudaMemcpyAsync                                      from 50 us on: a copy from or to pageable
                                                         memory, or `.item()`
    cudaLaunchKernel, cudaMemsetAsync, cudaEventRecord   from 50 us on if work of before is not done
                                                         when the call returns, and from 10 us on if
                                                         that is work of 512 calls: the queue of
                                                         launches is full
    cudaGraphLaunch                                      the same, from 500 us on instead of 50
    cudaFree                                             until all work that was launched before is
                                                         done
    cudaMalloc, cudaHostAlloc, modules, queries          never

CUDA says of each copy whether its call returns before the copy is done, and that any call may block
where an internal resource is not available ("API synchronization behavior" in the manuals of both
interfaces). How many launches may be queued is not documented: 1,000 were measured, which took 4 to
5 us each, and then each call took as long as a kernel (stackoverflow.com/q/53970187). CUDA may also
wait where memory is given back (cuMemFree: "may perform implicit synchronization"), but its own
work there takes long too; where memory is got, only that.
"""

from typing import Final

import numpy as np
import polars as pl

from ioprof.format.schema import SPAN_COLUMNS
from ioprof.format.trace import table_schema
from ioprof.ingest.kineto.events import Tables
from ioprof.ingest.kineto.spans import OUTSIDE_NS, WALL_NS, monotonic, steps_at
from ioprof.ingest.kineto.window import Window
from ioprof.ingest.untrusted_values import LATEST_NS

LONG_CALL_NS: Final = 50_000
"""A call that queues work takes 4 to 5 us, and several times as long under a profiler."""
LONG_GRAPH_NS: Final = 500_000
"""The launch of a graph takes longer the more nodes it has: up to several tenths of a microsecond
for each."""
FULL_QUEUE: Final = 512
"""Calls whose work is not done. The queue has 1,024 places, of which records of events and waits
for them also take some."""
FULL_QUEUE_CALL_NS: Final = 10_000
"""With a full queue a call lasts as long as the device takes for a kernel, which may be short."""

_VERSION: Final = r"(?:_v\d+)?(?:_pt[sd][sz])?$"
"""What CUPTI appends to a name: the version of the call, and the default stream of the thread."""
_CALLS: Final = {
    "wait": r"^(?:cuda|cu|hip)(?:Device|Thread|Ctx|Stream|Event)Synchronize$",
    "graph": r"^(?:cuda|cu|hip)GraphLaunch",
    "free": r"^(?:cudaFree|cuMemFree|hipFree)$",
    "copy": r"^(?:cuda|cu|hip)Memcpy.*Async",
    "blocking copy": r"^(?:cuda|cu|hip)Memcpy",
    "launch": r"^(?:cuda|cu|hip)(?:\w*Launch|Memset|EventRecord|StreamWaitEvent)",
}
"""The first that fits a name counts."""
_ALWAYS: Final = ("wait", "blocking copy", "free")
_MOST_TID: Final = 1 << 22  # PID_MAX_LIMIT of Linux


def wall_waits(events: Tables, window: Window) -> pl.DataFrame:
    """Columns `wall_ns until_ns thread name`: when threads waited, and their system thread ids
    where these are known.
    """
    base_ns = window.base_ns or 0
    calls = events.launches.drop_nulls(["ts", "dur"])
    calls = calls.filter(
        (pl.col("ts") + base_ns).is_between(WALL_NS, LATEST_NS), pl.col("dur") < LATEST_NS
    )
    calls = calls.with_columns(
        wall_ns=pl.col("ts") + base_ns, until_ns=pl.col("ts") + pl.col("dur") + base_ns
    )
    names = calls.select(pl.col("name").unique()).with_columns(
        plain=pl.col("name").cast(pl.String).str.replace(_VERSION, "")
    )
    what = pl.coalesce(
        pl.when(pl.col("plain").str.contains(pattern)).then(pl.lit(what))
        for what, pattern in _CALLS.items()
    )
    may_wait = pl.col("what").is_in(_ALWAYS) | (pl.col("dur") >= FULL_QUEUE_CALL_NS)
    named = calls.join(
        names.with_columns(what=what).drop_nulls("what"), on="name", maintain_order="left"
    ).filter(may_wait)
    waits = _waits(named, _Work(events, base_ns))
    tids = _tids(calls, waits["thread"].unique(), window)
    tid = pl.col("thread").replace_strict(tids, default=None, return_dtype=pl.Int64)
    return waits.select("wall_ns", "until_ns", pl.col("plain").alias("name"), tid=tid)


class _Work:
    """What the device did, by the calls that launched it."""

    def __init__(self, events: Tables, base_ns: int) -> None:
        done = (
            events.of_device.drop_nulls(["correlation", "ts", "dur"])
            .group_by("correlation")
            .agg(end=(pl.col("ts") + pl.col("dur")).max())
        )
        calls = events.launches.drop_nulls(["correlation", "ts"]).unique(
            "correlation", keep="first"
        )
        work = calls.join(done, on="correlation").select("ts", "end").sort("ts") + base_ns
        self._launched = work["ts"].to_numpy()
        self._ended = np.sort(work["end"].to_numpy())
        self._last_ends = np.maximum.accumulate(np.concatenate([[0], work["end"].to_numpy()]))

    def unfinished(self, calls: pl.DataFrame) -> pl.Series:
        """Of how many launches before a call the work was not done when it returned."""
        before = np.searchsorted(self._launched, calls["wall_ns"].to_numpy())
        done = np.searchsorted(self._ended, calls["until_ns"].to_numpy(), side="right")
        return pl.Series("unfinished", before - done, dtype=pl.Int64)

    def busy_until(self, calls: pl.DataFrame) -> pl.Series:
        """When all work was done that was launched before a call."""
        return pl.Series(
            "busy_until",
            self._last_ends[np.searchsorted(self._launched, calls["wall_ns"].to_numpy())],
            dtype=pl.Int64,
        )


def _waits(calls: pl.DataFrame, work: _Work) -> pl.DataFrame:
    """The calls that waited, each until it no longer did."""
    what, dur, unfinished = pl.col("what"), pl.col("dur"), pl.col("unfinished")
    freed_at = pl.min_horizontal("until_ns", "busy_until")
    until = pl.when(what == "free").then(freed_at).otherwise("until_ns")
    is_full = (dur >= FULL_QUEUE_CALL_NS) & (unfinished >= FULL_QUEUE)
    waited = (
        pl.when(what.is_in(_ALWAYS))
        .then(pl.lit(value=True))
        .when(what == "copy")
        .then((dur >= LONG_CALL_NS) | is_full)
        .otherwise(
            (dur >= pl.when(what == "graph").then(LONG_GRAPH_NS).otherwise(LONG_CALL_NS))
            & (unfinished >= 1)
            | is_full
        )
    )
    found = (
        calls.with_columns(work.unfinished(calls), work.busy_until(calls))
        .filter(waited)
        .with_columns(until_ns=until)
    )
    return found.filter(pl.col("until_ns") > pl.col("wall_ns"))


def _tids(calls: pl.DataFrame, threads: pl.Series, window: Window) -> dict[int, int | None]:
    """The system thread ids of threads in the file, by their numbers there; None: not known.

    A thread that Python does not know, and that made no call while the thread of the steps made
    one, is taken as that: it is one of autograd, and the thread of the steps waits for it in
    `backward()`.
    """
    known = window.threads | (
        {window.loop_tid: window.loop_tid} if window.loop_tid is not None else {}
    )
    of_loop = [
        sign * number for number, tid in known.items() if tid == window.loop_tid for sign in (1, -1)
    ]
    own = calls.filter(pl.col("thread").is_in(of_loop))
    tids: dict[int, int | None] = {}
    for number in threads.drop_nulls().to_list():
        tids[number] = known.get(abs(number), number if 0 < number <= _MOST_TID else None)
        if (
            abs(number) not in known
            and len(own)
            and not _overlap(own, calls.filter(pl.col("thread") == number))
        ):
            tids[number] = window.loop_tid
    return tids


def _overlap(calls: pl.DataFrame, others: pl.DataFrame) -> bool:
    """Whether some call was made during one of the others."""
    starts, ends = (np.sort(calls[name].to_numpy()) for name in ("wall_ns", "until_ns"))
    begun = np.searchsorted(starts, others["until_ns"].to_numpy())
    ended = np.searchsorted(ends, others["wall_ns"].to_numpy(), side="right")
    return bool((begun > ended).any())


def wait_spans(wall: pl.DataFrame, window: Window) -> pl.DataFrame:
    """The span table of `wall_waits`, without those that ioprof caused, by start. The spans of a
    thread do not overlap.
    """
    times = wall.with_columns(
        start_ns=monotonic("wall_ns", window), end_ns=monotonic("until_ns", window)
    )
    first_ns = (
        window.ready_ns
        if window.ready_ns is not None
        else (window.start_ns or OUTSIDE_NS) - OUTSIDE_NS
    )
    own_end_ns = (
        window.ending_ns
        if window.ending_ns is not None
        else window.marks[-1][1]
        if window.marks
        else LATEST_NS
    )
    inside = times.filter(pl.col("start_ns") >= first_ns, pl.col("start_ns") < own_end_ns).sort(
        "start_ns", "end_ns"
    )
    until = pl.col("end_ns").cum_max().shift(1).over("tid")
    apart = inside.with_columns(start_ns=pl.max_horizontal("start_ns", until)).filter(
        pl.col("end_ns") > pl.col("start_ns")
    )
    stepped = apart.with_columns(steps_at(apart["start_ns"], window.marks))
    columns = {
        "start_ns": pl.col("start_ns"),
        "end_ns": pl.col("end_ns"),
        "kind": pl.lit("sync"),
        "host": pl.lit(window.host),
        "rank": pl.lit(window.rank),
        "pid": pl.lit(window.pid),
        "tid": pl.col("tid"),
        "step": pl.col("step"),
        "name": pl.col("name"),
    }
    schema = table_schema(SPAN_COLUMNS)
    return stepped.select(
        columns.get(name, pl.lit(None)).cast(dtype).alias(name) for name, dtype in schema.items()
    ).sort("start_ns")
