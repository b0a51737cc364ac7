"""What each step's time is charged to: every nanosecond to exactly one cause.

An instant of a step goes to the first of these that was happening on the rank:

    1  validation      its main thread evaluated the model, from its first wait for a batch to do so to the last, see `validation`;
                       but for what a device still had to compute of the steps before
    2  compute         a device did useful work; whatever ran at the same time was hidden
    3  checkpoint      the main thread wrote a checkpoint
    4  the main thread within a computation on the CPU: `gc`, `storage`, `page_cache`, `decode`, `transform`, see `training_process`
    5  compute         the CPU did useful work
    6  exchange        every rank had arrived, and gradients were transferred
    7  h2d             a copy to or from the device
    8  the main thread, at any other time: the causes of 4, and `loader` for its sampler
    9  the wait        `storage` to `loader`, see `lineage`
    10 straggler       a rank had not arrived
    11 other threads of the process, where the main thread seems to wait for them, see `training_process`
    12 host            nothing of this: what remains

Of the time that a cause has by this, the part in which the main thread waited for the interpreter's
lock counts as `host`; samples of stacks say how much that is, see `interpreter_lock`.

Straggler wait comes after the rank's own wait for a batch, because a rank whose own next batch is
missing would be idle even if all other ranks had arrived. So `straggler` of a rank says what others
cost it, and what the straggler spent more time on says why, see `lateness`.
"""  # noqa: E501

from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Final, Protocol

import numpy as np
import polars as pl
from numpy.typing import NDArray

from ioprof.analysis.answer.details import Details, host_places
from ioprof.analysis.charge.gpu_windows import observed
from ioprof.analysis.charge.interpreter_lock import LockWaits
from ioprof.analysis.charge.lateness import BetweenCollectives
from ioprof.analysis.charge.launches import Launches, LaunchWaits
from ioprof.analysis.charge.steps import steps
from ioprof.analysis.charge.training_process import (
    in_main_thread,
    main_thread_work,
    unrecorded_waits,
)
from ioprof.analysis.charge.unmeasured import unmeasured
from ioprof.analysis.charge.validation import queued_before, validations
from ioprof.analysis.graph.starts import starts_by_rank
from ioprof.analysis.graph.wakers import Wakers, wakers_by_rank
from ioprof.analysis.intervals import (
    EMPTY,
    Intervals,
    covered,
    overlaps,
    pack,
    partition,
    subtract,
    total,
    union,
    union_all,
)
from ioprof.analysis.ranks.stragglers import (
    COLLECTIVE,
    Classes,
    Doing,
    Waited,
    Waits,
    arrivals,
    exchange,
    late_windows,
    numbered,
    straggler_waits,
)
from ioprof.analysis.reads import lineage
from ioprof.analysis.reads.flushes import of_checkpoints
from ioprof.analysis.selection import (
    COMPUTE,
    COPIES,
    WORKER,
    Activity,
    Piece,
    analyse,
    intervals,
    kind_in,
    of_kind,
    on_stream,
    pieces_by_rank,
)
from ioprof.format.run_record import JobKind, PartCode, Reason
from ioprof.format.schema import CAUSES, CORE_WAIT
from ioprof.format.trace import Trace

_KINDS: Final = (
    *COMPUTE,
    *COPIES,
    "comm",
    "validate",
    "checkpoint",
    "gc",
    "sampler",
    "user",
    *lineage.KINDS,
)
_COLUMNS: Final = tuple(dict.fromkeys((*lineage.COLUMNS, *COLLECTIVE, "stream", "file", WORKER)))


