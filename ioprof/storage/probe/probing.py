"""The probe: plans the levels, and runs them one after the other."""

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from ioprof.clock import monotonic_ns
from ioprof.storage.probe import harness
from ioprof.storage.probe.budget import Allowance, Budget
from ioprof.storage.probe.clients import run_clients
from ioprof.storage.probe.measure import LevelRun, level_of
from ioprof.storage.probe.outcomes import Kind, Numbers
from ioprof.storage.probe.result import MODES, TESTS, Level, Missing, Probe
from ioprof.storage.probe.targets import ColdPieces, ReadTargets
from ioprof.storage.residency import residency

_KEPT_FILES: Final = 256
"""Maximum number of files of a direct level whose residency is queried afterwards."""


@dataclass(frozen=True)
class Plan:
    """What to measure."""

    clients: tuple[int, ...] = (1, 2, 4, 8, 16)
    """Numbers of clients of the random test; the other tests use the first and the last."""
    tests: tuple[str, ...] = TESTS
    modes: tuple[str, ...] = MODES

    def steps(self) -> Iterator[tuple[str, str, int]]:
        """Test, mode and clients of each level. The open test comes first: its names must not have
        been looked up before.
        """
        ends = tuple(dict.fromkeys((self.clients[0], self.clients[-1])))
        for test in (test for test in TESTS if test in self.tests):
            modes = MODES[:1] if test == "open" else self.modes
            for clients in self.clients if test == "random" else ends:
                yield from ((test, mode, clients) for mode in modes)


_USUAL: Final = Allowance()
_WHOLE: Final = Plan()


def clients_up_to(most: int) -> tuple[int, ...]:
    """1, 2, 4, ... and `most`."""
    return (*(2**power for power in range((most - 1).bit_length())), most)


def probe(
    targets: ReadTargets,
    allowance: Allowance = _USUAL,
    plan: Plan = _WHOLE,
    report: Callable[[Level | Missing], object] = lambda _: None,
) -> Probe:
    """Measure the throughput and latency of reads from `targets`. `report` is called with each
    level when it has ended.

    Evicts the files that it reads from the page cache. Raises `CommandError` for a file that cannot
    be opened.
    """
    steps = list(plan.steps())
    cost = harness.measure_harness()
    targets.prepare()
    probing = _Probing(targets, Budget(allowance, len(steps)), cost.latency_ns, steps)
    found: list[Level | Missing] = []
    for test, mode, clients in steps:
        found.append(probing.level(test, mode, clients))
        report(found[-1])
    levels = tuple(level for level in found if isinstance(level, Level))
    return Probe(
        levels=levels,
        missing=tuple(level for level in found if isinstance(level, Missing)),
        harness=cost,
        record_bytes_mean=probing.record_bytes_mean,
        seconds=probing.budget.seconds,
        bytes=probing.budget.spent_bytes,
        exhausted=next(
            (word for word in ("time", "bytes") if any(level.ended_by == word for level in levels)),
            None,
        ),
    )


class _Probing:
    def __init__(
        self,
        targets: ReadTargets,
        budget: Budget,
        harness_ns: float,
        steps: Sequence[tuple[str, str, int]],
    ) -> None:
        self.targets, self.budget, self.harness_ns = targets, budget, harness_ns
        self.opens = sum(test == "open" for test, _, _ in steps)
        self.record_bytes: list[Numbers] = []

    @property
    def record_bytes_mean(self) -> float | None:
        number = sum(map(len, self.record_bytes))
        return (
            float(sum(lengths.sum() for lengths in self.record_bytes)) / number if number else None
        )

    def level(self, test: str, mode: str, clients: int) -> Level | Missing:
        share = self.budget.next_level()
        if share is None:
            return Missing(
                test, mode, clients, "the time of the budget was over; give more with --seconds"
            )
        limits, end_ns = share
        try:
            if test == "open":
                cold = self.targets.opens(self.opens)
            elif test == "sequential":
                cold = self.targets.sequential(mode == "direct", clients, limits)
            else:
                cold = self.targets.random(mode == "direct", limits)
        except OSError as error:
            return Missing(test, mode, clients, f"the file system refuses it ({error.strerror})")
        if cold is None:
            return Missing(
                test, mode, clients, "needs many small files that no process here has opened yet"
            )
        if test == "random" and mode == "buffered":
            self.record_bytes.append(cold.pieces.places["length"])
        found = run_clients(cold.pieces, clients, max(end_ns - monotonic_ns(), 1), limits.bytes)
        self.budget.spend(int(found.read["bytes"].sum()))
        kept = _kept_ratio(self.targets, cold) if cold.pieces.direct and len(found.read) else None
        return level_of(LevelRun(test, mode, cold, found, kept), self.harness_ns)


def _kept_ratio(targets: ReadTargets, cold: ColdPieces) -> float | None:
    """Bytes of the level's files in the page cache after it / bytes to read; None where the
    residency is unknown.
    """
    pieces = cold.pieces
    if pieces.kind == Kind.RANGES:
        kept, read = residency(targets.paths), int(pieces.places["length"].sum())
    else:
        names = [
            os.fsdecode(target)
            for target in pieces.targets[:_KEPT_FILES]
            if isinstance(target, bytes)
        ]
        kept, read = residency(names), int(pieces.places["length"][:_KEPT_FILES].sum())
    return min(1.0, kept.resident_bytes / read) if read and not kept.unknown_files else None
