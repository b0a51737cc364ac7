"""Records the page faults of a whole job with perf events of the kernel, in the process that starts
the job.

A read through a mapping (LMDB, np.memmap, safetensors, DALI) is not a system call, so only the
kernel can record it. One software event per CPU, inherited by all processes of the job, records for
each major fault the thread, the address and the time of its end, and which file is mapped where. A
second event per CPU records the context switches of each thread, from which the duration of a fault
follows. This requires no root if kernel.perf_event_paranoid is at most 2, and no library in the
job: static programs, and programs with a cleared environment, are recorded too.

A third event per CPU records minor faults, because a fault on a page that readahead is still
fetching waits, and is not major: the thread gives up the lock of the mapping while it waits for the
page, and the kernel counts only a second attempt that follows a major one as major (Linux 6.4 and
newer, `FAULT_FLAG_VMA_LOCK` in arch/x86/mm/fault.c). Every program has many minor faults, so this
event is enabled only while the job reads mapped files, and for a limited share of the time if there
are too many of them. Context switches are recorded from the start; after some time without faults
that waited their events are disabled until the next major one, so that a job that reads no mapped
files does not pay for them.

Not recorded: faults of a system call on the memory of the job, unless paranoid is at most 1
(`kernel` is 1 in the header); faults of MAP_POPULATE, MADV_POPULATE_READ and O_DIRECT into mapped
memory (the kernel counts them without an event); programs after an execve of a setuid program,
where the kernel ends the events; and CPUs that came online later.

The kernel writes into one ring buffer per CPU, from which a thread copies what is needed to one
file: see `ioprof/format/perf.py`.
"""

import contextlib
import fcntl
import mmap
import os
import select
import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import Any, Final

from ioprof import clock
from ioprof.errors import CaptureError
from ioprof.instrument.host import host
from ioprof.instrument.kernel_clocks import monotonic_shift_ns
from ioprof.instrument.perf_events import (
    SET_OUTPUT,
    Events,
    RefusedError,
    Ring,
    allowed_cpus,
    close_rings,
    events_kept_apart,
    map_rings,
    minor_attributes,
    open_event,
    open_events,
    read_rings,
    switch_attributes,
    wait_for_records,
)

RING_BYTES: Final = 512 << 10
"""Size of the ring of each CPU: the default of kernel.perf_event_mlock_kb for every user. Smaller
rings are used if that fails."""
PERIOD_S: Final = 0.5
"""Maximum time that records stay in the rings; a ring that is a quarter full is copied at once."""
IDLE_NS: Final = 5_000_000_000
"""Time without faults that wait for storage after which events of context switches and minor faults
are disabled."""

IDLE_PERIOD_MS, LOOK_MS, SECOND_LOOK_MS = 2000, 200, 300
"""The period after an idle time, within which it is looked that often for the first fault, of which
no duration is known; and how often once there were other records."""

_MOST_STARTS_PER_S: Final = 10
"""Programs that the job starts, from which on the optional events are closed: each process and
thread inherits one of each for every CPU, which takes longer than a small program itself."""
_FEWEST_STARTS: Final = 300
"""More than the workers of all ranks of a host, which are started once."""
_SETTLED_NS: Final = 2_000_000  # a record becomes readable up to this long after its time
_NEVER_NS: Final = (1 << 63) - 1
_JOIN_S: Final = 10.0  # maximum wait for the copying thread to end

OpenEvent = Callable[[bytes, int], tuple[int, int]]
"""`perf_events.open_event`, or a replacement in tests."""


def refusal() -> RefusedError | None:
    """Why page faults of a job cannot be recorded here, and what would allow it; None if they can.
    Tries all steps.
    """
    try:
        with contextlib.ExitStack() as resources:
            _open_all(resources, RING_BYTES)
    except RefusedError as error:
        return error
    return None


