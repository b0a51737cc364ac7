"""Records the major page faults of a whole job, by perf events of the kernel, in the process that starts the job.

A read through a mapping (LMDB, np.memmap, safetensors, DALI) is no call that could be caught: the kernel alone knows of it. One
software event per CPU, inherited by all that the job starts, yields each major fault's thread, address and end, and who mapped
which file where; another one each thread's switches, from which the sleep of a fault follows. That needs no root where
kernel.perf_event_paranoid is at most 2, and no library in the job: static programs and such with an environment of their own are
seen as well.

A third event per CPU tells of minor faults, since a page that readahead is still fetching costs one of those. Every program has
them in masses, so it is on only while the job has major faults, and while it costs little. Switches are watched from the start, and
after a while without major faults no more until there are some: what they cost, a job that reads no mapped file need not pay.

Not seen: faults that a system call takes on the job's memory, unless paranoid is at most 1 (`kernel` is 1 in the header); those of
MAP_POPULATE, MADV_POPULATE_READ and O_DIRECT into mapped memory (the kernel counts them and raises no event); what runs after a
program with the setuid bit, which the kernel watches no longer; and CPUs that came online later.

The kernel writes into one ring per CPU; a thread here copies what explains a fault to one file. `ioprof/perf.py` tells its bytes,
`ioprof/spool/faults.py` reads it.
"""

import contextlib
import fcntl
import mmap
import os
import select
import threading
import time
from types import TracebackType
from typing import Any, Final

from ioprof import clock
from ioprof.errors import CaptureError
from ioprof.record.host import host
from ioprof.record.kernel_clocks import monotonic_shift_ns
from ioprof.record.perf_events import (
    SET_OUTPUT,
    Events,
    RefusedError,
    Ring,
    allowed_cpus,
    close_rings,
    drain,
    map_rings,
    minor_attributes,
    open_event,
    open_events,
    switch_attributes,
)

RING_BYTES: Final = 512 << 10
"""Of each CPU: what kernel.perf_event_mlock_kb allows every user by default. Less is taken where that is not to be had."""
PERIOD_S: Final = 0.5
"""Longest time that records wait in the rings; a ring that is a quarter full is copied at once."""

_SETTLED_NS: Final = 2_000_000  # a record bears a time somewhat before it can be read
_NEVER_NS: Final = (1 << 63) - 1
_DECISION_NS: Final = 100_000_000  # between two decisions on minor faults
_PATIENCE_S: Final = 10.0  # for the copying thread to end


def refusal() -> RefusedError | None:
    """Why a job's page faults cannot be recorded here, and what would allow it; None where they can. Found by trying all of it."""
    try:
        with contextlib.ExitStack() as tried:
            _open_all(tried, RING_BYTES)
    except RefusedError as error:
        return error
    return None


def _open_all(made: contextlib.ExitStack, ring_bytes: int, *, always: bool = False) -> tuple[Events, list[Ring], "_Switches"]:
    """What tells of major faults, the rings, and what tells of switches; `made` closes all.

    Where those cannot have descriptors of their own, the former tell of them, too, `always`.
    """
    with contextlib.ExitStack() as tried:
        events = open_events(allowed_cpus(), ring_bytes, switches=always)
        tried.callback(events.close)
        rings = map_rings(events.descriptors, ring_bytes)
        tried.callback(close_rings, rings)
        switches = _Switches(events, is_wanted=not always)
        tried.callback(switches.close)
        if always or switches.is_there:
            made.push(tried.pop_all())
            return events, rings, switches
    return _open_all(made, ring_bytes, always=True)


