"""From what the clients found to the numbers of a level."""

import errno
from collections import Counter
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from ioprof.storage.probe.material import Cold
from ioprof.storage.probe.outcomes import Ending, Kind, Numbers, Outcomes, Visit
from ioprof.storage.probe.result import Latency, Level, Missing

_LEAST: Final = {95: 20, 99: 100}
"""Fewest values of which such a percentile is said."""

Flags = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class Run:
    """A level as it was run."""

    test: str
    mode: str
    cold: Cold
    visit: Visit
    kept_ratio: float | None


def level_of(run: Run, harness_ns: float) -> Level | Missing:
    """The numbers of a level; `Missing` where no operation came to its end."""
    visit, kind, before = run.visit, run.cold.pieces.kind, run.cold.before
    done = visit.read
    if not len(done):
        why = ", ".join(failures_of(visit)) or "the budget does not suffice for one record of each client"
        return Missing(run.test, run.mode, visit.clients, f"every read failed: {why}" if len(visit.outcomes) else why)
    # In order, most reads find what was read ahead for them: there the bytes that were fetched tell, and not the single read.
    told = kind != Kind.OPENS and not run.cold.pieces.in_order
    cached = from_cache(done, run.cold.pieces.direct) if told else np.zeros(len(done), np.bool_)
    # Where nothing is known to have needed the storage, memory is what the path delivers; the level says so.
    counted = done[~cached] if not cached.all() else done
    taken, parts = durations_ns(counted), share_within(counted, visit)
    seconds = _seconds_at_work(visit, done[cached] if not cached.all() else done[:0])
    return Level(
        test=run.test,
        mode=run.mode,
        clients=visit.clients,
        operations=len(done),
        bytes=int(done["bytes"].sum()),
        device_bytes=device_bytes_of(visit, kind),
        seconds=(visit.idle_ns - visit.start_ns) / 1e9,
        operations_per_s=float(parts.sum() / seconds),
        bytes_per_s=float((parts * counted["bytes"]).sum() / seconds),
        latency=latency_of(taken, harness_ns),
        open_latency=latency_of(counted["opened_ns"] - counted["start_ns"], harness_ns) if kind == Kind.FILES else None,
        in_flight=float((parts * taken).sum() / 1e9 / seconds),
        cached_operations=int(cached.sum()) if told else None,
        cached_by=told_by(done) if told else None,
        stayed_bytes=before.resident_bytes if before and not before.unknown_files else None,
        stayed_by=(before.reason if before.unknown_files else ", ".join(sorted(before.methods))) if before else None,
        kept_ratio=run.kept_ratio,
        failed=failures_of(visit),
        ended_by=run.cold.cut_by or "places" if visit.ending == Ending.PLACES else visit.ending.name.lower(),
    )


def _seconds_at_work(visit: Visit, cached: Outcomes) -> float:
    """Time in which all clients were at work on the storage: without what the mean client spent on reads from memory."""
    aside = float((durations_ns(cached) * share_within(cached, visit)).sum()) / visit.clients
    return max(visit.idle_ns - visit.start_ns - aside, 1.0) / 1e9


def durations_ns(outcomes: Outcomes) -> Numbers:
    """Of each operation, without the question about the cache between opening and reading."""
    taken: Numbers = outcomes["opened_ns"] - outcomes["start_ns"] + outcomes["end_ns"] - outcomes["begin_ns"]
    return taken


def from_cache(outcomes: Outcomes, direct: bool) -> Flags:
    """Which reads were served from memory.

    By the answer of cachestat before the read, where it may be asked. Else by what the kernel counted for the thread: it waited for
    nothing; blocks that it had fetched without waiting are readahead that the read began for others, or, of O_DIRECT, came from a
    fast device.
    """
    quiet = outcomes["waits"] == 0
    if direct:
        quiet &= outcomes["device_bytes"] == 0
    found: Flags = np.where(_was_asked(outcomes), outcomes["cached_bytes"] >= np.maximum(outcomes["bytes"], 1), quiet)
    return found


def _was_asked(outcomes: Outcomes) -> Flags:
    asked: Flags = outcomes["cached_bytes"] >= 0
    return asked


def told_by(outcomes: Outcomes) -> str:
    """How `from_cache` knows."""
    return "cachestat" if _was_asked(outcomes).all() else "counters"


def latency_of(taken_ns: Numbers, harness_ns: float) -> Latency:
    """Of operations that took so long; at least one."""
    ordered = np.sort(np.maximum(taken_ns - harness_ns, 1)) / 1e9

    def percentile(percent: int) -> float | None:
        enough = len(ordered) >= _LEAST.get(percent, 1)
        return float(ordered[-(-len(ordered) * percent // 100) - 1]) if enough else None

    return Latency(
        mean_s=float(ordered.mean()),
        p50_s=percentile(50) or 0.0,
        p95_s=percentile(95),
        p99_s=percentile(99),
        max_s=float(ordered[-1]),
    )


def share_within(outcomes: Outcomes, visit: Visit) -> npt.NDArray[np.float64]:
    """How much of each operation lay within the time in which all clients were at work: 1, or less if under way at its end."""
    inside = np.clip(visit.idle_ns - outcomes["start_ns"], 0, None)
    whole = np.maximum(outcomes["end_ns"] - outcomes["start_ns"], 1)
    shares: npt.NDArray[np.float64] = np.minimum(inside / whole, 1.0)
    return shares


def device_bytes_of(visit: Visit, kind: Kind) -> int | None:
    """What the kernel fetched; null where reads waited, and yet it counted nothing (FUSE)."""
    fetched = int(visit.outcomes["device_bytes"].sum())
    return None if kind == Kind.OPENS or (not fetched and visit.outcomes["waits"].any()) else fetched


def failures_of(visit: Visit) -> dict[str, int]:
    """How many operations failed, by the name of the error."""
    counted = Counter(visit.failed.tolist())
    return {errno.errorcode.get(number, str(number)): times for number, times in counted.most_common()}