def _open_all(
    resources: contextlib.ExitStack,
    ring_bytes: int,
    idle_ns: int = IDLE_NS,
    open_optional: OpenEvent = open_event,
) -> tuple[Events, list[Ring], "_SwitchEvents"]:
    """Open the events of major faults, the rings, and the events of context switches; `resources`
    closes them.

    If the latter cannot be opened (file descriptors), the events of major faults record context
    switches all the time.
    """
    for always in (False, True):
        with contextlib.ExitStack() as opened:
            opened.enter_context(events_kept_apart())
            events = open_events(allowed_cpus(), ring_bytes, switches=always)
            opened.callback(events.close)
            rings = map_rings(events.descriptors, ring_bytes)
            opened.callback(close_rings, rings)
            switches = _SwitchEvents(events, idle_ns, open_optional, is_wanted=not always)
            opened.callback(switches.close)
            if always or switches.is_open:
                resources.push(opened.pop_all())
                break
    return events, rings, switches


class FaultRecorder:
    """Records from its construction until `stop` all programs that the calling thread starts by
    execve meanwhile.

    Raises `CaptureError`, with what would allow it, if the kernel does not permit it. Not recorded:
    the calling thread itself, and children that never call execve.
    """

    def __init__(
        self,
        spool: str | os.PathLike[str],
        ring_bytes: int = RING_BYTES,
        period_s: float = PERIOD_S,
        minor: bool | None = None,
        *,
        idle_ns: int = IDLE_NS,
        open_optional: OpenEvent = open_event,
        read: Callable[[list[Ring]], bytes] = read_rings,
    ) -> None:
        """`minor`: record minor faults that slept always, never, or (None) while the job reads
        mapped files and the cost is low.

        `open_optional` opens the events of context switches and minor faults, `read` reads and
        empties the rings.
        """
        from ioprof.format.perf import READAHEAD, SUFFIX

        self._period_ms = int(period_s * 1000)
        self._read_rings = read
        self._stopping = False
        self._facts: dict[str, Any] | None = None
        self._num_switches, self._cpu_s, self._began_ns = 0, 0.0, clock.monotonic_ns()
        self._shift_ns = monotonic_shift_ns()
        self._thread = threading.Thread(target=self._run, name="ioprof-faults", daemon=True)
        path = os.path.join(os.fspath(spool), f"{host()}-{os.getpid()}-{self._began_ns}{SUFFIX}")
        self._readahead_path = os.path.join(os.fspath(spool), READAHEAD)
        self._readahead_ns, self._readaheads = 0, 0
        self._starts_counted = self._began_ns, 0
        with contextlib.ExitStack() as resources:
            self._events, self._rings, self._switches = _open_all(
                resources, ring_bytes, idle_ns, open_optional
            )
            self._minor = _MinorFaultEvents(self._events, minor, idle_ns, open_optional)
            resources.callback(self._minor.close)
            self._writer = resources.enter_context(_Writer(path))
            self._writer.write(self._header() + self._minor.initial_state(self._shift_ns))
            try:
                self._wake = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
                resources.callback(os.close, self._wake)
                self._thread.start()
            except (OSError, RuntimeError) as error:  # RuntimeError: no more threads for this user
                raise CaptureError(
                    f"page faults of mapped files cannot be recorded: {error}; see: ulimit -a"
                ) from None
            self._resources = resources.pop_all()

    def stop(self) -> dict[str, Any]:
        """End the recording, also of processes that still run. Returns its facts; further calls
        return the same.

        `path`, `cpus`, `kernel` (faults within system calls are recorded), `faults` (counted by the
        kernel; None: unknown), `lost` (records; None: unknown), `switches` (context switches
        recorded: each cost the job time), `switches_watched_s` (how long they were recorded),
        `minor_watched_s` (how long minor faults were), `bytes` of the file, `copier_cpu_s`, `error`
        (why the file is incomplete, or None).
        """
        if self._facts is None:
            self._facts = self._stop()
        return self._facts

    def _stop(self) -> dict[str, Any]:
        self._events.enable(on=False)
        self._switches.stop(clock.monotonic_ns())
        self._stopping = True
        os.eventfd_write(self._wake, 1)
        self._thread.join(_JOIN_S)
        faults, lost = self._events.counts()
        if self._thread.is_alive():  # it waits for a disk: its resources must stay open
            self._writer.error = f"the disk did not complete a write within {_JOIN_S:.0f} s"
        else:
            self._writer.finish(self._header(closed=1, faults=faults, lost=lost))
            self._resources.close()
        return {
            "path": self._writer.path,
            "cpus": len(self._events.descriptors),
            "kernel": self._events.kernel,
            "faults": faults if faults >= 0 else None,
            "lost": lost if lost >= 0 else None,
            "switches": self._num_switches,
            "switches_watched_s": self._switches.enabled_ns / 1e9,
            "minor_watched_s": self._minor.enabled_ns / 1e9,
            "bytes": self._writer.bytes,
            "copier_cpu_s": self._cpu_s,
            "error": self._writer.error,
        }

    def _run(self) -> None:
        """The copying thread. If it fails, the job continues, and the report says from when on page
        faults are missing.
        """
        try:
            self._copy()
        except Exception as error:
            after_s = (clock.monotonic_ns() - self._began_ns) / 1e9
            self._writer.error = (
                f"the recorder failed after {after_s:.1f} s ({type(error).__name__}: {error})"
            )
            # records that are no longer read should not cost the job time
            with contextlib.suppress(OSError):
                self._events.enable(on=False)
                self._switches.stop(clock.monotonic_ns())
                self._minor.stop(clock.monotonic_ns())

    def _copy(self) -> None:
        """Copy all records whenever a ring is a quarter full or the period is over; after an idle
        time soon after there are any.
        """
        poller = select.poll()
        for descriptor in (*self._events.descriptors, self._wake):
            poller.register(descriptor, select.POLLIN)
        own_folder = os.fsencode(os.path.dirname(os.path.realpath(self._writer.path)))
        selector = RecordSelector(own_folder)
        period_ms = look_ms = self._period_ms
        while not self._stopping:
            for descriptor, happened in wait_for_records(poller, self._rings, period_ms, look_ms):
                if happened & (select.POLLHUP | select.POLLERR) and descriptor != self._wake:
                    # the thread that opened the event has ended; its children write
                    poller.unregister(descriptor)
            now_ns = clock.monotonic_ns()
            examined_ns, has_any = (
                selector.examined_ns,
                any(ring.has_records() for ring in self._rings),
            )
            self._copy_once(selector, now_ns - self._shift_ns - _SETTLED_NS)
            if self._starts_many(selector, now_ns):
                self._close_optional(now_ns)
            is_idle = self._minor.is_idle(now_ns) and self._switches.is_idle(now_ns)
            if self._sees_readahead() or selector.examined_ns != examined_ns or not is_idle:
                self._decide(now_ns, selector)
            period_ms = look_ms = self._period_ms
            if self._minor.is_idle(now_ns) and self._switches.is_idle(now_ns):
                period_ms, look_ms = IDLE_PERIOD_MS, SECOND_LOOK_MS if has_any else LOOK_MS
        self._minor.stop(clock.monotonic_ns())
        self._copy_once(selector, None)

    def _starts_many(self, selector: "RecordSelector", now_ns: int) -> bool:
        """Whether the job has started programs at a high rate since this was asked with enough of
        them.
        """
        began_ns, before = self._starts_counted
        number = selector.starts - before
        if number < _FEWEST_STARTS:
            return False
        self._starts_counted = now_ns, selector.starts
        return number * 1e9 >= _MOST_STARTS_PER_S * (now_ns - began_ns)

    def _close_optional(self, now_ns: int) -> None:
        """End the events of minor faults and context switches, in all processes: from now on faults
        have no duration.
        """
        from ioprof.format.perf import MINOR_STATE, SWITCH_STATE

        for kind, events in ((MINOR_STATE, self._minor), (SWITCH_STATE, self._switches)):
            if events.is_on:
                events.stop(now_ns)
                self._write_states(kind, False, now_ns)
            events.close()

    def _sees_readahead(self) -> bool:
        """Whether a process had pages of a mapping fetched since the last look: who touches them
        before they are there waits in minor faults, and no major one tells it.
        """
        try:
            changed_ns = os.stat(self._readahead_path).st_mtime_ns
        except OSError:
            return False
        is_new, self._readahead_ns = changed_ns != self._readahead_ns, changed_ns
        self._readaheads += is_new
        return is_new

    def _copy_once(self, selector: "RecordSelector", settled_ns: int | None) -> None:
        self._writer.write(selector.select(self._read_rings(self._rings), settled_ns))
        self._num_switches, self._cpu_s = selector.switches, time.thread_time()

    def _decide(self, now_ns: int, selector: "RecordSelector") -> None:
        """Enable or disable the events of minor faults and of context switches, and record when.

        The change does not reach all threads at the same time: what a thread did across it is
        unknown. Disabling therefore writes a record with the time before it and one with the time
        after it.
        """
        from ioprof.format.perf import MINOR_STATE, SWITCH_STATE

        waits = selector.waits + self._readaheads
        for kind, on in (
            (
                MINOR_STATE,
                self._minor.decide(now_ns, waits, selector.minors, selector.threads),
            ),
            (SWITCH_STATE, self._switches.decide(now_ns, waits)),
        ):
            if on is not None:
                self._write_states(kind, on, now_ns)

    def _write_states(self, kind: int, on: bool, now_ns: int) -> None:
        from ioprof.format.perf import state_record

        times_ns = (clock.monotonic_ns(),) if on else (now_ns, clock.monotonic_ns())
        states = [
            state_record(kind, on, os.getpid(), time_ns - self._shift_ns) for time_ns in times_ns
        ]
        self._writer.write(b"".join(states))

    def _header(self, *, closed: int = 0, faults: int = -1, lost: int = -1) -> bytes:
        import numpy as np

        from ioprof.format.perf import HEADER_BYTES, HEADER_DTYPE, MAGIC, VERSION

        anchor, size = clock.anchor(), self._rings[0].size
        fields = (
            *(MAGIC, VERSION, HEADER_BYTES, os.getpid(), closed, int(self._events.kernel)),
            *(
                mmap.PAGESIZE,
                len(self._rings),
                size,
                faults,
                lost,
                anchor.before_ns,
                anchor.wall_ns,
                anchor.after_ns,
            ),
            *(host().encode(), self._events.attributes, self._shift_ns),
        )
        return np.array([fields], HEADER_DTYPE).tobytes().ljust(HEADER_BYTES, b"\0")


