"""Which iteration over which loader each wait of a training loop belongs to.

A wait named `start` begins an iteration with workers, one named `end` ends it. Iterations may be
nested: a validation within an epoch of training. The workers of an iteration are known from its
first batch on: a worker that has made no batch before belongs to the innermost iteration that was
started and whose workers did not take part in another one. Where the loop makes its batches itself,
those to validate on are of another iteration than those to train on.
"""

from dataclasses import dataclass, field

import numpy as np
import polars as pl
from numpy.typing import NDArray

from ioprof.analysis.loaders import POOLS, generations
from ioprof.model.pipeline import Op


@dataclass(frozen=True)
class Visit:
    """An iteration by rows of the tables that it was found in."""

    num_workers: int
    fetch_rows: NDArray[np.int64]
    """Its batches in order, those that the loop did not take included."""
    wait_rows: NDArray[np.int64]
    """The waits for those that were taken."""
    taken_rows: NDArray[np.int64]
    """The place in `fetch_rows` of each of those."""
    begin_ns: int
    started_ns: int
    """When START had ended, and the first tasks were sent; `begin_ns` where no START was
    recorded."""
    is_complete: bool
    group: int
    starts_workers: bool
    is_validation: bool
    is_pool: bool
    """Whether a pool makes them: whoever is free takes the next task."""


@dataclass(frozen=True)
class Visits:
    """All waits of a loop."""

    ops: tuple[Op, ...]
    of_visit: tuple[int, ...]
    visits: tuple[Visit, ...]
    num_known: int
    """Waits for batches of which it is known who made them."""


@dataclass
class _Open:
    """An iteration that may go on."""

    number: int
    begin_ns: int
    started_ns: int
    by_loop: bool
    """Whether the loop itself makes its batches."""
    workers: set[int] = field(default_factory=set)
    group: int = -1
    starts_workers: bool = True
    waits: list[int] = field(default_factory=list)
    fetches: list[int] = field(default_factory=list)
    is_complete: bool = False
    is_validation: bool = False
    is_pool: bool = False
    generation: int | None = None
    """Of its workers, of a pool of processes: see `_generations`."""


def visits(waits: pl.DataFrame, fetches: pl.DataFrame) -> Visits:
    """The iterations of one rank. `waits` in order of time, with `worker`, the thread that waits;
    `fetches` in order of `batch`, with `worker`.
    """
    row_of = {batch: row for row, batch in enumerate(fetches["batch"].to_list())}
    maker = fetches["worker"].to_list()
    ops, of_visit, found, num_known = list[Op](), list[int](), list[_Open](), 0
    ongoing, groups, generation_of = list[_Open](), dict[int, int](), _generations(waits, fetches)
    rows = waits.select("start_ns", "end_ns", "batch", pl.col("name").cast(pl.String), "worker")
    for wait, (begin_ns, end_ns, batch, name, loop) in enumerate(rows.iter_rows()):
        if name == "start":
            ongoing.append(_begin(found, begin_ns, False))
            ongoing[-1].started_ns = end_ns
            ops.append(Op.START)
            of_visit.append(ongoing[-1].number)
            continue
        row = row_of.get(batch)
        if name == "end":
            current = max(
                ongoing, key=lambda each: each.waits[-1] if each.waits else -1, default=None
            )
            current = current or (found[-1] if found else _begin(found, begin_ns, False))
            current.is_complete = True
            if current in ongoing:
                ongoing.remove(current)
            ops.append(Op.END)
            of_visit.append(current.number)
            continue
        num_known += row is not None
        worker = None if row is None else maker[row]
        by_loop = worker == loop
        # A loop that makes its own batches is the worker of each of its iterations.
        alike = (
            [each for each in ongoing if each.is_validation == (name == "validate")]
            if by_loop
            else ongoing
        )
        validates = name == "validate"
        generation = generation_of.get(worker)
        current = _of_batch(
            found, ongoing, alike, groups, begin_ns, worker, by_loop, validates, generation
        )
        current.waits.append(wait)
        current.fetches.append(-1 if row is None else row)
        current.is_validation |= name == "validate"
        current.is_pool |= name in POOLS
        current.generation = generation if current.generation is None else current.generation
        ops.append(Op.TAKE)
        of_visit.append(current.number)
    beyond = _not_taken(found, maker)
    starts = fetches["start_ns"].to_list()
    started = {number for number, op in zip(of_visit, ops, strict=True) if op is Op.START}
    for each in found:
        made = [starts[row] for row in each.fetches if row >= 0]
        if each.number not in started and made:
            # of the first generation it is not known how much of its start was waited for
            each.begin_ns = min(*made, each.begin_ns) if each.generation else min(made)
            each.started_ns = each.begin_ns
    return Visits(
        tuple(ops),
        tuple(of_visit),
        tuple(_visit(each, beyond.get(each.number, []), fetches) for each in found),
        num_known,
    )


