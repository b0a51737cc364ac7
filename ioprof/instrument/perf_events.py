"""Perf events of the kernel and their ring buffers, for the page fault recorder (man
perf_event_open).

All events are those of one thread, one per CPU, and are inherited by its children.
"""

import ctypes
import errno
import fcntl
import mmap
import os
import platform
import select
import struct
import threading
import time
from collections.abc import Iterator, Set
from contextlib import contextmanager
from typing import Final

from ioprof.errors import CaptureError

# of perf_event_open, by machine
NUMBERS: Final = {
    "x86_64": 298,
    "aarch64": 241,
    "riscv64": 241,
    "ppc64le": 319,
}
_PARANOID: Final = "/proc/sys/kernel/perf_event_paranoid"
_MOST_PARANOID: Final = 2
"""Up to this level every user may record events of their own programs in user space."""

# <linux/perf_event.h>
_TYPE_SOFTWARE: Final = 1
_PAGE_FAULTS_MINOR, _PAGE_FAULTS_MAJOR, _DUMMY = 5, 6, 9
_SAMPLE_TID_TIME_ADDR: Final = 1 << 1 | 1 << 2 | 1 << 3
_SAMPLE_IP: Final = 1 << 0  # makes samples of minor faults longer, which distinguishes them
_FORMAT_LOST: Final = 1 << 4  # Linux 6.0
_OPEN_CLOSE_ON_EXEC: Final = 1 << 3
ENABLE, DISABLE, SET_OUTPUT = 0x2400, 0x2401, 0x2405  # PERF_EVENT_IOC_...
_FLAGS: Final = {
    "disabled": 0,
    "inherit": 1,
    "exclude_kernel": 5,
    "exclude_hv": 6,
    "mmap": 8,
    "comm": 9,
    "enable_on_exec": 12,
    "task": 13,
    "watermark": 14,
    "mmap_data": 17,
    "sample_id_all": 18,
    "mmap2": 23,
    "comm_exec": 24,
    "use_clockid": 25,
    "context_switch": 26,
}
# struct perf_event_attr up to PERF_ATTR_SIZE_VER4 (Linux 4.1)
_ATTRIBUTES: Final = struct.Struct("<IIQQQQQIIQQQQIiQ")
_HEAD, _TAIL = 1024, 1032  # data_head and data_tail in struct perf_event_mmap_page


class RefusedError(CaptureError):
    """Page faults cannot be recorded here: `seen` is the reason, `to_type` is what would allow
    it.
    """

    def __init__(self, seen: str, to_type: str) -> None:
        super().__init__(
            f"page faults of mapped files cannot be recorded: {seen}; what would allow it:"
            f" {to_type}"
        )
        self.seen = seen
        self.to_type = to_type


# ------------------------------------------------------------------------------------------- events


class Events:
    """One event per CPU, all with the same attributes."""

    def __init__(
        self, found: list[tuple[int, int]], attributes: bytes, kernel: bool, counts_lost: bool
    ) -> None:
        """`found`: each CPU with the descriptor of its event."""
        self.cpus = [cpu for cpu, _ in found]
        self.descriptors = [descriptor for _, descriptor in found]
        self.attributes = attributes
        self.kernel = kernel
        self._counts_lost = counts_lost

    def counts(self) -> tuple[int, int]:
        """Numbers of major faults and lost records counted by the kernel, over all CPUs and
        processes; -1: unknown.
        """
        length = 16 if self._counts_lost else 8
        counted = [os.read(descriptor, length) for descriptor in self.descriptors]
        if any(len(data) < length for data in counted):
            return -1, -1
        lost = (
            sum(int.from_bytes(data[8:], "little") for data in counted) if self._counts_lost else -1
        )
        return sum(int.from_bytes(data[:8], "little") for data in counted), lost

    def enable(self, *, on: bool) -> None:
        """Enable or disable the events in all processes of the job."""
        for descriptor in self.descriptors:
            fcntl.ioctl(descriptor, ENABLE if on else DISABLE, 0)

    def close(self) -> None:
        """Close the descriptors. The events end when the last one is closed."""
        for descriptor in self.descriptors:
            os.close(descriptor)


def open_events(cpus: list[int], ring_bytes: int, *, switches: bool = False) -> Events:
    """Open events of the calling thread and its children, with all options that the kernel and the
    rights of the user permit.

    They record major faults and mappings, with `switches` also context switches. Raises
    `RefusedError`.
    """
    refused = 0
    for kernel, counts_lost in ((True, True), (True, False), (False, True), (False, False)):
        read_format = _FORMAT_LOST if counts_lost else 0
        flags = _FLAGS.keys() - (set() if switches else {"context_switch"})
        attributes = _pack_attributes(
            _PAGE_FAULTS_MAJOR, _SAMPLE_TID_TIME_ADDR, read_format, flags, kernel, ring_bytes // 4
        )
        found: list[tuple[int, int]] = []
        for cpu in cpus:
            descriptor, refused = open_event(attributes, cpu)
            if descriptor >= 0:
                found.append((cpu, descriptor))
            elif refused != errno.ENODEV:  # ENODEV: the CPU went offline
                break
        else:
            if found:
                return Events(found, attributes, kernel, counts_lost)
        for _, descriptor in found:
            os.close(descriptor)
    try:
        with open(_PARANOID) as file:
            paranoid = int(file.read())
    except (OSError, ValueError):
        raise explain_refusal(refused, None) from None
    raise explain_refusal(refused, paranoid)


