"""What the kernel says of its clocks: whose they are, and how far the wall clock may be off."""

import ctypes
from typing import Any, Final

_SECOND_NS: Final = 1_000_000_000
_UNSYNCHRONISED: Final = 0x40  # STA_UNSYNC, <linux/timex.h>
_ERROR: Final = 5  # TIME_ERROR: what adjtimex returns while nobody keeps the clock


class _Timex(ctypes.Structure):
    """The start of struct timex (man adjtimex), with more room behind it than any kernel fills."""

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
    """Of this process's clocks, for `run["clocks"]`; null for what this system does not tell.

    `kernel`: the boot id, the same for all who read the same CLOCK_MONOTONIC but for `monotonic_shift_ns`.
    `wall_error_ns`: how far the wall clock may be off, as its keeper (chrony, ntpd) told the kernel; null: nobody keeps it.
    """
    return {"kernel": boot_id(proc), "monotonic_shift_ns": monotonic_shift_ns(proc), "wall_error_ns": wall_error_ns()}


def boot_id(proc: str = "/proc") -> str | None:
    """What tells this boot of this machine from every other (man proc_sys_kernel)."""
    try:
        with open(f"{proc}/sys/kernel/random/boot_id", encoding="ascii") as file:
            return file.read().strip() or None
    except (OSError, ValueError):
        return None


def monotonic_shift_ns(proc: str = "/proc") -> int:
    """How far this process's CLOCK_MONOTONIC is ahead of the kernel's own: 0 but in a time namespace (man time_namespaces)."""
    try:
        with open(f"{proc}/self/timens_offsets", encoding="ascii") as file:
            fields = next((line.split() for line in file if line.startswith("monotonic")), ["", "0", "0"])
        return int(fields[1]) * _SECOND_NS + int(fields[2])
    except (OSError, ValueError, IndexError):  # a kernel without them
        return 0


def wall_error_ns() -> int | None:
    """The greatest error of the wall clock that its keeper admits; grows from one synchronisation to the next."""
    timex = _Timex()
    try:
        state = ctypes.CDLL(None, use_errno=True).adjtimex(ctypes.byref(timex))
    except (OSError, AttributeError):
        return None
    if state in (-1, _ERROR) or timex.status & _UNSYNCHRONISED:
        return None
    return int(timex.maxerror) * 1000