def _generations(waits: pl.DataFrame, fetches: pl.DataFrame) -> dict[int | None, int]:
    """Of workers of pools that are processes of their own: the generation of each. Those after the
    first took the place of others: their start is waited for.
    """
    of_pool = waits.filter(pl.col("name").cast(pl.String).is_in(POOLS)).select("batch")
    loops = (waits["worker"] // 2**32).unique()
    made = fetches.join(of_pool, on="batch", how="semi").filter(
        ~(pl.col("worker") // 2**32).is_in(loops.implode())
    )
    each = made.group_by("worker", maintain_order=True).agg(
        pl.col("start_ns").min(), pl.col("end_ns").max()
    )
    found = generations(each["start_ns"].to_numpy(), each["end_ns"].to_numpy())
    return dict(zip(each["worker"].to_list(), found.tolist(), strict=True))


def _begin(found: list[_Open], begin_ns: int, by_loop: bool) -> _Open:
    found.append(_Open(len(found), begin_ns, begin_ns, by_loop))
    return found[-1]


def _of_batch(
    found: list[_Open],
    ongoing: list[_Open],
    alike: list[_Open],
    groups: dict[int, int],
    begin_ns: int,
    worker: int | None,
    by_loop: bool,
    validates: bool,
    generation: int | None,
) -> _Open:
    """The iteration that a batch of that worker is of; `alike` are those of `ongoing` that it may
    be of.
    """
    if worker is None:
        return ongoing[-1] if ongoing else found[-1] if found else _begin(found, begin_ns, by_loop)
    for each in reversed(alike):
        if worker in each.workers:
            return each
    if by_loop:
        ongoing.append(_begin(found, begin_ns, True))
        current = ongoing[-1]
    else:
        known = groups.get(worker)
        matching = [
            each
            for each in ongoing
            if not each.by_loop
            and (not each.workers or known is None or each.group == known)
            and each.generation in (None, generation)
        ]
        # of loaders that start their workers when they are made, none has begun before
        of_purpose = [
            each for each in matching if not each.waits or each.is_validation == validates
        ]
        matching = of_purpose or matching
        current = matching[-1] if matching else _begin(found, begin_ns, False)
        if current not in ongoing:
            ongoing.append(current)
        if not current.workers:
            current.starts_workers = known is None
            current.group = known if known is not None else current.number
    current.workers.add(worker)
    groups.setdefault(worker, current.group if current.group >= 0 else current.number)
    return current


def _not_taken(found: list[_Open], maker: list[int]) -> dict[int, list[int]]:
    """Batches that workers made and the loop never asked for, by the last iteration of that
    worker.
    """
    taken = {row for each in found for row in each.fetches}
    last = {
        worker: each.number for each in found for worker in each.workers if not each.is_complete
    }
    beyond: dict[int, list[int]] = {}
    for row, worker in enumerate(maker):
        if row not in taken and worker in last:
            beyond.setdefault(last[worker], []).append(row)
    return beyond


def at_once(fetches: pl.DataFrame) -> int:
    """Makers that there were at the same time, from the first to the last of what each made: a pool
    may be made anew for each epoch. Columns `worker`, `start_ns`, `end_ns`.
    """
    each = fetches.group_by("worker").agg(pl.col("start_ns").min(), pl.col("end_ns").max())
    starts, ends = (np.sort(each[name].to_numpy()) for name in ("start_ns", "end_ns"))
    begun, ended = (np.searchsorted(times, starts, "right") for times in (starts, ends))
    return int((begun - ended).max(initial=0))


def _visit(each: _Open, beyond: list[int], fetches: pl.DataFrame) -> Visit:
    known = [(wait, row) for wait, row in zip(each.waits, each.fetches, strict=True) if row >= 0]
    rows = [row for _, row in known] + beyond
    num_workers = at_once(fetches[rows]) if each.is_pool else len(each.workers)
    return Visit(
        num_workers=0 if each.by_loop else max(1, num_workers),
        fetch_rows=np.array(rows, np.int64),
        wait_rows=np.array([wait for wait, _ in known], np.int64),
        taken_rows=np.arange(len(known)),
        begin_ns=each.begin_ns,
        started_ns=each.started_ns,
        is_complete=each.is_complete,
        group=each.group if each.group >= 0 else each.number,
        starts_workers=each.starts_workers and not each.by_loop,
        is_validation=each.is_validation,
        is_pool=each.is_pool,
    )
