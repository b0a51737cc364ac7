"""Who ended a block: the records of all processes of a job, matched by their objects.

A thread that was blocked on an object was woken by a call of another thread on the same object, at
a time within the block. Of a pipe or socket it was the first such call, since who waits takes what
comes first. Of what several may wait for at a time (locks, semaphores, conditions) it was the last
one: those before woke others. A block that ended because its time was over was ended by nobody; one
that ended because the other end of its channel was closed, by the last that closed it or ended.

A call of read or write that took long did not have to wait where the other end is recorded and did
nothing meanwhile: then the thread had lost its core, and that is no block.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import polars as pl

from ioprof.format.schema import (
    BLOCK,
    BLOCK_COLUMNS,
    ENDS,
    OBJECTS,
    OF_SEVERAL,
    RECORDS_OF_WAITS,
)
from ioprof.format.trace import empty_table, table_schema

_BLOCK: Final = RECORDS_OF_WAITS[BLOCK]
_TAKE_FIRST: Final = [OBJECTS.index(name) for name in ("channel", "room")]
_PROCESS, _THREAD = OBJECTS.index("process"), OBJECTS.index("thread")
_NO_CALL_ENDS: Final = [
    _PROCESS,
    _THREAD,
    OBJECTS.index("sleep"),
]
_TIME_WAS_OVER, _HUNG_UP = ENDS.index("time was over"), ENDS.index("hung up")
_INTERRUPTED: Final = ENDS.index("interrupted")
_LATE_NS: Final = 100_000_000
"""How long after a process began to end somebody whom its end woke may run: it is recorded before
the kernel takes its memory apart and closes what it had open."""
_LEAST_ID: Final = 2
"""Lower ids are of no object, see native/capture/channels.h."""
_TRIES: Final = 4
"""Calls that are looked at for one that is not the blocked thread's own."""

_Array = npt.NDArray[Any]


@dataclass
class Waits:
    """The blocks and wakes of one capture file."""

    _parts: list[tuple[_Array, _Array]] = field(default_factory=list)

    def add(self, records: _Array, tids: _Array) -> None:
        """Add what some chunks hold."""
        self._parts.append((records.copy(), tids.copy()))

    def table(self) -> pl.DataFrame:
        """`is_block`, `start_ns`, `end_ns`, `tid`, `object` (a place in `OBJECTS`), `id`, `how` (a
        place in `ENDS`).
        """
        columns = [
            pl.DataFrame(
                {
                    "is_block": records["kind"] == _BLOCK,
                    "start_ns": records["start_ns"],
                    "end_ns": records["end_ns"],
                    "tid": tids,
                    "object": records["source"].astype(np.int64) - 1,
                    "id": records["offset"],
                    "how": records["bytes"],
                }
            )
            for records, tids in self._parts
        ]
        found = pl.concat(columns) if columns else None
        if found is None:
            return pl.DataFrame()
        return found.filter(pl.col("object").is_between(0, len(OBJECTS) - 1))


def blocks_of(
    waits: Iterable[tuple[str, int, int | None, Waits]],
    align: Callable[[str, pl.DataFrame], pl.DataFrame],
) -> pl.DataFrame:
    """The table of blocks of all processes: each host, process, rank and its waits. `align`
    converts `start_ns` and `end_ns` of a table from the clock of a host.
    """
    tables = []
    for number, (host, pid, rank, each) in enumerate(waits):
        if (table := each.table()).is_empty():
            continue
        facts = {
            "host": pl.lit(host),
            "pid": pl.lit(pid, pl.Int64),
            "rank": pl.lit(rank, pl.Int32),
            "process": pl.lit(number, pl.Int64),
        }
        tables.append(align(host, table).with_columns(**facts))
    if not tables:
        return empty_table(BLOCK_COLUMNS)
    records = pl.concat(tables)
    blocks, wakes = records.filter("is_block").sort("start_ns"), records.filter(~pl.col("is_block"))
    row = _ending_calls(blocks, wakes)
    is_wait = ~_had_no_core(blocks, wakes, row)
    blocks, row = blocks.filter(is_wait), row[is_wait]
    wakers = _wakers(blocks, wakes, row)
    names = pl.Series(OBJECTS, dtype=table_schema(BLOCK_COLUMNS)["object"])
    found = blocks.with_columns(
        object=names.gather(blocks["object"]),
        id=pl.when(pl.col("id") >= _LEAST_ID).then("id"),
        timed_out=pl.col("how") == _TIME_WAS_OVER,
        **wakers,
    )
    return found.select(list(BLOCK_COLUMNS)).cast(pl.Schema(table_schema(BLOCK_COLUMNS)))