@contextmanager
def events_kept_apart() -> Iterator[None]:
    """Have an event of the calling thread that its children do not inherit, if there can be one.

    Where all events of two tasks are alike and the kernel switches directly from one to the other,
    it exchanges the lists of events (`context_equiv` in kernel/events/core.c). The first program
    that the thread starts would take over the thread's own events, its execve would enable these,
    and no execve would enable what later programs inherit: with other programs on the cores, jobs
    had no page faults. With this event the lists are never alike.
    """
    attributes = _pack_attributes(
        _DUMMY, 0, 0, {"disabled", "exclude_kernel", "exclude_hv"}, kernel=False, watermark=0
    )
    descriptor, _ = open_event(attributes, -1)
    try:
        yield
    finally:
        if descriptor >= 0:
            os.close(descriptor)


def switch_attributes(kernel: bool) -> bytes:
    """A struct perf_event_attr for context switches only, enabled at the next execve or by
    ioctl.
    """
    flags = {
        "disabled",
        "inherit",
        "exclude_kernel",
        "exclude_hv",
        "enable_on_exec",
        "watermark",
        "sample_id_all",
        "use_clockid",
    }
    return _pack_attributes(
        _DUMMY, _SAMPLE_TID_TIME_ADDR, 0, flags | {"context_switch"}, kernel, 1 << 30
    )


def minor_attributes(kernel: bool) -> bytes:
    """A struct perf_event_attr for minor faults only, enabled by ioctl."""
    flags = {"disabled", "inherit", "exclude_kernel", "exclude_hv", "watermark", "use_clockid"}
    return _pack_attributes(
        _PAGE_FAULTS_MINOR, _SAMPLE_IP | _SAMPLE_TID_TIME_ADDR, 0, flags, kernel, 1 << 30
    )


def _pack_attributes(
    event: int, sample: int, read_format: int, flags: Set[str], kernel: bool, watermark: int
) -> bytes:
    bits = sum(
        1 << _FLAGS[name]
        for name in flags - ({"exclude_kernel", "exclude_hv"} if kernel else set())
    )
    fields = (_TYPE_SOFTWARE, _ATTRIBUTES.size, event, 1, sample, read_format, bits, watermark)
    return _ATTRIBUTES.pack(*fields, 0, 0, 0, 0, 0, 0, time.CLOCK_MONOTONIC, 0)


def open_event(attributes: bytes, cpu: int) -> tuple[int, int]:
    """Call perf_event_open. Returns the file descriptor and 0, or -1 and the errno."""
    number = NUMBERS.get(platform.machine())
    if number is None:
        return -1, errno.ENOSYS
    function = ctypes.CDLL(None, use_errno=True).syscall
    function.restype = ctypes.c_long
    long = ctypes.c_long
    descriptor = function(
        long(number), attributes, long(0), long(cpu), long(-1), ctypes.c_ulong(_OPEN_CLOSE_ON_EXEC)
    )
    return descriptor, ctypes.get_errno() if descriptor < 0 else 0


def allowed_cpus() -> list[int]:
    """CPUs that the control group of the job allows. The job may use more CPUs than this thread is
    bound to.

    Each CPU with events costs memory per thread of the job, so other CPUs are left out.
    """
    before = os.sched_getaffinity(0)
    try:
        # the kernel reduces the set to the allowed CPUs
        os.sched_setaffinity(0, range(os.sysconf("SC_NPROCESSORS_CONF")))
        return sorted(os.sched_getaffinity(0))
    except OSError:
        return sorted(before)
    finally:
        os.sched_setaffinity(0, before)


