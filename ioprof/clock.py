"""The only module that reads clocks: monotonic nanoseconds, and their offset to the wall clock.

All spans of one host use CLOCK_MONOTONIC, which has the same value in all processes of a kernel
(man clock_gettime). Times of different hosts are aligned by the wall clock: the offset between
CLOCK_MONOTONIC and CLOCK_REALTIME is constant until the wall clock is stepped.
"""

import os
import time
from dataclasses import dataclass

monotonic_ns = time.monotonic_ns
"""Nanoseconds of CLOCK_MONOTONIC: the clock of every span."""
thread_cpu_ns = time.thread_time_ns
"""Nanoseconds of CPU time of the calling thread."""


@dataclass(frozen=True)
class Anchor:
    """One reading of the wall clock between two readings of the monotonic clock, all in
    nanoseconds.
    """

    before_ns: int
    wall_ns: int
    after_ns: int

    @property
    def offset_ns(self) -> int:
        """Wall time minus monotonic time."""
        return self.wall_ns - (self.before_ns + self.after_ns) // 2

    @property
    def uncertainty_ns(self) -> int:
        """Maximum error of `offset_ns`: half the bracket, rounded up. High: the process was
        preempted between the readings.
        """
        return (self.after_ns - self.before_ns + 1) // 2


def anchor(attempts: int = 100) -> Anchor:
    """The narrowest of `attempts` brackets of the wall clock between two monotonic readings."""
    brackets = (
        Anchor(time.monotonic_ns(), time.time_ns(), time.monotonic_ns()) for _ in range(attempts)
    )
    return min(brackets, key=lambda bracket: bracket.uncertainty_ns)


def wall_text(wall_ns: int) -> str:
    """Wall time as ISO 8601 in UTC, to the second."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(wall_ns / 1e9))


def process_start_ns() -> int | None:
    """When this process was started, CLOCK_MONOTONIC ns, to a hundredth of a second; None where the
    kernel does not say.

    Field 22 of /proc/self/stat counts clock ticks of CLOCK_BOOTTIME (man proc_pid_stat), which also
    advances while the host sleeps.
    """
    try:
        with open("/proc/self/stat", "rb") as file:
            ticks = int(file.read().rpartition(b")")[2].split()[19])
        since_boot_ns = ticks * 1_000_000_000 // os.sysconf("SC_CLK_TCK")
        return since_boot_ns - time.clock_gettime_ns(time.CLOCK_BOOTTIME) + time.monotonic_ns()
    except (OSError, ValueError, IndexError, AttributeError):
        return None