def _had_no_core(blocks: pl.DataFrame, wakes: pl.DataFrame, row: _Array) -> _Array:
    """Which blocks are calls of read or write that need not have waited."""
    of_block, _, of_wake = _keys(blocks, wakes)
    is_recorded = np.isin(of_block, of_wake[wakes["how"].to_numpy() == 0])
    is_call = np.isin(blocks["object"].to_numpy(), _TAKE_FIRST) & (blocks["how"].to_numpy() == 0)
    found: _Array = is_recorded & is_call & (row < 0)
    return found


def _wakers(blocks: pl.DataFrame, wakes: pl.DataFrame, row: _Array) -> dict[str, pl.Series]:
    """Of each block `waker_pid`, `waker_tid` and `woken_ns`; `row`: of the call that ended it."""
    objects, ids = blocks["object"].to_numpy(), blocks["id"].to_numpy()
    has_call = row >= 0
    of_end = np.isin(objects, (_PROCESS, _THREAD)) & (ids > 0)

    def chosen(of_wake: str, of_process: _Array, of_thread: _Array) -> pl.Series:
        own = np.where(objects == _PROCESS, of_process, of_thread)
        values = wakes[of_wake].to_numpy()[row] if len(wakes) else np.zeros(len(row), np.int64)
        found = pl.Series(np.where(has_call, values, own))
        return found.to_frame("value").select(pl.when(pl.Series(has_call | of_end)).then("value"))[
            "value"
        ]

    return {
        "waker_pid": chosen("pid", ids, blocks["pid"].to_numpy()),
        "waker_tid": chosen("tid", ids, ids),
        "woken_ns": chosen("start_ns", blocks["end_ns"].to_numpy(), blocks["end_ns"].to_numpy()),
    }


def _ending_calls(blocks: pl.DataFrame, wakes: pl.DataFrame) -> _Array:
    """Of each block the row of the call that ended it; -1: none is known."""
    wakes = wakes.with_row_index("row")
    is_closing = pl.col("how") == _HUNG_UP
    found = _waking_calls(blocks, wakes.filter(~is_closing))
    closed = _closing_calls(blocks, wakes.filter(is_closing))
    ended: _Array = np.where(found >= 0, found, closed)
    return ended


def _closing_calls(blocks: pl.DataFrame, closings: pl.DataFrame) -> _Array:
    """Of blocks that ended so, the last call that closed the other end, or end of a process. A
    signal that interrupted a block is taken for that of such an end, if one was just before.
    """
    row = np.full(len(blocks), -1, np.int64)
    if blocks.is_empty() or closings.is_empty():
        return row
    how, own = blocks["how"].to_numpy(), _threads(blocks)
    since, until = blocks["start_ns"].to_numpy(), blocks["end_ns"].to_numpy()
    latest = np.full(len(blocks), np.iinfo(np.int64).min)
    is_exit = pl.col("object") == _PROCESS
    for table, by_id in ((closings.filter(is_exit), False), (closings.filter(~is_exit), True)):
        if table.is_empty():
            continue
        table = table.sort("start_ns")
        times, threads = table["start_ns"].to_numpy(), _threads(table)
        of_block, of_call = np.zeros(len(blocks), np.int64), np.zeros(len(table), np.int64)
        if by_id:
            of_block, _, of_call = _keys(blocks, table)
        order = np.lexsort((times, of_call))
        place = _place(of_call[order], times[order], of_block, until, "right") - 1
        at = order[np.maximum(place, 0)]
        early = since if by_id else until - _LATE_NS
        fits = _is_of(of_call[order], times[order], place, of_block, until)
        fits &= (times[at] >= early) & (threads[at] != own) & (times[at] > latest)
        if by_id:
            fits &= (how == _HUNG_UP) & (blocks["id"].to_numpy() >= _LEAST_ID)
        else:
            fits &= np.isin(how, (_HUNG_UP, _INTERRUPTED))
        row = np.where(fits, table["row"].to_numpy()[at], row)
        latest = np.where(fits, times[at], latest)
    return row


