"""Operations of NCCL that its profiler plugin recorded, as `comm` spans, without those that were
recorded by other means too.

A span is named for its operation and numbered within its step in the order in which the host
enqueued it: `AllReduce 0`, as spans of Kineto are. Operations of a communicator that is not that of
the whole job have its identity in the name. Send and receive have the same name on both ranks. The
step is that in which the host enqueued the operation.
"""

from collections import Counter
from dataclasses import dataclass, replace
from typing import Final

import polars as pl

from ioprof.format.collective_format import FUNCTIONS
from ioprof.format.run_record import CollectiveCapture, Damage
from ioprof.format.schema import SPAN_COLUMNS
from ioprof.format.trace import Trace, table_schema
from ioprof.ingest.collectives.files import CollectiveFile, is_by_copy_engine, is_captured
from ioprof.ingest.rings import Process
from ioprof.ingest.untrusted_values import LATEST_NS, damage_facts

COMM_STREAM: Final = 2
"""The stream of the spans, see `wire_format.RECORD`."""
_SEND, _RECEIVE = FUNCTIONS.index("Send"), FUNCTIONS.index("Recv")
_MOST_NAMES: Final = 3
_IMPLAUSIBLE_NS: Final = 10**15  # 11 days


@dataclass(frozen=True)
class Collectives:
    """What one process recorded of NCCL. Times of `spans` are those of the host until they are
    aligned.
    """

    host: str
    spans: pl.DataFrame
    facts: CollectiveCapture
    damage: tuple[Damage, ...]


def collectives_of(files: list[CollectiveFile], processes: list[Process]) -> list[Collectives]:
    """The spans of each file, on the clock of its host."""
    known = {(process.host, process.pid): process for process in processes}
    world = max((each.ranks for file in files for each in file.communicators), default=0)
    return [_collectives(file, known.get((file.host, file.pid)), world) for file in files]


def add_collectives(trace: Trace, found: list[Collectives]) -> Trace:
    """Add the spans, which are aligned now, except those of a process and time in which the GPU
    itself was seen to exchange.

    That is within a window of Kineto that has `comm` spans, and within such a span of a stream that
    the job recorded itself.
    """
    if not found:
        return trace
    kept = [_without_seen(each, trace) for each in found]
    capture = trace.run.capture
    run = trace.run.replace(
        capture=capture.replace(
            collectives=(*capture.collectives, *(each.facts for each in kept)),
            damaged=(*capture.damaged, *(entry for each in kept for entry in each.damage)),
        )
    )
    return replace(trace, run=run, spans=pl.concat([trace.spans, *(each.spans for each in kept)]))