class FaultRecorder:
    """Recording from its making to `stop`, for all programs that the calling thread starts meanwhile by execve.

    Raises `CaptureError`, with what would allow it, where the kernel does not permit it. The calling thread itself is not
    recorded, nor is a child that never calls execve.
    """

    def __init__(
        self,
        spool: str | os.PathLike[str],
        ring_bytes: int = RING_BYTES,
        period_s: float = PERIOD_S,
        minor: bool | None = None,
    ) -> None:
        """`minor`: tell of minor faults that slept: always, never, or (None) while there are major ones and the cost allows it."""
        self._period_ms = int(period_s * 1000)
        self._stopping = False
        self._facts: dict[str, Any] | None = None
        self._switches, self._cpu_s, self._began_ns = 0, 0.0, clock.monotonic_ns()
        self._shift_ns = monotonic_shift_ns()
        self._thread = threading.Thread(target=self._run, name="ioprof-faults", daemon=True)
        with contextlib.ExitStack() as made:
            self._events, self._rings, self._watched = _open_all(made, ring_bytes)
            self._minor = _MinorFaults(self._events, minor)
            made.callback(self._minor.close)
            self._writer = made.enter_context(_Writer(self._path(spool)))
            self._writer.write(self._header())
            self._begin(made)
            self._made = made.pop_all()

    def _path(self, spool: str | os.PathLike[str]) -> str:
        from ioprof.perf import SUFFIX

        return os.path.join(os.fspath(spool), f"{host()}-{os.getpid()}-{self._began_ns}{SUFFIX}")

    def _begin(self, made: contextlib.ExitStack) -> None:
        try:
            self._wake = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
            made.callback(os.close, self._wake)
            self._thread.start()
        except (OSError, RuntimeError) as error:  # RuntimeError: this user may have no more threads
            raise CaptureError(f"page faults of mapped files cannot be recorded: {error}; see: ulimit -a") from None

    def stop(self) -> dict[str, Any]:
        """End the recording, also of what still runs; the facts of it, the same if it is asked again.

        `path`, `cpus`, `kernel` (faults in system calls are seen), `faults` (as the kernel counted them; None: not known),
        `lost` (records; None: not known), `switches` (how often a thread left or took a core while that was watched: each cost the
        job), `switches_watched_s` (how long it was), `minor_watched_s` (how long minor faults were), `bytes` of the file,
        `copier_cpu_s`, `error` (why the file is not whole; None).
        """
        if self._facts is None:
            self._facts = self._stop()
        return self._facts

    def _stop(self) -> dict[str, Any]:
        self._events.switch(on=False)
        self._watched.stop(clock.monotonic_ns())
        self._stopping = True
        os.eventfd_write(self._wake, 1)
        self._thread.join(_PATIENCE_S)
        faults, lost = self._events.counts()
        if self._thread.is_alive():  # it waits for a disk: what it uses must stay
            self._writer.error = "the disk took longer than the recording could wait"
        else:
            self._writer.finish(self._header(closed=1, faults=faults, lost=lost))
            self._made.close()
        return {
            "path": self._writer.path,
            "cpus": len(self._events.descriptors),
            "kernel": self._events.kernel,
            "faults": faults if faults >= 0 else None,
            "lost": lost if lost >= 0 else None,
            "switches": self._switches,
            "switches_watched_s": self._watched.watched_ns / 1e9,
            "minor_watched_s": self._minor.watched_ns / 1e9,
            "bytes": self._writer.bytes,
            "copier_cpu_s": self._cpu_s,
            "error": self._writer.error,
        }

    def _run(self) -> None:
        """The copying thread. Whatever ends it early, the job goes on, and the report says since when faults are missing."""
        try:
            self._copy()
        except Exception as error:
            after_s = (clock.monotonic_ns() - self._began_ns) / 1e9
            self._writer.error = f"the recorder failed after {after_s:.1f} s ({type(error).__name__}: {error})"
            with contextlib.suppress(OSError):  # what nobody takes out of the rings should cost the job nothing
                self._events.switch(on=False)
                self._watched.stop(clock.monotonic_ns())
                self._minor.stop(clock.monotonic_ns())

    def _copy(self) -> None:
        """Wait until a ring is a quarter full or the period is over, and take all that is there."""
        poller = select.poll()
        for descriptor in (*self._events.descriptors, self._wake):
            poller.register(descriptor, select.POLLIN)
        thinner = _Thinner()
        while not self._stopping:
            for descriptor, happened in poller.poll(self._period_ms):
                if happened & (select.POLLHUP | select.POLLERR) and descriptor != self._wake:
                    poller.unregister(descriptor)  # the thread that opened it is gone; its children write on
            now_ns = clock.monotonic_ns()
            self._pass_on(thinner, now_ns - self._shift_ns - _SETTLED_NS)
            self._minor.decide(now_ns, thinner.majors, thinner.minors)
            self._watch_switches(now_ns, thinner.majors)
        self._minor.stop(clock.monotonic_ns())
        self._pass_on(thinner, None)

    def _pass_on(self, thinner: "_Thinner", settled_ns: int | None) -> None:
        self._writer.write(thinner.take(drain(self._rings), settled_ns))
        self._switches, self._cpu_s = thinner.switches, time.thread_time()

    def _watch_switches(self, now_ns: int, majors: int) -> None:
        """On or off, which does not happen to all threads at once: what one of them did across either end is not known."""
        from ioprof.perf import mark

        on = self._watched.decide(now_ns, majors)
        if on is None:
            return
        ends_ns = (clock.monotonic_ns(),) if on else (now_ns, clock.monotonic_ns())
        self._writer.write(b"".join([mark(on, os.getpid(), end_ns - self._shift_ns) for end_ns in ends_ns]))

    def _header(self, *, closed: int = 0, faults: int = -1, lost: int = -1) -> bytes:
        import numpy as np

        from ioprof.perf import HEADER_BYTES, HEADER_DTYPE, MAGIC, VERSION

        anchor, size = clock.anchor(), self._rings[0].size
        here = (mmap.PAGESIZE, len(self._rings), size, faults, lost, anchor.before_ns, anchor.wall_ns, anchor.after_ns)
        said = (host().encode(), self._events.attributes, self._shift_ns)
        fields = (MAGIC, VERSION, HEADER_BYTES, os.getpid(), closed, int(self._events.kernel), *here, *said)
        return np.array([fields], HEADER_DTYPE).tobytes().ljust(HEADER_BYTES, b"\0")


