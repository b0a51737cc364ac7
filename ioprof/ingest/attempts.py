"""Attempts of a job whose launcher starts all ranks again when one fails, as torchrun
--max-restarts does: processes of one rank, one after the other.

Each begins to count its steps and batches at 0. They are numbered on here, so that no step is made
of two attempts.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

import polars as pl

from ioprof.format.run_record import AttemptRecord, Failure, ProcessRecord
from ioprof.ingest.rings import Capture, Process, Survey

_NUMBERED: Final = ("step", "batch")


@dataclass(frozen=True)
class Attempts:
    """The attempts of the ranks whose spool this is."""

    of_process: dict[tuple[str, int], int]
    """The attempt of each process of a rank, by host and process id."""
    first: tuple[dict[str, int], ...]
    """Of each attempt the number of its first step and of its first batch."""

    @property
    def are_several(self) -> bool:
        """Whether any rank was started again."""
        return len(self.first) > 1

    def shift(self, host: str, pid: int) -> dict[str, int]:
        """What is added to the numbers of a process."""
        return self.first[self.of_process.get((host, pid), 0)]


def attempts_of(
    processes: Sequence[Process],
    restarts: dict[tuple[str, int], int],
    surveyed: Iterable[tuple[Capture, Survey]],
) -> Attempts:
    """The attempts by what the launcher told its processes (`restarts`); where it told nothing, a
    process that begins after another one of its rank has ended is of the next attempt.
    """
    found: dict[tuple[str, int], int] = {}
    by_rank: dict[tuple[str, int], list[Process]] = {}
    for process in processes:
        if process.rank is not None:
            by_rank.setdefault((process.host, process.rank), []).append(process)
    for of_rank in by_rank.values():
        _number(of_rank, restarts, found)
    number = max(found.values(), default=0) + 1
    if number == 1:
        return Attempts(found, ({},))
    counts = [dict.fromkeys(_NUMBERED, 0) for _ in range(number)]
    for capture, survey in surveyed:
        own = counts[found.get((capture.host, int(capture.header["pid"])), 0)]
        for records, _ in survey.held:
            for name in _NUMBERED:
                own[name] = max(own[name], int(records[name].max(initial=-1)) + 1)
    first = [dict.fromkeys(_NUMBERED, 0)]
    for before in counts[:-1]:
        first.append({name: first[-1][name] + before[name] for name in _NUMBERED})
    return Attempts(found, tuple(first))


def _number(
    processes: list[Process],
    restarts: dict[tuple[str, int], int],
    found: dict[tuple[str, int], int],
) -> None:
    """Give the processes of one rank on one host their attempts."""
    ordered = sorted(processes, key=lambda process: process.begin_ns)
    training = [process for process in ordered if process.is_rank]
    for place, process in enumerate(training):
        key = (process.host, process.pid)
        before = [
            found[other.host, other.pid] + 1
            for other in training[:place]
            if other.last_ns < process.begin_ns
        ]
        found[key] = max(restarts.get(key, 0), *before, 0)
    for process in ordered:
        if not process.is_rank:
            begun = [each for each in training if each.begin_ns <= process.begin_ns]
            last = max(begun, key=lambda each: each.begin_ns, default=None)
            found[process.host, process.pid] = found[last.host, last.pid] if last else 0


def attempt_records(
    attempts: Attempts,
    processes: Iterable[ProcessRecord],
    steps: pl.DataFrame,
    failures: Sequence[Failure],
) -> tuple[AttemptRecord, ...]:
    """What is known of each attempt, on the clock of the run; `steps`: spans of steps. Empty: there
    is one.
    """
    if not attempts.are_several:
        return ()
    ranks = [each for each in processes if each.role == "rank"]
    found = []
    for number, first in enumerate(attempts.first):
        own = [each for each in ranks if each.attempt == number]
        until = attempts.first[number + 1]["step"] if number + 1 < len(attempts.first) else None
        made = steps.filter(pl.col("step") >= first["step"])
        if until is not None:
            made = made.filter(pl.col("step") < until)
        pids = {each.pid for each in own}
        found.append(
            AttemptRecord(
                first_step=first["step"],
                first_batch=first["batch"],
                num_steps=max(made.group_by("rank").len()["len"].to_list(), default=0),
                start_ns=min(
                    (each.first_ns for each in own if each.first_ns is not None), default=None
                ),
                end_ns=max(
                    (each.last_ns for each in own if each.last_ns is not None), default=None
                ),
                failure=next((each for each in failures if each.pid in pids), None),
            )
        )
    return tuple(found)
