"""A job that is watched: its sums at each look, and their growth per second."""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, Self

from ioprof import clock
from ioprof.analysis.reads.lineage import LEAVES
from ioprof.watching.live import Live
from ioprof.watching.metrics import Family, families
from ioprof.watching.spool import LiveSpool
from ioprof.watching.target import Target

_RATE_S: Final = 15.0
"""Rates are of so many seconds."""


@dataclass(frozen=True)
class Totals:
    """Sums of all ranks, or, after `less`, how much they grew per second."""

    steps: float
    samples: float
    storage_bytes: float
    cached_bytes: float
    wait_ns: float
    step_ns: float

    @classmethod
    def of(cls, live: Live) -> Self:
        """All so far."""
        ranks = live.ranks.values()
        return cls(
            sum(sums.steps for sums in ranks),
            sum(sums.samples for sums in ranks),
            sum(sums.bytes["storage"] + sums.bytes["unknown"] for sums in ranks),
            sum(sums.bytes["page_cache"] for sums in ranks),
            sum(sums.cause_ns[cause] for sums in ranks for cause in LEAVES),
            sum(sums.step_ns for sums in ranks),
        )

    def less(self, before: Self, seconds: float) -> Self:
        """The growth per second."""
        return type(self)(
            *(
                (now - then) / seconds
                for now, then in zip(vars(self).values(), vars(before).values(), strict=True)
            )
        )

    @property
    def waited(self) -> float | None:
        """Share of the steps' time that ranks waited for batches and did nothing else, as in the
        causes: not where a device computed meanwhile.
        """
        return self.wait_ns / self.step_ns if self.step_ns else None


class WatchedJob:
    """The sums of a job, and when which of them were known."""

    def __init__(
        self, found: list[Target], publish: Sequence[Callable[[list[Family]], None]] = ()
    ) -> None:
        """`publish`: what gets the metrics after each look."""
        self._targets, self._publish = found, publish
        self._spools = [LiveSpool(target.spool) for target in found]
        out = found[0].out
        self.name = (
            (out or found[0].spool).name
            if len(found) == 1 or out is None
            else out.parent.name.removesuffix(".parts")
        )
        self.live = Live()
        self._history: deque[tuple[float, Totals]] = deque()

    def look(self) -> None:
        """Read what is new."""
        until_ns = clock.monotonic_ns()
        for spool in self._spools:
            for news in spool.look():
                self.live.add(news)
        self.live.settle(until_ns)
        self._history.append((until_ns / 1e9, Totals.of(self.live)))
        while len(self._history) > 2 and self._history[-1][0] - self._history[1][0] >= _RATE_S:
            self._history.popleft()
        if self._publish:
            lost = sum(spool.lost for spool in self._spools)
            found = list(families(self.live, self.name, self.is_running, lost))
            for publish in self._publish:
                publish(found)

    @property
    def is_running(self) -> bool:
        """Whether it is recorded, or goes on without the ioprof that recorded it, which may have
        been killed.
        """
        pairs = zip(self._targets, self._spools, strict=True)
        return any(target.is_recorded or target.has_living(spool.pids) for target, spool in pairs)

    def totals(self) -> Totals | None:
        """Of the last seconds, per second. None: there was one look only."""
        (first_s, first), (last_s, last) = self._history[0], self._history[-1]
        return last.less(first, last_s - first_s) if last_s > first_s else None

    def close(self) -> None:
        """Close the capture files."""
        for spool in self._spools:
            spool.close()
