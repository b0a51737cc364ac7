"""How long the thread of a training on the CPU could have run but had no core, outside of its waits
and computations.

A loop whose workers keep all cores busy loses some milliseconds at a time by that, in whatever it
is just doing. Where that is a computation, the lost time is a part of the computation; in Python
between two of them it would be time without a name.

Where the thread did not wait by itself meanwhile (voluntary context switches, man 2 getrusage), it
had no core for the wall time less its CPU time; where it did, this is not known, and nothing is
said. The counters are read where such a time begins and, if it lasted for `LEAST_NS`, where it
ends. What was lost becomes a `user` span named `schema.CORE_WAIT`: how long it was is measured,
when exactly is not known. A reading takes 0.6 us (one measurement), so of the times at one place in
a step one in `PERIOD_NS` at most is observed.
"""

from resource import RUSAGE_THREAD, getrusage
from typing import Final

from ioprof.clock import monotonic_ns
from ioprof.format.schema import CORE_WAIT
from ioprof.instrument.span import emit

LEAST_NS: Final = 200_000
"""Less is not looked at: a time slice of the scheduler is longer."""
LEAST_LOST_NS: Final = 50_000
"""Less is not said: interrupts take it too."""
PERIOD_NS: Final = 2_000_000
AFTER_STEP, AFTER_WAIT, AFTER_FORWARD = range(3)
"""Places in a step, by what ended there."""


class CoreWaits:
    """Those of one thread, which is the one that calls it."""

    __slots__ = ("_begin_ns", "_next_ns", "_place", "_used")

    def __init__(self) -> None:
        self._next_ns = [0, 0, 0]
        """When the next time at each place may be observed."""
        self._place = AFTER_STEP
        self._begin_ns = 0
        """Start of the time that is being observed; 0: there is none."""
        self._used = (0, 0)
        """What the thread had used then, see `_read`."""

    def begin(self, place: int, now_ns: int) -> None:
        """A wait, a computation or a step has ended."""
        if now_ns >= self._next_ns[place]:
            self._next_ns[place] = now_ns + PERIOD_NS
            self._begin_ns, self._place, self._used = now_ns, place, _read()
        else:
            self._begin_ns = 0

    def end(self, now_ns: int) -> None:
        """A computation on the CPU begins."""
        begin_ns, self._begin_ns = self._begin_ns, 0
        if begin_ns and now_ns - begin_ns >= LEAST_NS:
            cpu_ns, num_waits = _read()
            lost_ns = now_ns - begin_ns - (cpu_ns - self._used[0])
            if lost_ns >= LEAST_LOST_NS and num_waits == self._used[1]:
                emit("user", now_ns - lost_ns, now_ns, CORE_WAIT)

    def begin_wait(self) -> None:
        """A wait for a batch begins. Without a computation on the CPU since the last one, a device
        may have computed meanwhile.
        """
        if self._place == AFTER_WAIT:
            self._begin_ns = 0
        elif self._begin_ns:
            self.end(monotonic_ns())


def _read() -> tuple[int, int]:
    """CPU time of this thread in nanoseconds, and how often it has waited."""
    used = getrusage(RUSAGE_THREAD)
    return int((used.ru_utime + used.ru_stime) * 1e9), used.ru_nvcsw