# ---------------------------------------------------------------------------------- optional events


class _OptionalEvents:
    """Events that write into the rings of the events of major faults and are enabled only when
    needed: each costs the job time.
    """

    def __init__(
        self,
        majors: Events,
        attributes: bytes,
        idle_ns: int,
        open_one: OpenEvent,
        *,
        is_on: bool,
        is_wanted: bool = True,
    ) -> None:
        self.enabled_ns = 0
        self.is_on = is_on
        self.changed_ns = clock.monotonic_ns()
        """Time of the last change of `is_on`."""
        self._idle_ns = idle_ns
        self._last_wait_ns = self.changed_ns
        self._events = Events([], attributes, majors.kernel, counts_lost=False)
        for cpu, output in zip(majors.cpus, majors.descriptors, strict=True) if is_wanted else ():
            descriptor, _ = open_one(attributes, cpu)
            # do without: events of some CPUs only would be taken for those of all
            if descriptor < 0:
                self.close()
                break
            self._events.descriptors.append(descriptor)
            fcntl.ioctl(descriptor, SET_OUTPUT, output)

    @property
    def is_open(self) -> bool:
        return bool(self._events.descriptors)

    def is_idle(self, now_ns: int) -> bool:
        """They are disabled, and only a fault that waits for storage will enable them."""
        return not self.is_on and now_ns - self._last_wait_ns >= self._idle_ns

    def stop(self, now_ns: int) -> None:
        self._enable(now_ns, on=False)

    def close(self) -> None:
        self._events.close()
        self._events.descriptors.clear()

    def _enable(self, now_ns: int, *, on: bool) -> bool:
        """Enable or disable the events. Returns whether that is a change."""
        if on == self.is_on or not self.is_open:
            return False
        self._events.enable(on=on)
        self.enabled_ns += now_ns - self.changed_ns if self.is_on else 0
        self.is_on, self.changed_ns = on, now_ns
        return True


