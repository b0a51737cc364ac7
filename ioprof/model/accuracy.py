"""How far predictions may be from runs that are made afterwards with the predicted change.

By kind of change, the numbers come from `benchmarks/what_if.py`. What else makes a prediction less
sure, such as other programs on the machine, adds to its error, and is no reason to give none.
"""

from dataclasses import dataclass
from enum import Enum, auto
from typing import Final

import numpy as np

from ioprof.model.changes import CALLS, Change
from ioprof.model.pipeline import STAGES, Pipeline

MOST_BASELINE_ERROR: Final = 0.1
"""Of the replay of the run itself, up to which its predictions are told."""
LEAST_OTHERS: Final = 0.25
"""Threads of other programs, on average, from which on cores were not the job's own."""
_ERROR_OF_OTHERS: Final = 0.3
"""For each core that they had, of all cores: what they will do meanwhile is not known."""
_MOST_USED: Final = 0.85
"""Part of the cores that the changed job may use without further error."""
_ERROR_OF_CORES: Final = 0.15
"""Where it uses more, or where the replay does not reproduce how threads share them."""
_ERROR_OF_MAKERS: Final = 0.1
"""Where those who make batches are not replayed."""
_ERROR_OF_STORAGE: Final = 0.2
"""Where reads do not show whether a rate or a latency bounds the storage."""
_LEAST_STORAGE: Final = 0.1
"""Share of the time of making batches from which on it matters how storage is bound."""
_STORAGE: Final = STAGES.index("storage")


class Kind(Enum):
    """Changes whose predictions have errors alike."""

    WORKERS = auto()
    FIRST_WORKERS = auto()
    PREFETCH = auto()
    BATCH = auto()
    PERSISTENT = auto()
    STORAGE = auto()
    CACHE = auto()
    STAGE = auto()
    CORES = auto()
    RANKS = auto()
    LIKE = auto()
    DEVICE = auto()
    COPY = auto()


@dataclass(frozen=True)
class Accuracy:
    """What comparisons showed."""

    runs: int
    """0: there were none, and the error is assumed."""
    error: float
    """The largest of them, but for one in twenty."""


_COMPETING: Final = frozenset((Kind.WORKERS, Kind.FIRST_WORKERS, Kind.CORES, Kind.RANKS))
"""Changes after which other threads share the cores."""


SHOWN: Final[dict[Kind, Accuracy]] = {
    Kind.WORKERS: Accuracy(40, 0.13),
    Kind.FIRST_WORKERS: Accuracy(0, 0.3),  # what it costs to send their batches is not known
    Kind.PREFETCH: Accuracy(13, 0.08),
    Kind.BATCH: Accuracy(23, 0.15),
    Kind.PERSISTENT: Accuracy(2, 0.07),
    Kind.STORAGE: Accuracy(16, 0.22),
    Kind.CACHE: Accuracy(3, 0.09),
    Kind.STAGE: Accuracy(17, 0.13),
    Kind.CORES: Accuracy(2, 0.08),
    Kind.RANKS: Accuracy(0, 0.78),  # where they compete for the cores
    Kind.LIKE: Accuracy(12, 0.15),
    Kind.DEVICE: Accuracy(0, 0.2),  # two runs alone
    Kind.COPY: Accuracy(0, 0.25),
}
"""2026-11-24, by `python benchmarks/what_if.py --again FOLDER ... --shown` over all runs that its
earlier calls kept: 11 jobs with changes, four of them recorded twice, and 7 jobs without a cause
(`--removals`), on two cores (`benchmarks/results/what_if.md`). Predictions from runs of which
`why_none` predicts nothing are left out. An error is that of the step's time, rounded up to a whole
percent. Up to 20 runs it is the largest, so that of a kind with two or three runs says little. LIKE
is by `benchmarks/what_if_layouts.py`. The same job twice differed by up to 4.4 %. All jobs keep
their memory, as users' jobs need not.

BATCH: those 15 runs, of which the worst was 7 % off, and eight of 2026-11-25, whose median is 1.8 %
and whose worst are 14.6 and 19.6 %: batches of half the size, in loops that do not wait for them.
What a model computes for a batch of any size, a run with batches of one size does not show. The
other runs of that day are not in these numbers: the machine's speed changed between them.
"""