@dataclass(frozen=True)
class Charges:
    """What the time of all steps is charged to."""

    steps: pl.DataFrame
    """What `blame` returns."""
    straggler_wait_ns: dict[int, dict[str, int]]
    """The time of `straggler`: the straggler to what made it late to nanoseconds, summed over the
    ranks that waited."""
    details: Details
    """Named parts of the causes."""
    own_ns: dict[str, int] = field(default_factory=dict)
    """Nanoseconds by cause of what the training process itself did, outside of waits for a loader:
    activities with an `origin`."""
    derived_ns: dict[str, int] = field(default_factory=dict)
    """Nanoseconds by cause that are charged to threads of the training process, by the times
    alone."""
    threads_ns: int = 0
    """Part of `host` in which threads of the training process read or decoded, and did not seem to
    be waited for."""
    lock_ns: dict[str, int] = field(default_factory=dict)
    """Nanoseconds by cause that were waits for the interpreter's lock, and that `host` has
    instead."""
    computed_meanwhile_ns: dict[int, int] = field(default_factory=dict)
    """Part of `compute` in `straggler_wait_ns`: the straggler computed while others waited, and it
    is not known whether it computed more than they did, or began later."""
    launches: Launches | None = None
    """How kernels were launched; None: none was recorded."""
    by_tasks: bool = False
    """What counts as threads of the training process are tasks of Ray Data, in processes of their
    own."""
    generations: int = 0
    """See `Starts.generations`, of the rank with most."""


def blame(trace: Trace) -> pl.DataFrame:
    """One row per rank and step, in that order: `rank`, `step`, `start_ns`, `end_ns`, and
    `<cause>_ns` for each of `CAUSES`.

    The causes that are not null sum to `end_ns - start_ns` exactly. A column is null where the run
    could not measure the cause, and a whole row where the GPU was not recorded in that step.
    """
    return charges(trace).steps


def charges(trace: Trace) -> Charges:
    """`blame`, and what made stragglers late."""
    found = Charging(trace)
    analyse(trace, found)
    return found.charges()


class Listener(Protocol):
    """What is told which instants of a rank were charged to some causes."""

    @property
    def causes(self) -> Collection[str]:
        """These causes."""

    def add(
        self,
        rank: int,
        spans: pl.DataFrame,
        instants: Mapping[str, Intervals],
        by_threads: Mapping[str, Intervals],
    ) -> None:
        """Look at the instants of each of the causes in a piece of the rank's time, those that
        threads of its process have, and at its spans.
        """


