"""Computes the numbers of a level from the outcomes of its clients."""

import errno
from collections import Counter
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from ioprof.storage.probe.outcomes import ClientRun, Ending, Kind, Numbers, Outcomes
from ioprof.storage.probe.result import Latency, Level, Missing
from ioprof.storage.probe.targets import ColdPieces

_MIN_VALUES: Final = {95: 20, 99: 100}
"""Percentile → minimum number of values from which it is computed."""

Flags = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class LevelRun:
    """A level after its clients have run."""

    test: str
    mode: str
    cold: ColdPieces
    visit: ClientRun
    kept_ratio: float | None


def level_of(run: LevelRun, harness_ns: float) -> Level | Missing:
    """The numbers of a level; `Missing` where no operation succeeded."""
    visit, kind, before = run.visit, run.cold.pieces.kind, run.cold.before
    done = visit.read
    if not len(done):
        why = ", ".join(failures_of(visit)) or "the budget is too small for one record per client"
        return Missing(
            run.test,
            run.mode,
            visit.clients,
            f"every read failed: {why}" if len(visit.outcomes) else why,
        )
    # Sequential reads mostly hit pages that readahead has fetched: there only the total of fetched
    # bytes is meaningful.
    is_known = kind != Kind.OPENS and not run.cold.pieces.in_order
    cached = (
        served_from_cache(done, run.cold.pieces.direct)
        if is_known
        else np.zeros(len(done), np.bool_)
    )
    # Where no read is known to have needed the storage, all are counted; `cached_operations` shows
    # it.
    counted = done[~cached] if not cached.all() else done
    taken, parts = durations_ns(counted), share_within(counted, visit)
    # The time in which all clients read from the storage: without the mean client's time for reads
    # from memory.
    from_memory = done[cached] if not cached.all() else done[:0]
    memory_ns = (
        float((durations_ns(from_memory) * share_within(from_memory, visit)).sum()) / visit.clients
    )
    seconds = max(visit.idle_ns - visit.start_ns - memory_ns, 1.0) / 1e9
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
        open_latency=latency_of(counted["opened_ns"] - counted["start_ns"], harness_ns)
        if kind == Kind.FILES
        else None,
        in_flight=float((parts * taken).sum() / 1e9 / seconds),
        cached_operations=int(cached.sum()) if is_known else None,
        cached_by=cache_evidence(done) if is_known else None,
        stayed_bytes=before.resident_bytes if before and not before.unknown_files else None,
        stayed_by=(before.reason if before.unknown_files else ", ".join(sorted(before.methods)))
        if before
        else None,
        kept_ratio=run.kept_ratio,
        failed=failures_of(visit),
        ended_by=run.cold.cut_by or "places"
        if visit.ending == Ending.PLACES
        else visit.ending.name.lower(),
    )


def durations_ns(outcomes: Outcomes) -> Numbers:
    """Duration of each operation, without the cachestat call between opening and reading."""
    taken: Numbers = (
        outcomes["opened_ns"] - outcomes["start_ns"] + outcomes["end_ns"] - outcomes["begin_ns"]
    )
    return taken


def served_from_cache(outcomes: Outcomes, direct: bool) -> Flags:
    """Which reads were served from memory.

    By cachestat before the read, where it is permitted. Otherwise by the thread's counters: it did
    not wait; blocks that it fetched without waiting are readahead that it started for later reads,
    or, with O_DIRECT, came from a fast device.
    """
    no_wait = outcomes["waits"] == 0
    if direct:
        no_wait &= outcomes["device_bytes"] == 0
    found: Flags = np.where(
        _has_cachestat(outcomes),
        outcomes["cached_bytes"] >= np.maximum(outcomes["bytes"], 1),
        no_wait,
    )
    return found


def _has_cachestat(outcomes: Outcomes) -> Flags:
    permitted: Flags = outcomes["cached_bytes"] >= 0
    return permitted


def cache_evidence(outcomes: Outcomes) -> str:
    """The method of `served_from_cache`."""
    return "cachestat" if _has_cachestat(outcomes).all() else "counters"


def latency_of(taken_ns: Numbers, harness_ns: float) -> Latency:
    """The latency of operations with these durations; at least one."""
    ordered = np.sort(np.maximum(taken_ns - harness_ns, 1)) / 1e9

    def percentile(percent: int) -> float | None:
        enough = len(ordered) >= _MIN_VALUES.get(percent, 1)
        return float(ordered[-(-len(ordered) * percent // 100) - 1]) if enough else None

    return Latency(
        mean_s=float(ordered.mean()),
        p50_s=percentile(50) or 0.0,
        p95_s=percentile(95),
        p99_s=percentile(99),
        max_s=float(ordered[-1]),
    )


def share_within(outcomes: Outcomes, visit: ClientRun) -> npt.NDArray[np.float64]:
    """The share of each operation within the time in which all clients were active: 1, or less if
    in progress at its end.
    """
    inside = np.clip(visit.idle_ns - outcomes["start_ns"], 0, None)
    whole = np.maximum(outcomes["end_ns"] - outcomes["start_ns"], 1)
    shares: npt.NDArray[np.float64] = np.minimum(inside / whole, 1.0)
    return shares


def device_bytes_of(visit: ClientRun, kind: Kind) -> int | None:
    """Bytes that the kernel fetched; None where reads waited although it counted nothing (FUSE)."""
    fetched = int(visit.outcomes["device_bytes"].sum())
    return (
        None if kind == Kind.OPENS or (not fetched and visit.outcomes["waits"].any()) else fetched
    )


def failures_of(visit: ClientRun) -> dict[str, int]:
    """Number of failed operations by the name of the error."""
    counted = Counter(visit.failed.tolist())
    return {
        errno.errorcode.get(number, str(number)): times for number, times in counted.most_common()
    }