class _MinorFaultEvents(_OptionalEvents):
    """Events of minor faults, within a budget.

    A program that decodes images has 50,000 minor faults in a second of computing, of which hardly
    any waits. If their records cost more than the budget, the events are disabled until the budget
    allows some time again: what waits then is sampled.
    """

    SAMPLE_NS: Final = 700
    """What one record costs the job."""
    BUDGET: Final = 0.005
    """Share of the time of each thread that may be spent on them, averaged over `RESERVE_NS` and
    longer."""
    RESERVE_NS: Final = 50_000_000
    """Cost per thread that may be spent at once, as at the start."""
    LEAST_RESERVE_NS: Final = 5_000_000
    """Reserve per thread with which the events are enabled again."""
    TRIAL_NS: Final = 1_000_000_000
    """How long they are enabled at the start of a job that reads no mapped file."""

    def __init__(
        self, majors: Events, wanted: bool | None, idle_ns: int, open_one: OpenEvent
    ) -> None:
        attributes = minor_attributes(majors.kernel)
        super().__init__(
            majors, attributes, idle_ns, open_one, is_on=False, is_wanted=wanted is not False
        )
        self._wanted = wanted
        now_ns = clock.monotonic_ns()
        self._last_wait_ns = now_ns - idle_ns + self.TRIAL_NS
        self._reserve_ns = float(self.RESERVE_NS)
        # time, and number of faults that waited, and of minor ones, until then
        self._last_counts = (
            now_ns,
            0,
            0,
        )
        if wanted is not False:
            self._enable(now_ns, on=True)

    def initial_state(self, shift_ns: int) -> bytes:
        """The record that says whether they are enabled from the start."""
        from ioprof.format.perf import MINOR_STATE, state_record

        return state_record(MINOR_STATE, self.is_on, os.getpid(), self.changed_ns - shift_ns)

    def decide(self, now_ns: int, waits: int, minors: int, threads: int) -> bool | None:
        """Enable or disable the events, given the total numbers of faults that waited for storage
        and of minor faults, and the number of threads that had any. Returns the new state if it
        changed, else None.
        """
        before_ns, waits_before, minors_before = self._last_counts
        if self._wanted is not None or not self.is_open:
            return None
        self._last_counts = (now_ns, waits, minors)
        if waits > waits_before:
            self._last_wait_ns = now_ns
        threads = max(1, min(threads, len(self._events.descriptors)))
        earned = (now_ns - before_ns) * self.BUDGET * threads
        spent = (minors - minors_before) * self.SAMPLE_NS
        self._reserve_ns = min(self._reserve_ns + earned, self.RESERVE_NS * threads) - spent
        can_pay = self._reserve_ns > (0 if self.is_on else self.LEAST_RESERVE_NS * threads)
        on = can_pay and now_ns - self._last_wait_ns < self._idle_ns
        return on if self._enable(now_ns, on=on) else None