def _waking_calls(blocks: pl.DataFrame, wakes: pl.DataFrame) -> _Array:
    """Of each block the row of the call that sent or released what it waited for."""
    row = np.full(len(blocks), -1, np.int64)
    if blocks.is_empty() or wakes.is_empty():
        return row
    of_block, of_other_end, of_wake = _keys(blocks, wakes)
    order = np.lexsort((wakes["start_ns"].to_numpy(), of_wake))
    keys, starts = of_wake[order], wakes["start_ns"].to_numpy()[order]
    ends, threads = wakes["end_ns"].to_numpy()[order], _threads(wakes)[order]
    since, until = blocks["start_ns"].to_numpy(), blocks["end_ns"].to_numpy()
    objects, own = blocks["object"].to_numpy(), _threads(blocks)
    can_end = (
        ~np.isin(objects, _NO_CALL_ENDS)
        & (blocks["how"].to_numpy() == 0)
        & (blocks["id"].to_numpy() >= _LEAST_ID)
    )
    last = _place(keys, starts, of_block, until, "right") - 1
    # what came through before another thread took it did not end the block
    taken = _place(keys, starts, of_other_end, until, "right") - 1
    is_taken = _is_of(keys, starts, taken, of_other_end, until) & (threads[taken] != own)
    after = np.where(is_taken, np.maximum(since, ends[taken]), since)
    first = _place(keys, starts, of_block, after, "left")
    takes_first = np.isin(objects, _TAKE_FIRST) & _is_of(keys, starts, first, of_block, until)
    place, step = np.where(takes_first, first, last), np.where(takes_first, 1, -1)
    for _ in range(_TRIES):
        is_there = can_end & (row < 0) & _is_of(keys, starts, place, of_block, until)
        at = np.where(is_there, place, 0)
        is_there &= (ends[at] >= since) & (threads[at] != own)
        row = np.where(is_there, wakes["row"].to_numpy()[order[at]], row)
        place = place + step
    return row


def _keys(blocks: pl.DataFrame, wakes: pl.DataFrame) -> tuple[_Array, _Array, _Array]:
    """Numbers of the objects of blocks, of the other ends of their channels, and of wakes."""
    channel, room = _TAKE_FIRST
    other_end = pl.col("object").replace({channel: room, room: channel})
    several = pl.col("id") >= OF_SEVERAL
    columns = ("object", "id", pl.when(several).then(-1).otherwise("process").alias("process"))
    tables = (blocks, blocks.with_columns(other_end), wakes)
    both = pl.concat([table.select(columns) for table in tables])
    keys = both.select(pl.struct(pl.all()).rank("dense")).to_series().to_numpy().astype(np.int64)
    return keys[: len(blocks)], keys[len(blocks) : 2 * len(blocks)], keys[2 * len(blocks) :]


def _threads(table: pl.DataFrame) -> _Array:
    found: _Array = (table["process"].to_numpy() << 32) + table["tid"].to_numpy()
    return found


def _is_of(keys: _Array, starts: _Array, place: _Array, key: _Array, until: _Array) -> _Array:
    """Whether there is a call at a place that is on an object and not after a time."""
    at = np.clip(place, 0, len(keys) - 1)
    found: _Array = (place >= 0) & (place < len(keys)) & (keys[at] == key) & (starts[at] <= until)
    return found


def _place(keys: _Array, times: _Array, key: _Array, time: _Array, side: str) -> _Array:
    """`searchsorted` of (key, time) among rows that are sorted by both."""
    both_keys, both_times = np.concatenate((keys, key)), np.concatenate((times, time))
    is_sought = np.arange(len(both_keys)) >= len(keys)
    last = is_sought if side == "right" else ~is_sought
    order = np.lexsort((last, both_times, both_keys))
    before = np.cumsum(~is_sought[order])
    found: _Array = np.empty(len(key), np.int64)
    sought = order[is_sought[order]] - len(keys)
    found[sought] = before[is_sought[order]]
    return found