def kinds(change: Change, recorded: Pipeline) -> tuple[Kind, ...]:
    """What a change of a run is of."""
    has_workers = any(each.workers for rank in recorded.ranks for each in rank.iterations)
    is_storage = [cause == "storage" for cause in change.speeds]
    found = {
        Kind.WORKERS: change.workers is not None and has_workers,
        Kind.FIRST_WORKERS: change.workers is not None and not has_workers,
        Kind.PREFETCH: change.prefetch is not None,
        Kind.BATCH: change.batch is not None,
        Kind.PERSISTENT: change.persistent_workers,
        Kind.STORAGE: any(is_storage),
        Kind.CACHE: change.cache is not None,
        Kind.STAGE: not all(is_storage) or change.skip_discarded,
        Kind.CORES: change.cores is not None,
        Kind.RANKS: change.ranks is not None,
        Kind.LIKE: change.like is not None,
        Kind.DEVICE: change.device is not None,
        Kind.COPY: change.copy is not None,
    }
    return tuple(kind for kind, has in found.items() if has)


def changes_competition(change: Change) -> bool:
    """Whether who gets a core may be different with the change: there are more or fewer threads or
    cores, or workers compute in another part of their time.
    """
    values = (change.workers, change.ranks, change.cores, change.batch, change.cache)
    return (
        any(value is not None for value in values)
        or any(cause in (*STAGES, CALLS) for cause in change.speeds)
        or change.skip_discarded
    )


def error_of(found: tuple[Kind, ...]) -> float:
    """The error that predictions of these kinds had together."""
    return sum(SHOWN[kind].error for kind in found)


def are_compared(found: tuple[Kind, ...]) -> bool:
    """Whether predictions of all these kinds were compared with runs."""
    return all(SHOWN[kind].runs for kind in found)


def further_error(
    recorded: Pipeline, new: Pipeline, total_s: float, found: tuple[Kind, ...]
) -> float:
    """What adds to the error of a prediction of these kinds: `new` is the changed pipeline, whose
    replay took `total_s`.
    """
    error = error_of_others(recorded) + (0.0 if recorded.knows_makers else _ERROR_OF_MAKERS)
    if not recorded.shares_cores and _COMPETING.intersection(found):
        error += _ERROR_OF_CORES
    if (
        not recorded.storage.is_sure
        and set(found) != {Kind.PREFETCH}
        and _storage_ratio(recorded) >= _LEAST_STORAGE
    ):
        error += _ERROR_OF_STORAGE
    if any(
        _cpu_s(new, host) / total_s > _MOST_USED * cores and _num_processes(new, host) > 1
        for host, cores in recorded.cores.items()
    ):
        error += _ERROR_OF_CORES
    return error


def error_of_others(recorded: Pipeline) -> float:
    """What threads of other programs add to the error of any prediction; 0: there were none."""
    return max(
        (
            _ERROR_OF_OTHERS * min(1.0, threads / cores)
            for host, cores in recorded.cores.items()
            if (threads := recorded.others.get(host, 0.0)) >= LEAST_OTHERS
        ),
        default=0.0,
    )


def _storage_ratio(pipeline: Pipeline) -> float:
    """Share of the time of making batches that was waiting for storage."""
    stages = sum(each.tasks.stages_s.sum(0) for rank in pipeline.ranks for each in rank.iterations)
    total_s = float(np.sum(stages))
    return float(np.asarray(stages)[_STORAGE]) / total_s if total_s else 0.0


def _num_processes(pipeline: Pipeline, host: str) -> int:
    """Loops and their workers there, which can compete for its cores."""
    return sum(
        1 + max((each.workers for each in rank.iterations), default=0)
        for rank in pipeline.ranks
        if rank.host == host
    )


def _cpu_s(pipeline: Pipeline, host: str) -> float:
    """CPU time of the job there; where it was not measured, all time but waits for storage is taken
    for it.
    """
    works = pipeline.own_work
    total = 0.0
    for rank in pipeline.ranks:
        if rank.host == host:
            loop_s = float(rank.program.after_s[:, works].sum())
            made_s = sum(
                float((each.tasks.stages_s.sum(1) - each.tasks.stages_s[:, _STORAGE]).sum())
                for each in rank.iterations
            )
            total += sum(
                seconds * use.cores_ratio * use.threads
                for seconds, use in ((loop_s, rank.loop_cpu), (made_s, rank.worker_cpu))
            )
    return total
