"""Facts about the clocks of the kernel: boot id, time namespace and maximum error of the wall
clock.
"""

import ctypes
from typing import Any, Final

_SECOND_NS: Final = 1_000_000_000
_UNSYNCHRONISED: Final = 0x40  # STA_UNSYNC, <linux/timex.h>
_ERROR: Final = 5  # TIME_ERROR: returned by adjtimex if the clock is not synchronised


class _Timex(ctypes.Structure):
    """The start of struct timex (man adjtimex), followed by more bytes than any kernel writes."""

    _fields_ = (
        ("modes", ctypes.c_uint),
        ("offset", ctypes.c_long),
        ("freq", ctypes.c_long),
        ("maxerror", ctypes.c_long),
        ("esterror", ctypes.c_long),
        ("status", ctypes.c_int),
        ("rest", ctypes.c_byte * 256),
    )


def clock_facts(proc: str = "/proc") -> dict[str, Any]:
    """Facts about the clocks of this process, for `run["clocks"]`; null for what is unknown.

    `kernel`: the boot id, equal for all processes with the same CLOCK_MONOTONIC except for
    `monotonic_shift_ns`. `wall_error_ns`: maximum error of the wall clock as reported to the kernel
    by chrony or ntpd; null: not synchronised.
    """
    return {
        "kernel": boot_id(proc),
        "monotonic_shift_ns": monotonic_shift_ns(proc),
        "wall_error_ns": wall_error_ns(),
    }


def boot_id(proc: str = "/proc") -> str | None:
    """Identifier of this boot of this machine (man proc_sys_kernel)."""
    try:
        with open(f"{proc}/sys/kernel/random/boot_id", encoding="ascii") as file:
            return file.read().strip() or None
    except (OSError, ValueError):
        return None


def monotonic_shift_ns(proc: str = "/proc") -> int:
    """Offset of CLOCK_MONOTONIC of this process from that of the kernel: not 0 only in a time
    namespace (man time_namespaces).
    """
    try:
        with open(f"{proc}/self/timens_offsets", encoding="ascii") as file:
            fields = next(
                (line.split() for line in file if line.startswith("monotonic")), ["", "0", "0"]
            )
        return int(fields[1]) * _SECOND_NS + int(fields[2])
    except (OSError, ValueError, IndexError):  # a kernel without time namespaces
        return 0


def wall_error_ns() -> int | None:
    """Maximum error of the wall clock as reported by its daemon; grows from one synchronisation to
    the next. None: unknown.
    """
    timex = _Timex()
    try:
        state = ctypes.CDLL(None, use_errno=True).adjtimex(ctypes.byref(timex))
    except (OSError, AttributeError):
        return None
    if state in (-1, _ERROR) or timex.status & _UNSYNCHRONISED:
        return None
    return int(timex.maxerror) * 1000