# ------------------------------------------------------------------------------------------------ what is watched at times


class _Watched:
    """Events that write into the rings of the others, and are on only while they are of use: each costs the job something."""

    CALM_NS: Final = 5_000_000_000
    """Without major faults for so long, they are off until there are some."""

    def __init__(self, majors: Events, attributes: bytes, *, is_on: bool, is_wanted: bool = True) -> None:
        self.watched_ns = 0
        self._is_on, self._since_ns = is_on, clock.monotonic_ns()
        self._events = Events([], attributes, majors.kernel, counts_lost=False)
        if is_wanted:
            self._open(majors, attributes)

    @property
    def is_there(self) -> bool:
        return bool(self._events.descriptors)

    def _open(self, majors: Events, attributes: bytes) -> None:
        """Where one of them cannot be had, none is: half of the waits would be taken for all."""
        for cpu, output in zip(majors.cpus, majors.descriptors, strict=True):
            descriptor, _ = open_event(attributes, cpu)
            if descriptor < 0:
                self.close()
                return
            self._events.descriptors.append(descriptor)
            fcntl.ioctl(descriptor, SET_OUTPUT, output)

    def stop(self, now_ns: int) -> None:
        self._switch(now_ns, on=False)

    def close(self) -> None:
        self._events.close()
        self._events.descriptors.clear()

    def _switch(self, now_ns: int, *, on: bool) -> bool:
        """Whether that is a change."""
        if on == self._is_on or not self.is_there:
            return False
        self._events.switch(on=on)
        self.watched_ns += now_ns - self._since_ns if self._is_on else 0
        self._is_on, self._since_ns = on, now_ns
        return True


class _MinorFaults(_Watched):
    """Of minor faults.

    A sample costs the job about 0.7 µs, and a program that decodes images has 50,000 minor faults in a second of computing.
    """

    MAJORS_PER_S: Final = 10
    """So many tell that the job reads mapped files."""
    MINORS_PER_S: Final = 20_000
    """On each CPU on average: more cost above 1 % of the job."""
    REST_NS: Final = 10_000_000_000
    """How long the events are off after that."""

    def __init__(self, majors: Events, wanted: bool | None) -> None:
        super().__init__(majors, minor_attributes(majors.kernel), is_on=False, is_wanted=wanted is not False)
        self._wanted = wanted
        self._rests_until_ns, self._last_major_ns = 0, 0
        self._seen = (0, 0, 0)  # when, and how many major and minor faults by then
        if wanted:
            self._switch(clock.monotonic_ns(), on=True)

    def decide(self, now_ns: int, majors: int, minors: int) -> None:
        """Turn them on or off, by how many faults of each kind there have been up to now."""
        before_ns, majors_before, minors_before = self._seen
        if self._wanted is not None or not self.is_there or now_ns - before_ns < _DECISION_NS:
            return
        self._seen = (now_ns, majors, minors)
        passed_s = (now_ns - before_ns) / 1e9
        if majors - majors_before > self.MAJORS_PER_S * min(passed_s, 1):
            self._last_major_ns = now_ns
        if minors - minors_before > self.MINORS_PER_S * passed_s * len(self._events.descriptors):
            self._rests_until_ns = now_ns + self.REST_NS
        is_reading = self._last_major_ns > 0 and now_ns - self._last_major_ns < self.CALM_NS
        self._switch(now_ns, on=is_reading and now_ns >= self._rests_until_ns)