def explain_refusal(error: int, level: int | None) -> RefusedError:
    """The meaning of an errno of perf_event_open if kernel.perf_event_paranoid is `level` (None: no
    such setting).
    """
    if error in (errno.EACCES, errno.EPERM):
        if level is not None and level > _MOST_PARANOID:
            return RefusedError(
                f"kernel.perf_event_paranoid is {level}",
                f"sysctl -w kernel.perf_event_paranoid={_MOST_PARANOID}",
            )
        seen = "perf_event_open is forbidden, as containers do by seccomp"
        return RefusedError(
            seen, "docker run --cap-add PERFMON (or --security-opt seccomp=FILE), or apptainer"
        )
    if error in (errno.EINVAL, errno.E2BIG):
        return RefusedError(
            f"this kernel is too old for it: {platform.release()}", "Linux 4.3 or newer"
        )
    if error in (errno.ENOSYS, errno.ENOENT, errno.EOPNOTSUPP):
        return RefusedError(
            "this kernel has no perf events", "a kernel built with CONFIG_PERF_EVENTS=y"
        )
    if error == errno.EMFILE:
        return RefusedError("too few file descriptors, one per CPU is needed", "ulimit -n 4096")
    return RefusedError(
        f"perf_event_open: {os.strerror(error)}", "dmesg (it may contain the reason)"
    )


# -------------------------------------------------------------------------------------------- rings


class Ring:
    """The ring buffer into which the kernel writes the records of one CPU."""

    def __init__(self, address: int, size: int) -> None:
        self.size = size
        self._address = address
        length = mmap.PAGESIZE + size
        self._bytes = memoryview((ctypes.c_ubyte * length).from_address(address)).cast("B")
        # aligned, so an element is loaded and stored atomically
        self._words = self._bytes[: mmap.PAGESIZE].cast("Q")

    def head(self) -> int:
        """Total number of bytes that the kernel has written."""
        return self._words[_HEAD // 8]

    def has_records(self) -> bool:
        """Whether the kernel has written what has not been freed."""
        return self.head() != self._words[_TAIL // 8]

    def read(self, head: int) -> bytes:
        """The bytes up to `head` that have not been freed."""
        data, tail = self._bytes[mmap.PAGESIZE :], self._words[_TAIL // 8]
        first, end = tail % self.size, tail % self.size + head - tail
        return bytes(data[first:end]) + bytes(data[: max(0, end - self.size)])

    def free(self, head: int) -> None:
        """Free the bytes up to `head` for the kernel to overwrite."""
        self._words[_TAIL // 8] = head

    def close(self) -> None:
        """Unmap the ring; it must not be used afterwards."""
        self._words.release()
        self._bytes.release()
        _libc().munmap(ctypes.c_void_p(self._address), ctypes.c_size_t(mmap.PAGESIZE + self.size))


def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


def map_rings(descriptors: list[int], ring_bytes: int) -> list[Ring]:
    """Map rings of `ring_bytes`, or of the size that this user may lock, all equal. Raises
    `RefusedError` if one page fails.
    """
    size = max(ring_bytes, mmap.PAGESIZE)
    while size >= mmap.PAGESIZE:
        rings: list[Ring] = []
        for descriptor in descriptors:
            address = _map(descriptor, mmap.PAGESIZE + size)
            if address is None:
                break
            rings.append(Ring(address, size))
        if len(rings) == len(descriptors):
            return rings
        close_rings(rings)
        size //= 2
    raise RefusedError(
        "no locked memory is left to this user",
        "sysctl -w kernel.perf_event_mlock_kb=2064, or ulimit -l unlimited",
    )


def close_rings(rings: list[Ring]) -> None:
    """Unmap all rings."""
    for ring in rings:
        ring.close()


def _map(descriptor: int, length: int) -> int | None:
    """Map without `mmap.mmap`, which keeps a second descriptor: hosts may have more CPUs than half
    the descriptor limit.
    """
    function = _libc().mmap
    function.restype = ctypes.c_void_p
    size, none = ctypes.c_size_t(length), ctypes.c_void_p(None)
    address = function(
        none, size, mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_SHARED, descriptor, ctypes.c_long(0)
    )
    return None if address in (None, ctypes.c_void_p(-1).value) else int(address)


def read_rings(rings: list[Ring]) -> bytes:
    """Read and free all records in the rings, CPU by CPU."""
    heads = [ring.head() for ring in rings]
    _barrier()  # the kernel writes records before it updates the head (perf_output_put_handle)
    data = b"".join([ring.read(head) for ring, head in zip(rings, heads, strict=True)])
    _barrier()  # records must be read before the tail is updated
    for ring, head in zip(rings, heads, strict=True):
        ring.free(head)
    return data


def wait_for_records(
    poller: select.poll, rings: list[Ring], most_ms: int, look_ms: int
) -> list[tuple[int, int]]:
    """Wait for what the poller knows, or until that time is over, or, looked at each `look_ms`, any
    ring has records.

    Returns what the poller said.
    """
    left_ms = most_ms
    while left_ms > 0:
        happened = poller.poll(min(look_ms, left_ms))
        left_ms -= look_ms
        if happened or (left_ms > 0 and any(ring.has_records() for ring in rings)):
            return happened
    return []


_fence = threading.Lock()


def _barrier() -> None:
    """Memory barrier, needed on ARM: accesses before the release of a lock come before those after
    its next acquisition.
    """
    with _fence:
        pass
    with _fence:
        pass