class _SwitchEvents(_OptionalEvents):
    """Events of context switches, enabled from the start.

    They give the duration of a fault; each costs the job some time. Faults while they are disabled
    have a time but no duration: at most those of the first period after an idle time.
    """

    def __init__(
        self, majors: Events, idle_ns: int, open_one: OpenEvent, *, is_wanted: bool
    ) -> None:
        super().__init__(
            majors,
            switch_attributes(majors.kernel),
            idle_ns,
            open_one,
            is_on=True,
            is_wanted=is_wanted,
        )
        self._waits = 0

    def decide(self, now_ns: int, waits: int) -> bool | None:
        """Enable or disable the events, given the total number of faults that waited for storage.
        Returns the new state if it changed, else None.
        """
        if waits > self._waits:
            self._waits, self._last_wait_ns = waits, now_ns
        on = now_ns - self._last_wait_ns < self._idle_ns
        return on if self._enable(now_ns, on=on) else None


# ----------------------------------------------------------------------------------------- the file


class RecordSelector:
    """Selects the records that are needed to explain faults, in the order of time, and holds
    undecided ones back.

    While there are no faults, records are only collected and are examined later all at once, which
    takes less CPU time from the job.
    """

    MOST_DEFERRED_BYTES: Final = 1 << 20
    LONGEST_DEFERRED_NS: Final = 20_000_000_000
    """Maximum time without faults whose records are lost if the recorder is killed. Examining them
    takes milliseconds of CPU."""
    LONGEST_HELD_NS: Final = 5_000_000_000
    """The same right after records with faults, some of which may be undecided."""
    LIBRARY_READAHEAD_NS: Final = 3_000_000_000
    """How long after a major fault minor faults of shared libraries may wait for readahead."""

    def __init__(self, own_folder: bytes = b"") -> None:
        """`own_folder`: the recording writes its files there. The first touch of each page of a new
        file is a major fault that waits for nothing.
        """
        from ioprof.format.perf import FileRanges

        self.switches = 0
        self.starts = 0
        """Programs that processes of the job have started (execve)."""
        self.majors = 0
        self.waits = 0
        """Faults that waited for storage, at most: minor faults may also follow another wait.

        Those of private memory and of the recording's own files do not count, and minor ones of
        shared libraries only for some time after a major fault: a forked process has many of them.
        """
        self.minors = 0
        self.threads = 0
        """Threads that had faults among the records examined last."""
        self._files = FileRanges(own_folder)
        self._last_major_ns = -self.LIBRARY_READAHEAD_NS
        self._held = b""
        self._deferred: list[bytes] = []
        self.examined_ns = 0
        """Up to when records were examined last."""
        self._had_faults = False

    def select(self, data: bytes, settled_ns: int | None) -> bytes:
        """Add `data` from the rings and return the records to write.

        Records after `settled_ns` are held back, since earlier ones of other CPUs may follow; None:
        there are no further records.
        """
        from ioprof.format.perf import may_have_faults

        if data:
            self._deferred.append(data)
        if settled_ns is not None and not may_have_faults(data):
            longest_ns = self.LONGEST_HELD_NS if self._had_faults else self.LONGEST_DEFERRED_NS
            is_due = settled_ns - self.examined_ns >= longest_ns
            if not is_due and sum(map(len, self._deferred)) < self.MOST_DEFERRED_BYTES:
                return b""
        return self._examine(settled_ns)

    def _examine(self, settled_ns: int | None) -> bytes:
        import numpy as np

        from ioprof.format.perf import (
            COMM,
            COMM_EXEC,
            MINOR,
            SAMPLE,
            SWITCH,
            read_records,
            select_records,
        )

        records, _ = read_records(b"".join([self._held, *self._deferred]))
        new_types = records.types[records.places >= len(self._held) // 8]
        self._deferred.clear()
        self.switches += int((new_types == SWITCH).sum())
        self.majors += int((new_types == SAMPLE).sum())
        self.minors += int((new_types == MINOR).sum())
        self.threads = len(np.unique(records.tids[records.types != SWITCH]))
        is_new = records.places >= len(self._held) // 8
        executes = (records.types == COMM) & (records.miscs & COMM_EXEC > 0)
        self.starts += int((executes & is_new).sum())
        self._had_faults = bool(np.isin(new_types, (SAMPLE, MINOR)).any())
        is_settled = records.times <= (_NEVER_NS if settled_ns is None else settled_ns)
        settled = records.take(is_settled)
        keep, undecided = select_records(settled)
        self._held = settled.take(undecided).join() + records.take(~is_settled).join()
        self.examined_ns = settled_ns or 0
        self._files.add(records)
        majors = settled.take(settled.types == SAMPLE)
        majors = majors.take(~self._files.is_own(majors.pids, majors.addresses()))
        self._last_major_ns = int(majors.times.max(initial=self._last_major_ns))
        slept = settled.take(keep[settled.types[keep] == MINOR])
        addresses, is_late = (
            slept.addresses(),
            slept.times > self._last_major_ns + self.LIBRARY_READAHEAD_NS,
        )
        self.waits += len(majors.times) + int(
            (self._files.is_data(addresses) | (self._files.is_library(addresses) & ~is_late)).sum()
        )
        return settled.take(keep).join()


class _Writer:
    """Writes the perf file. Its `with` block removes the file after an error. A full disk sets
    `error` and raises nothing.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        self.error: str | None = None
        self.bytes = 0
        try:
            self._descriptor = os.open(
                path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600
            )
        except OSError as error:
            raise CaptureError(
                f"{path}: {error.strerror}; set TMPDIR to a folder with room"
            ) from None

    def __enter__(self) -> "_Writer":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        os.close(self._descriptor)
        if error is not None:
            os.unlink(self.path)

    def write(self, data: bytes) -> None:
        while data and self.error is None:
            try:
                written = os.write(self._descriptor, data)
            except OSError as error:
                self.error = f"{error.strerror} after {self.bytes} bytes"
                return
            self.bytes += written
            data = data[written:]

    def finish(self, header: bytes) -> None:
        """Overwrite the header with the final one."""
        try:
            os.pwrite(self._descriptor, header, 0)
        except OSError as error:
            self.error = self.error or error.strerror