class _Switches(_Watched):
    """Of threads that leave a core or take one, on from the start.

    They say how long a fault took, and cost the job something each time. Faults that come while they are off have a time, and no
    length that is known: at most those of the first period after a calm.
    """

    def __init__(self, majors: Events, *, is_wanted: bool) -> None:
        super().__init__(majors, switch_attributes(majors.kernel), is_on=True, is_wanted=is_wanted)
        self._majors, self._last_major_ns = 0, self._since_ns

    def decide(self, now_ns: int, majors: int) -> bool | None:
        """Turn them on or off, by how many major faults there have been up to now; which of both it was, if one."""
        if majors > self._majors:
            self._majors, self._last_major_ns = majors, now_ns
        on = now_ns - self._last_major_ns < self.CALM_NS
        return on if self._switch(now_ns, on=on) else None


# ------------------------------------------------------------------------------------------------ the file


class _Thinner:
    """Lets pass what explains a fault, in the order of time; holds back what may still come to.

    Where no fault has happened there is nothing to explain, and what has come meanwhile is looked at later, all at once: that takes
    less of the core that the job may need.
    """

    MOST_DEFERRED_BYTES: Final = 1 << 20
    LONGEST_DEFERRED_NS: Final = 5_000_000_000
    """What a recorder that is killed has not written, of a time without a fault."""

    def __init__(self) -> None:
        self.switches = 0
        self.majors = 0
        self.minors = 0
        self._held = b""
        self._deferred: list[bytes] = []
        self._looked_ns = 0

    def take(self, data: bytes, settled_ns: int | None) -> bytes:
        """What is to be written, with `data` from the rings; records after `settled_ns` wait for other CPUs' (None: all is in)."""
        from ioprof.perf import may_have_faults

        self._deferred.append(data)
        if settled_ns is not None and not may_have_faults(data):
            is_late = settled_ns - self._looked_ns >= self.LONGEST_DEFERRED_NS
            if not is_late and sum(map(len, self._deferred)) < self.MOST_DEFERRED_BYTES:
                return b""
        return self._look(settled_ns)

    def _look(self, settled_ns: int | None) -> bytes:
        from ioprof.perf import MINOR, SAMPLE, SWITCH, read_records, thin

        records, _ = read_records(b"".join([self._held, *self._deferred]))
        types = records.types[records.places >= len(self._held) // 8]  # of those that are new
        self._deferred.clear()
        self.switches += int((types == SWITCH).sum())
        self.majors += int((types == SAMPLE).sum())
        self.minors += int((types == MINOR).sum())
        is_settled = records.times <= (_NEVER_NS if settled_ns is None else settled_ns)
        settled = records.take(is_settled)
        keep, later = thin(settled)
        self._held = settled.take(later).join() + records.take(~is_settled).join()
        self._looked_ns = settled_ns or 0
        return settled.take(keep).join()


class _Writer:
    """The perf file. Its `with` block leaves none if it fails. A disk that is full ends the writing, not the job, and is told."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.error: str | None = None
        self.bytes = 0
        try:
            self._descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise CaptureError(f"{path}: {error.strerror}; set TMPDIR to a folder with room") from None

    def __enter__(self) -> "_Writer":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
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
        """Write the header again, as it is in the end."""
        try:
            os.pwrite(self._descriptor, header, 0)
        except OSError as error:
            self.error = self.error or error.strerror
