"""Finished batches that arrive late because a worker keeps its interpreter lock: it waits for
storage, or makes its next batch.

A batch is sent by a thread of its worker. A page fault keeps the interpreter lock while it waits,
and so do reads of some libraries. Until it ends, that thread does not run, nor the one that hands
the memory of a batch over to the rank (`multiprocessing. resource_sharer`). The workers of a loader
share one queue, so what blocks one of them blocks all. The sign of it: the batch arrives just after
a series of such reads has ended that began with the wait.

Python code keeps the lock too: a thread that wants it gets it after 5 ms (`sys.getswitchinterval`),
and needs it several times a message. The sign of that: other batches of the run arrive at once, and
this one comes later than those by at least that interval, while its worker made another one. Where
all batches take long, those of a worker that then made no other one, as the last of an epoch, show
what the message itself takes. If there are none, it is the message that is slow, unless nearly each
of a worker's batches arrives just when it has made the next one.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np
import polars as pl
from numpy.typing import NDArray

from ioprof.analysis.intervals import EMPTY, Intervals, covered, overlaps, pack, union, union_all
from ioprof.analysis.selection import WORK, from_peer, intervals

LEAST_LATE_NS: Final = 5_000_000
"""Waits for a batch that was made, below which it is not looked for what blocked its sender:
sending takes about 1 ms."""
_MOST_AFTER_NS: Final = 15_000_000
"""Time from the end of the last such read to the arrival of the batch: 1 to 12 ms in
measurements."""
_LEAST_COVERED: Final = 0.75
"""Part of the wait that the reads of one thread must cover. That of several together would be
covered by chance."""

_QUICK: Final = 0.1
"""Quantile of the times from when a batch was made to its arrival, at which it was waited for: what
a message itself takes."""

_LEAST_MADE: Final = 0.5
"""Time of making a batch, over the median, from which on its message is as large as others: the
last one may have few samples."""
_IDLE: Final = 0.1
"""Part of the time of a message in which its worker may have made another batch, if it counts as
idle."""

_SOON_NS: Final = 3_000_000
"""Time from when the next batch was made to the arrival of the one before it, which then could be
sent: 0.4 to 1 ms measured, but 3 to 6 ms on cores that others use too,"""
_SOON: Final = 0.25
"""so that it may also be this part of the time in which a batch is made;"""
_MOST_END_SO: Final = 0.75
"""and the part of a worker's late batches that must arrive so, where all are late. A slow message
ends at any time."""

may_block: Final = WORK["storage"] & ~from_peer
"""Reads that may keep the interpreter lock."""


def late_arrivals(waits: pl.DataFrame) -> Intervals:
    """When a batch that was made was waited for, of waits with `ready_ns`; touching ones are one.
    Only long ones.
    """
    found = union(
        pack(
            np.maximum(waits["start_ns"].to_numpy(), waits["ready_ns"].to_numpy()),
            waits["end_ns"].to_numpy(),
        )
    )
    return found[found[:, 1] - found[:, 0] >= LEAST_LATE_NS]


def blocked(late: Intervals, reads: pl.DataFrame) -> Intervals:
    """The parts of late arrivals in which reads of a worker blocked them. `reads` are those of
    workers that `may_block`.
    """
    found, lasted = [EMPTY], late[:, 1] - late[:, 0]
    for _, of_thread in reads.group_by("pid", "tid") if len(late) else ():
        reading = union(intervals(of_thread))
        before = np.searchsorted(reading[:, 1], late[:, 1], side="right") - 1
        last_ns = (
            np.where(before >= 0, reading[np.maximum(before, 0), 1], late[:, 0])
            if len(reading)
            else late[:, 0]
        )
        has_ended = late[:, 1] - last_ns <= np.minimum(
            _MOST_AFTER_NS, (1 - _LEAST_COVERED) * lasted
        )
        is_running = covered(pack(late[:, 1] - 1, late[:, 1] + 1), reading) > 1
        is_blocked = has_ended & ~is_running & (covered(late, reading) >= _LEAST_COVERED * lasted)
        found.append(overlaps(reading, late[is_blocked]))
    return union_all(found)


def held(known: pl.DataFrame, fetches: pl.DataFrame) -> pl.DataFrame:
    """Times at which a rank waited for a batch that was made while its worker made another one, and
    only that explains the delay: `start_ns`, `end_ns`, `worker`.

    `known` are waits for workers that are processes, with `ready_ns` and `worker`; `fetches` are
    those of all workers.
    """
    since = pl.max_horizontal("start_ns", "ready_ns")
    asked = known.with_columns(since.alias("since_ns"))
    by_worker = {
        worker: union(intervals(of_one)) for (worker,), of_one in fetches.group_by("worker")
    }
    direct = asked.filter(pl.col("start_ns") <= pl.col("ready_ns"))
    took = (
        (direct if len(direct) else asked)
        .select(pl.col("end_ns") - pl.col("since_ns"))
        .to_series()
        .to_numpy()
    )
    made = fetches.group_by("batch", "worker").agg(
        made_ns=(pl.col("end_ns") - pl.col("start_ns")).sum()
    )
    message = Message.of(
        took,
        _took_alone(asked, made, by_worker),
        float(made["made_ns"].median() or 0.0),  # type: ignore[arg-type]
    )
    late = asked.select(
        (pl.col("since_ns") + message.takes_ns).alias("start_ns"), "end_ns", "worker"
    )
    late = late.filter(pl.col("end_ns") - pl.col("start_ns") >= LEAST_LATE_NS)
    found = [late.clear()]
    for (worker,), part in late.group_by("worker", maintain_order=True):
        held_up = part.filter(
            pl.Series(message.is_kept_back(intervals(part), by_worker.get(worker, EMPTY)))
        )
        found += [held_up] if message.explains(len(held_up), len(part)) else []
    return pl.concat(found)


def _took_alone(
    asked: pl.DataFrame, made: pl.DataFrame, by_worker: Mapping[object, Intervals]
) -> NDArray[np.int64]:
    """What messages took at most whose workers made no other batch meanwhile, of batches that took
    as long to make as others.
    """
    of_batch = asked.join(made, on=["batch", "worker"], how="left")
    found = [np.empty(0, np.int64)]
    for (worker,), part in of_batch.filter(
        pl.col("made_ns") >= _LEAST_MADE * pl.col("made_ns").median()
    ).group_by("worker"):
        times = pack(part["ready_ns"].to_numpy(), part["end_ns"].to_numpy())
        took_ns = times[:, 1] - times[:, 0]
        found.append(took_ns[covered(times, by_worker.get(worker, EMPTY)) <= _IDLE * took_ns])
    return np.concatenate(found)


@dataclass(frozen=True)
class Message:
    """What sending a batch takes by itself, as far as a run shows it."""

    takes_ns: int
    """0: all batches are late, so that nothing shows it."""
    always_late: bool
    soon_ns: float = _SOON_NS
    """Time from when its worker has made the next batch to the arrival of one that it kept back, at
    most."""

    @classmethod
    def of(
        cls,
        took_ns: NDArray[np.int64],
        alone_ns: NDArray[np.int64] | None = None,
        made_ns: float = 0.0,
    ) -> "Message":
        """From the times between when batches were made, or asked for if that was later, and their
        arrival; `alone_ns` are those since they were made, of workers that were idle meanwhile, as
        far as they are known. `made_ns`: what making a batch takes.
        """
        quick_ns = int(np.quantile(took_ns, _QUICK, method="lower")) if len(took_ns) else 0
        if quick_ns >= LEAST_LATE_NS and alone_ns is not None and len(alone_ns):
            quick_ns = int(alone_ns.min())
        soon_ns = max(_SOON_NS, _SOON * made_ns)
        return cls(0, True, soon_ns) if quick_ns >= LEAST_LATE_NS else cls(quick_ns, False, soon_ns)

    def is_kept_back(self, late: Intervals, fetching: Intervals) -> NDArray[np.bool_]:
        """Of each late arrival: whether its worker made another batch meanwhile (`fetching`), and
        that explains it.
        """
        found: NDArray[np.bool_] = covered(late, fetching) >= _LEAST_COVERED * (
            late[:, 1] - late[:, 0]
        )
        return found & _end_with(late, fetching, self.soon_ns) if self.always_late else found

    def explains(self, number: int, late: int) -> bool:
        """Whether it may be that so many of the late batches were kept back."""
        return not self.always_late or number >= _MOST_END_SO * late


def _end_with(late: Intervals, fetching: Intervals, soon_ns: float) -> NDArray[np.bool_]:
    """Whether a batch arrives just after its worker has made the next one."""
    before = np.searchsorted(fetching[:, 1], late[:, 1], side="right") - 1
    since_ns = late[:, 1] - np.where(
        before >= 0, fetching[np.maximum(before, 0), 1] if len(fetching) else 0, 0
    )
    found: NDArray[np.bool_] = (before >= 0) & (
        since_ns <= np.minimum(soon_ns, (1 - _LEAST_COVERED) * (late[:, 1] - late[:, 0]))
    )
    return found