class Charging:
    """`charges`, piece by piece. The `listener` is given what `exposed` yields."""

    kinds = _KINDS
    columns = _COLUMNS

    def __init__(
        self, trace: Trace, listener: Listener | None = None, arrived: pl.DataFrame | None = None
    ) -> None:
        self._trace, self._listener = trace, listener
        self._table, self._missing = steps(trace), unmeasured(trace)
        self._seen = observed(trace, self._table)
        self._charged = np.zeros((len(self._table), len(CAUSES)), np.int64)
        lengths = (self._table["end_ns"] - self._table["start_ns"]).to_numpy()
        # where a rank has nothing else
        self._charged[self._seen, CAUSES.index("host")] = lengths[self._seen]
        arrived = numbered(arrivals(trace) if arrived is None else arrived)
        self._no_arrivals = arrived.clear()
        self._arrived = {
            rank: part for (rank,), part in arrived.partition_by("rank", as_dict=True).items()
        }
        self._late = {
            rank: late_windows(arrived, rank) for rank in arrived["late_rank"].unique().to_list()
        }
        waits = arrived.filter(~pl.col("is_message"), pl.col("complete_ns") > pl.col("own_ns"))
        self._compared = {*waits["rank"], *waits["late_rank"]}
        self._between: dict[int, BetweenCollectives] = {}
        self._waited: list[Waited] = []
        self._waited_outside: list[Waited] = []
        self._doing: dict[int, list[Doing]] = {}
        self._details = Details()
        self._whole = _whole_loops(trace)
        self._own_ns, self._derived_ns, self._threads_ns = Counter[str](), Counter[str](), 0
        self._lock, self._launches = (
            LockWaits(trace),
            LaunchWaits(trace, self._table.filter(pl.Series(self._seen))),
        )
        self._wakers = wakers_by_rank(trace)
        self._starts = starts_by_rank(trace, self._wakers)
        main = trace.rows(pl.col("tid").is_not_null(), kinds=["step"]).select("rank", "tid")
        self._main = dict(main.drop_nulls().unique("rank").iter_rows())

    def add(self, piece: Piece) -> None:
        """Charge the time of a piece."""
        if piece.is_first:
            self._begin_rank(piece)
        is_inside = (self._windows[:, 0] < piece.end_ns) & (self._windows[:, 1] > piece.start_ns)
        rows, windows = self._rows[is_inside], piece.clip(self._windows[is_inside])
        arrived = self._arrived.get(piece.rank, self._no_arrivals)
        activities, unused = _activities(piece, arrived, self._missing, windows, self._wakers)
        exclusive = _exclusive(windows, activities)
        host = exclusive[-1].times
        self._charged[rows] += _charge(windows, exclusive)
        if (between := self._between.get(piece.rank)) is not None:
            between.add(piece, windows, activities, exclusive)
        if self._listener is not None:
            by_threads = _instants(
                [each for each in exclusive if each.origin == "threads"], self._listener.causes
            )
            self._listener.add(
                piece.rank, piece.spans, _instants(exclusive, self._listener.causes), by_threads
            )
        if self._lock.is_seen(piece.rank):
            self._lock.add(piece.rank, _instants(exclusive, self._lock.causes))
        waits = union(intervals(of_kind(piece.spans, "wait")))
        for activity in exclusive:
            if activity.origin and len(activity.times):
                self._own_ns[activity.cause] += total(subtract(activity.times, waits))
                self._derived_ns[activity.cause] += (
                    total(activity.times) if activity.origin == "threads" else 0
                )
        self._threads_ns += total(overlaps(unused, host))
        self._details.add(piece.spans, exclusive, activities)
        if (starts := self._starts.get(piece.rank)) is not None:
            for cause in ("loader", "host"):
                waited = union_all([each.times for each in exclusive if each.cause == cause])
                part = (PartCode.WORKER_START, "")
                self._details.add_named(cause, part, total(overlaps(waited, starts.times)))
        self._details.add_places(host, self._places | self._in_processes(piece.rank, host))
        self._launches.add(piece, host)
        waiting = union_all(
            [activity.times for activity in exclusive if activity.cause == "straggler"]
        )
        self._waited.append(self._waits.charged(piece, waiting))
        when_late = self._late.get(piece.rank, EMPTY)
        self._waited_outside.append(
            self._waits.charged(piece, _waiting_outside(windows, activities, when_late))
        )
        was_late = [
            activity._replace(times=overlaps(activity.times, when_late)) for activity in activities
        ]
        self._doing.setdefault(piece.rank, []).append(
            Doing(piece._replace(spans=piece.spans.clear()), was_late)
        )

    def _begin_rank(self, piece: Piece) -> None:
        rank = piece.rank
        self._rows = np.flatnonzero(self._seen & (self._table["rank"].to_numpy() == rank))
        self._windows = intervals(self._table[self._rows])
        self._places = host_places(self._whole.filter(pl.col("rank") == rank))
        arrived = self._arrived.get(rank, self._no_arrivals)
        self._waits = Waits(arrived, rank)
        if rank in self._compared:
            unseen = intervals(
                self._table[np.flatnonzero(~self._seen & (self._table["rank"].to_numpy() == rank))]
            )
            self._between[rank] = BetweenCollectives(arrived.filter(~pl.col("is_message")), unseen)
        self._charged[self._rows] = 0

    def _in_processes(self, rank: int, host: Intervals) -> dict[PartCode, Intervals]:
        """The host's time in which other processes worked for the main thread."""
        if rank not in self._wakers or rank not in self._main:
            return {}
        return {PartCode.PROCESSES: self._wakers[rank].in_others(int(self._main[rank]), host)}

    def charges(self) -> Charges:
        """What was charged, when all pieces were added."""
        if self._listener is not None:
            for rank in set(self._table["rank"]) - set(self._doing):  # which have nothing but steps
                rows = self._seen & (self._table["rank"].to_numpy() == rank)
                host = Activity("host", union(intervals(self._table[np.flatnonzero(rows)])))
                instants = _instants([host], self._listener.causes)
                self._listener.add(
                    rank,
                    self._trace.structure.clear(),
                    instants,
                    _instants([], self._listener.causes),
                )
        lock_ns = self._move_lock_waits()
        found = (
            self._waited,
            self._waited_outside,
            self._doing,
            self._between,
            self._trace.run.uncertainty_ns,
        )
        waits, messages = straggler_waits(*found), straggler_waits(*found, bubbles=True)
        stragglers = waits.total
        computed_ns = {
            rank: causes["compute"]
            for rank, causes in waits.meanwhile.items()
            if "compute" in causes
        }
        self._details.add_stragglers(
            stragglers, messages.total, in_pipeline=self._trace.run.config.parallel == "pipeline"
        )
        launches = self._launches.found()
        if launches is not None:
            part = (PartCode.LAUNCHES, "")
            self._details.add_named("host", part, launches.waited_ns, self._launches.unnamed_ns)
        table = _with_causes(self._table, self._charged, self._missing, self._seen)
        own_ns, derived_ns, by_tasks = (
            dict(+self._own_ns),
            dict(+self._derived_ns),
            self._trace.run.job_kind is JobKind.RAY,
        )
        return Charges(
            table,
            stragglers,
            self._details,
            own_ns,
            derived_ns,
            self._threads_ns,
            lock_ns,
            computed_ns,
            launches,
            by_tasks,
            max((each.generations for each in self._starts.values()), default=0),
        )

    def _move_lock_waits(self) -> dict[str, int]:
        """Charge the waits for the interpreter's lock to `host`, and return what they were charged
        to before.
        """
        moved_ns, host = Counter[str](), CAUSES.index("host")
        for rank in self._table["rank"].unique().to_list():
            rows = np.flatnonzero(self._seen & (self._table["rank"].to_numpy() == rank))
            before = self._charged[rows]
            for cause, ratio in self._lock.parts(rank).items():
                if cause in self._missing:
                    continue
                waited_ns = (before[:, CAUSES.index(cause)] * ratio).astype(np.int64)
                self._charged[rows, CAUSES.index(cause)] -= waited_ns  # of `host` nothing is moved
                self._charged[rows, host] += waited_ns
                part = (PartCode.LOCK, self._lock.holders)
                self._details.add_named("host", part, int(waited_ns.sum()))
                moved_ns[cause] += int(waited_ns.sum())
        return dict(+moved_ns)


