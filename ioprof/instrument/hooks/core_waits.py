"""How long the main thread of a training on the CPU could have run but had no core, outside of its waits and computations.

The kernel counts that for each thread as run-queue delay: the second field of /proc/PID/task/TID/schedstat
(Documentation/scheduler/sched-stats.rst). A loop whose workers keep all cores busy loses some milliseconds at a time by it, in
whatever it is just doing. Where that is a computation, the delay is a part of the computation; in Python between two of them it
would be time without a name.

The counter is read where such a time begins and, if it lasted for `LEAST_NS`, where it ends. A reading is a system call, and the
kernel likes to take the core away in one: a reading that takes long was itself such a wait, and is counted by its time. What was found becomes a `user` span named `schema.CORE_WAIT`: how long it waited is measured, when exactly is not known. A
reading takes 1 to 2 us, so of the times at one place in a step one in `PERIOD_NS` at most is observed.
"""

import os
import threading
from typing import Final

from ioprof.clock import monotonic_ns
from ioprof.instrument.span import emit
from ioprof.schema import CORE_WAIT

try:
    from ioprof._native import run_delay
except ImportError:  # built without a C compiler: nothing is observed
    run_delay = None  # type: ignore[assignment]

LEAST_NS: Final = 200_000
"""Less is not looked at: a time slice of the scheduler is longer."""
PERIOD_NS: Final = 5_000_000
AFTER_STEP, AFTER_WAIT, AFTER_FORWARD = range(3)
"""Places in a step, by what ended there."""


class CoreWaits:
    """Those of one thread, which is the one that calls it; none if that is not the main thread of its process."""

    __slots__ = ("_begin_ns", "_delay_ns", "_descriptor", "_is_known", "_next_ns", "_place", "_reading_ns")

    def __init__(self) -> None:
        self._descriptor = -1
        self._is_known = run_delay is not None
        """The kernel has that counter, and this is the main thread, as far as was seen."""
        self._next_ns = [0, 0, 0]
        """When the next time at each place may be observed."""
        self._place = AFTER_STEP
        self._begin_ns = 0
        """Start of the time that is being observed; 0: there is none."""
        self._delay_ns = 0
        """The counter at that time."""
        self._reading_ns = 0
        """How long the thread had no core while the counter was read then."""

    def begin(self, place: int) -> None:
        """A wait, a computation or a step has ended."""
        self._begin_ns = 0
        now_ns = monotonic_ns()
        if self._is_known and now_ns >= self._next_ns[place]:
            self._next_ns[place] = now_ns + PERIOD_NS
            self._delay_ns, self._reading_ns = self._read(now_ns)
            self._begin_ns, self._place = now_ns if self._delay_ns >= 0 else 0, place

    def end(self, now_ns: int) -> None:
        """A computation on the CPU begins."""
        begin_ns, self._begin_ns = self._begin_ns, 0
        if begin_ns and now_ns - begin_ns >= LEAST_NS:
            delay_ns, reading_ns = self._read(monotonic_ns())
            waited_ns = min(delay_ns - self._delay_ns - reading_ns + self._reading_ns, now_ns - begin_ns)
            if delay_ns >= 0 and waited_ns > 0:
                emit("user", now_ns - waited_ns, now_ns, CORE_WAIT)

    def begin_wait(self) -> None:
        """A wait for a batch begins. If there was no computation on the CPU since the last one, a device may have computed meanwhile."""
        if self._place == AFTER_WAIT:
            self._begin_ns = 0
        elif self._begin_ns:
            self.end(monotonic_ns())

    def _read(self, now_ns: int) -> tuple[int, int]:
        """The run-queue delay of this thread so far, -1 if it is not known, and for how long it had no core during this reading."""
        if self._descriptor < 0 and not self._open():
            return -1, 0
        delay_ns = run_delay(self._descriptor)
        if delay_ns < 0:  # the job closed all files, and the number is another file's
            self._is_known = False
        took_ns = monotonic_ns() - now_ns
        if took_ns < LEAST_NS:
            return delay_ns, 0
        return run_delay(self._descriptor), took_ns  # once more: what it lost during the first reading is in the counter now

    def _open(self) -> bool:
        self._is_known = threading.get_native_id() == os.getpid()  # other threads come and go, and each would leave an open file
        if self._is_known:
            try:
                self._descriptor = os.open(f"/proc/self/task/{os.getpid()}/schedstat", os.O_RDONLY | os.O_CLOEXEC)
            except OSError:
                self._is_known = False
        return self._is_known