def _without_seen(each: Collectives, trace: Trace) -> Collectives:
    of_process = (pl.col("host").cast(pl.String) == each.host) & (pl.col("pid") == each.facts.pid)
    seen = trace.spans.filter(of_process, pl.col("kind") == "comm", pl.col("stream") >= 0).select(
        "start_ns", "end_ns"
    )
    windows = [
        (window.start_ns, window.end_ns)
        for window in (trace.run.capture.gpu.windows if trace.run.capture.gpu else ())
        if (window.host, window.pid) == (each.host, each.facts.pid)
        and window.start_ns is not None
        and window.end_ns is not None
    ]
    with_exchange = [
        row
        for row in windows
        if not seen.filter(pl.col("start_ns") < row[1], pl.col("end_ns") > row[0]).is_empty()
    ]
    times = pl.concat([seen, pl.DataFrame(with_exchange, schema=seen.schema, orient="row")]).sort(
        "start_ns"
    )
    if times.is_empty():
        return each
    until = times.select("start_ns", until=pl.col("end_ns").cum_max())
    middle = (
        each.spans.select(middle=(pl.col("start_ns") + pl.col("end_ns")) // 2)
        .with_row_index("row")
        .sort("middle")
    )
    covered = middle.join_asof(
        until, left_on="middle", right_on="start_ns", strategy="backward"
    ).filter(pl.col("middle") <= pl.col("until"))
    spans = (
        each.spans.with_row_index("row")
        .filter(~pl.col("row").is_in(covered["row"].implode()))
        .drop("row")
    )
    return replace(
        each, spans=spans, facts=each.facts.replace(seen_by_others=len(each.spans) - len(spans))
    )


# -------------------------------------------------------------------------------------- one process


def _collectives(file: CollectiveFile, process: Process | None, world: int) -> Collectives:
    rank = process.rank if process else None
    if file.operations.is_empty():
        facts = CollectiveCapture(
            host=file.host or None,
            pid=file.pid,
            rank=rank,
            api=file.api,
            lost=file.lost,
            untracked=file.untracked,
        )
        return Collectives(
            file.host,
            _spans(file, rank, file.operations),
            facts,
            tuple(damage_facts(file.path.name, file.damage)),
        )
    own_rank = next(
        (
            each.rank
            for each in file.communicators
            if world and each.ranks == world and each.rank >= 0
        ),
        None,
    )
    operations = file.operations.with_columns(
        step=_steps(file.operations["enqueue_ns"], process), label=_labels(file, world)
    )
    numbered = operations.sort("enqueue_ns", maintain_order=True).with_columns(
        name=pl.format("{} {}", "label", pl.int_range(pl.len()).over("step", "label"))
    )
    began = numbered.filter(pl.col("start_ns").is_not_null())
    last_ns = max([file.last_ns, *(_last_ns(process) if process else [])])
    closed = pl.Series([each.closed_ns or last_ns for each in file.communicators], dtype=pl.Int64)
    ended = began.with_columns(
        end_ns=pl.coalesce(
            "end_ns", pl.max_horizontal("start_ns", closed.gather(began["communicator"]))
        ),
    )
    valid = ended.filter(
        pl.col("start_ns").is_between(0, LATEST_NS - 1),
        (pl.col("end_ns") - pl.col("start_ns")).is_between(0, _IMPLAUSIBLE_NS),
    )
    damage = file.damage + Counter({"operations with impossible times": len(ended) - len(valid)})
    unended = began.filter(pl.col("end_ns").is_null())
    times = Counter(dict(numbered["times"].value_counts().iter_rows()))
    facts = CollectiveCapture(
        host=file.host,
        pid=file.pid,
        rank=rank if rank is not None else own_rank,
        api=file.api,
        operations=len(numbered),
        by_gpu_timer=times["gpu"],
        by_host=times["kernel"],
        by_network=times["network"],
        without_times=times["none"],
        by_copy_engine=len(numbered.filter(is_by_copy_engine())),
        captured=len(numbered.filter(is_captured())),
        unended=len(unended),
        unended_names=tuple(
            _with_step(*row) for row in unended.select("name", "step").head(_MOST_NAMES).iter_rows()
        ),
        lost=file.lost,
        untracked=file.untracked,
    )
    return Collectives(
        file.host,
        _spans(file, facts.rank, valid),
        facts,
        tuple(damage_facts(file.path.name, +damage)),
    )


def _spans(file: CollectiveFile, rank: int | None, operations: pl.DataFrame) -> pl.DataFrame:
    schema = table_schema(SPAN_COLUMNS)
    if operations.is_empty():
        return pl.DataFrame(schema=schema)
    columns = {
        "start_ns": pl.col("start_ns"),
        "end_ns": pl.col("end_ns"),
        "kind": pl.lit("comm"),
        "host": pl.lit(file.host),
        "rank": pl.lit(rank),
        "pid": pl.lit(file.pid),
        "stream": pl.lit(COMM_STREAM),
        "step": pl.col("step"),
        "bytes": pl.col("bytes"),
        "name": pl.col("name"),
    }
    return operations.select(
        columns.get(name, pl.lit(None)).cast(dtype).alias(name) for name, dtype in schema.items()
    )


def _labels(file: CollectiveFile, world: int) -> pl.Series:
    """The name of each operation without its number: the same on all ranks that take part, and
    different elsewhere.
    """
    of_all = next(
        (place for place, each in enumerate(file.communicators) if world and each.ranks == world),
        None,
    )
    groups = [
        "" if place == of_all else f" in communicator {each.hash:016x}"
        for place, each in enumerate(file.communicators)
    ]
    ranks = [each.rank for each in file.communicators]
    keys = file.operations.select("function", "communicator", "peer").unique()
    names = {}
    for function, communicator, peer in keys.iter_rows():
        own, name = ranks[communicator], FUNCTIONS[function] if function else "operation"
        if function in (_SEND, _RECEIVE):
            sender, receiver = (own, peer) if function == _SEND else (peer, own)
            name = (
                "SendRecv"
                f" {'?' if sender is None else sender}>{'?' if receiver is None else receiver}"
            )
        names[function, communicator, peer] = name + groups[communicator]
    rows = file.operations.select("function", "communicator", "peer").iter_rows()
    return pl.Series([names[row] for row in rows], dtype=pl.String)


def _steps(enqueued: pl.Series, process: Process | None) -> pl.Series:
    """The step of the process in progress at each time; null: none was."""
    empty = pl.Series([None] * len(enqueued), dtype=pl.Int64)
    if process is None:
        return empty
    steps = [
        capture.held.filter(pl.col("kind") == "step").select("start_ns", "end_ns", "step")
        for capture in process.captures
    ]
    table = (
        pl.concat(steps)
        .drop_nulls()
        .group_by("step")
        .agg(pl.col("start_ns").min(), pl.col("end_ns").max())
        .sort("start_ns")
    )
    if table.is_empty():
        return empty
    times = pl.DataFrame({"at": enqueued}).with_row_index("row").sort("at")
    joined = times.join_asof(table, left_on="at", right_on="start_ns", strategy="backward").sort(
        "row"
    )
    return joined.select(
        pl.when(pl.col("at") <= pl.col("end_ns")).then("step").cast(pl.Int64)
    ).to_series()


def _with_step(name: str, step: int | None) -> str:
    return name if step is None else f"{name} of step {step}"


def _last_ns(process: Process) -> list[int]:
    return [capture.last_ns for capture in process.captures if capture.last_ns is not None]