def _whole_loops(trace: Trace) -> pl.DataFrame:
    """Waits and computations of ranks that compute on the CPU, where the host's time says what it
    does between them.
    """
    is_on_cpu = pl.lit(trace.run.device_name in (None, "cpu"))
    columns = ["start_ns", "end_ns", "kind", "rank", "pid", "tid", "batch", "stream"]
    waits = trace.rows(is_on_cpu, pl.col("rank").is_not_null(), kinds=["step", "wait"]).select(
        columns
    )
    if waits.is_empty():
        return waits
    is_compute = kind_in(COMPUTE), pl.col("rank").is_not_null()
    return pl.concat([waits, trace.found(lambda part: part.filter(*is_compute).select(columns))])


def _with_causes(
    table: pl.DataFrame,
    charged: NDArray[np.int64],
    missing: Mapping[str, Reason],
    seen: NDArray[np.bool_],
) -> pl.DataFrame:
    columns = {
        cause: (
            pl.repeat(None, len(table), dtype=pl.Int64, eager=True)
            if cause in missing
            else pl.Series(charged[:, place])
        )
        for place, cause in enumerate(CAUSES)
    }
    return table.with_columns(
        column.set(pl.Series(~seen), None).alias(f"{cause}_ns") for cause, column in columns.items()
    )


def _charge(windows: Intervals, exclusive: Classes) -> NDArray[np.int64]:
    """Nanoseconds of each step by cause, in the order of `CAUSES`."""
    charged = np.zeros((len(windows), len(CAUSES)), np.int64)
    for activity in exclusive:
        charged[:, CAUSES.index(activity.cause)] += covered(windows, activity.times)
    return charged


def _activities(
    piece: Piece,
    arrived: pl.DataFrame,
    missing: Mapping[str, Reason],
    windows: Intervals,
    wakers: Mapping[int, Wakers],
) -> tuple[list[Activity], Intervals]:
    """What happened on a rank and when, in the order in which time is charged; and what
    `Charges.threads_ns` counts.
    """
    spans = piece.spans
    main = in_main_thread(spans)
    # What a validation is shows in whole waits alone.
    whole = (
        of_kind(spans, "step", "wait", "validate")
        .filter(main)
        .with_columns(start_ns="begin_ns", end_ns="finish_ns")
    )
    validation = validations(whole)
    elsewhere = of_kind(spans, "wait", "validate").filter(
        ~main, (pl.col("kind") == "validate") | (pl.col("name") == "validate")
    )
    saved = of_kind(spans, "checkpoint").filter(main)
    checkpoints = union_all(
        [
            intervals(saved),
            intervals(of_checkpoints(of_kind(spans, "checkpoint", "user").filter(main))),
        ]
    )
    own = [activity for activity in main_thread_work(spans) if activity.cause not in missing]
    computed = of_kind(spans, *COMPUTE).select("start_ns", "end_ns", "stream", "step")
    of_earlier = queued_before(validation, of_kind(whole, "step"), computed.filter(on_stream))
    validation = overlaps(validation, pack(np.array([piece.start_ns]), np.array([piece.end_ns])))
    on_cpu = intervals(computed.filter(~on_stream))
    transfer, waiting = exchange(spans, arrived)
    found = [
        Activity(
            "validation",
            subtract(
                union_all([validation, intervals(elsewhere)]), union_all([checkpoints, of_earlier])
            ),
        ),
        Activity("compute", intervals(computed.filter(on_stream))),
        Activity("checkpoint", checkpoints),
        *(
            activity._replace(times=overlaps(activity.times, union(on_cpu)))
            for activity in own
            if activity.origin == "main"
        ),
        Activity("compute", on_cpu),
        Activity("exchange", transfer),
        Activity("h2d", intervals(of_kind(spans, *COPIES))),
        *own,
        *lineage.wait_leaves(
            spans,
            [cause for cause in lineage.LEAVES if cause not in missing],
            wakers.get(piece.rank),
        ),
        Activity("straggler", waiting),
    ]
    named = intervals(
        of_kind(spans, "user").filter(main, pl.col("name").cast(pl.String).ne_missing(CORE_WAIT))
    )
    idle = subtract(windows, union_all([named, *(activity.times for activity in found)]))
    by_threads, unused = unrecorded_waits(spans, idle)
    return [*found, *(activity for activity in by_threads if activity.cause not in missing)], unused


def _waiting_outside(windows: Intervals, activities: Classes, when_late: Intervals) -> Intervals:
    """When a rank waited for stragglers outside of its steps while others may have waited for
    it.
    """
    place = [activity.cause for activity in activities].index("straggler")
    outside = subtract(overlaps(activities[place].times, when_late), windows)
    return (
        partition(outside, [activity.times for activity in activities[: place + 1]])[place]
        if len(outside)
        else EMPTY
    )


def _instants(exclusive: Classes, causes: Collection[str]) -> dict[str, Intervals]:
    """The instants that are charged to each of these causes."""
    return {
        cause: union_all([EMPTY, *(each.times for each in exclusive if each.cause == cause)])
        for cause in causes
    }


def _exclusive(windows: Intervals, activities: list[Activity]) -> list[Activity]:
    """Each activity with the instants of the windows that are charged to it, and last `host`, with
    the rest.
    """
    *pieces, host = partition(windows, [activity.times for activity in activities])
    found = [
        activity._replace(times=times) for activity, times in zip(activities, pieces, strict=True)
    ]
    return [*found, Activity("host", host)]


def exposed(
    trace: Trace, causes: Collection[str], *, everywhere: bool = False
) -> dict[int, dict[str, Intervals]]:
    """Of each rank with steps, the instants of its steps that are charged to each of these causes.

    With `everywhere` also of steps in which the GPU was not recorded: what it did then is charged
    to what the loop did meanwhile.
    """
    table, missing, arrived = steps(trace), unmeasured(trace), arrivals(trace)
    wakers = wakers_by_rank(trace)
    table = table if everywhere else table.filter(pl.Series(observed(trace, table)))
    steps_of = {
        rank: union(intervals(rows))
        for (rank,), rows in table.partition_by("rank", as_dict=True).items()
    }
    found: dict[int, list[dict[str, Intervals]]] = {}
    for piece in pieces_by_rank(trace, _KINDS, _COLUMNS):
        windows = piece.clip(steps_of.get(piece.rank, EMPTY))
        activities, _ = _activities(piece, arrived, missing, windows, wakers)
        exclusive = _exclusive(windows, activities)
        found.setdefault(piece.rank, []).append(_instants(exclusive, causes))
    for rank in steps_of.keys() - found.keys():  # with nothing but steps
        found[rank] = [{cause: steps_of[rank] if cause == "host" else EMPTY for cause in causes}]
    return {
        rank: {cause: union_all([each[cause] for each in parts]) for cause in causes}
        for rank, parts in found.items()
    }
