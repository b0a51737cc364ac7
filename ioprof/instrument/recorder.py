"""Starts and stops the recording of this process into a capture file of its own.

A forked child records nothing until `start` is called there. A process that is killed leaves all
that it recorded, in a file that is not marked `closed`.
"""

import os
import struct
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, Final

from ioprof import clock
from ioprof.errors import CaptureError
from ioprof.format.schema import KINDS, RANK_SOURCES, ROLES
from ioprof.format.wire_format import (
    CHUNK_BYTES,
    FILE_HEADER,
    FORMAT_VERSION,
    HEADER_BYTES,
    MAGIC,
    offset_of,
)
from ioprof.instrument import ring, span
from ioprof.instrument.endings import call_at_end, call_quietly
from ioprof.instrument.host import host

try:
    from ioprof import _native
except ImportError:  # this interpreter cannot load it: see `ring`
    _native = None  # type: ignore[assignment]

_AFTER_ALL_OTHERS: Final = -100
"""Priority of the recording's end among multiprocessing's finalizers: queues and pools may still
record while they end."""

FEWEST_TRIALS: Final = 20
"""Trials that were not interrupted, below which a median says nothing."""

REHEARSAL: Final = "/proc/self/fd/"
"""The beginning of a path that names an empty file without a name, of which the caller holds a
descriptor."""

_WHO: Final = struct.Struct("<2iI"), offset_of(FILE_HEADER, "rank")
"""Rank, worker and role in the file's header, and where."""
_RANK_SOURCE: Final = struct.Struct("<I"), offset_of(FILE_HEADER, "rank_source")

_python_ring: ring.Ring | None = None
_path = ""
_before_stop: list[Callable[[], None]] = []


def start(spool: Path, *, rank: int = -1, role: str = "other", worker: int = -1) -> None:
    """Record this process into a new file in the folder `spool`, until `stop` or the process's end.

    `rank` and `worker` are -1 where there is none; `role` is one of `schema.ROLES`. Raises
    `CaptureError`.
    """
    if is_recording():
        raise CaptureError(
            "this process is being recorded already; end that with"
            " ioprof.instrument.recorder.stop()"
        )
    if role not in ROLES:
        raise CaptureError(f"role {role!r}: what a process can be is one of {', '.join(ROLES)}")
    name = f"{host()}-{os.getpid()}-{clock.monotonic_ns()}.ring"
    try:
        _open(os.path.join(os.path.abspath(spool), name), _header(rank, role, worker))
    except OSError as error:
        raise CaptureError(
            f"{spool}: no capture file can be made there ({error.strerror}); give a writable folder"
        ) from None
    call_at_end(stop, _forget_in_child, _AFTER_ALL_OTHERS)


def identify(rank: int, role: str, worker: int = -1, rank_source: str | None = None) -> None:
    """Write to the file's header which rank or worker this process is, which may be known only long
    after its recording began.

    `rank_source` is one of `schema.RANK_SOURCES`. Does nothing while nothing is recorded, or when
    the file is gone.
    """
    if not is_recording():
        return
    with suppress(OSError):
        descriptor = os.open(_path, os.O_WRONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        try:
            for (layout, offset), values in (
                (_WHO, (rank, worker, ROLES.index(role))),
                (_RANK_SOURCE, (RANK_SOURCES.index(rank_source),)),
            ):
                os.pwrite(descriptor, layout.pack(*values), offset)
        finally:
            os.close(descriptor)


def making(batch: int) -> None:
    """A thread of this process begins to fetch that batch, -1: none. The extension writes the same
    by `observers.makes`.
    """
    if _python_ring is not None:
        _python_ring.making(batch)


def before_stop(function: Callable[[], None]) -> None:
    """Call `function` when the recording of this process ends in an orderly way, while spans may
    still be emitted.
    """
    if function not in _before_stop:
        _before_stop.append(function)


def stop() -> None:
    """End the recording, if there is one, and mark its file closed."""
    global _python_ring
    while _before_stop:
        call_quietly(_before_stop.pop())
    if _python_ring is not None:
        span.redirect()
        _python_ring.close()
        _python_ring = None
    elif _native is not None:
        _native.stop()


def is_recording() -> bool:
    """Whether spans of this process go to a file."""
    return _python_ring is not None or (_native is not None and _native.is_recording())


def uses_native() -> bool:
    """Whether the extension records, or would; False means the writer in Python."""
    return _native is not None


def native_file() -> str | None:
    """The file of the extension; None: there is none."""
    return None if _native is None else _native.__file__


def lost() -> int:
    """Spans and strings of this recording that found no room; 0 while nothing is recorded."""
    if _python_ring is not None:
        return _python_ring.lost
    return 0 if _native is None else _native.lost()


def cost_per_span_ns(spans: int = 100, trials: int = 100, displaced_bytes: int = 0) -> float | None:
    """Nanoseconds that one span costs here and now: the median of short trials into a nameless
    file, less that of the bare loop.

    A trial takes some 20 µs, less than a time slice of the scheduler, so that most are not
    interrupted on a busy machine either; those that were do not count. None: too many were. With
    `displaced_bytes` the processor's caches hold other data when a trial begins, as after decoding
    an image.
    """
    from tempfile import TemporaryFile

    with TemporaryFile(buffering=0) as file, _rehearsal(f"{REHEARSAL}{file.fileno()}") as open_span:
        timers = partial(_time_spans, open_span, spans), partial(_time_bare_loop, spans)
        full, bare = _uninterrupted_medians(timers, trials, displaced_bytes)
    return (full - bare) / spans if full is not None and bare is not None and full > bare else None


def _uninterrupted_medians(
    timers: Sequence[Callable[[], int]], trials: int, displaced_bytes: int
) -> list[float | None]:
    """The median of each timer's results; they take turns, so that what slows the machine down
    affects all of them.
    """
    import resource
    import statistics

    # of bytes each assignment would make a copy first
    there, here = (
        bytearray(displaced_bytes),
        bytearray(displaced_bytes),
    )
    found: list[list[int]] = [[] for _ in timers]
    for _ in range(trials):
        for timer, results in zip(timers, found, strict=True):
            here[:] = there
            before = resource.getrusage(resource.RUSAGE_THREAD)
            took_ns = timer()
            after = resource.getrusage(resource.RUSAGE_THREAD)
            if (before.ru_nvcsw, before.ru_nivcsw) == (after.ru_nvcsw, after.ru_nivcsw):
                results.append(took_ns)
    return [
        statistics.median(results) if len(results) >= FEWEST_TRIALS else None for results in found
    ]


@contextmanager
def _rehearsal(path: str) -> Iterator[Callable[[str], Any]]:
    """A function that opens spans in a file of its own, in this thread only; other threads go on
    recording as before.
    """
    _native.start(path, _header(-1, "other", -1), KINDS, True)
    try:
        yield span.span
    finally:
        _native.stop(True)


def _time_spans(open_span: Callable[[str], Any], spans: int) -> int:
    start_ns = clock.monotonic_ns()
    for _ in range(spans):
        with open_span("decode"):
            pass
    return clock.monotonic_ns() - start_ns


def _time_bare_loop(spans: int) -> int:
    start_ns = clock.monotonic_ns()
    for _ in range(spans):
        pass
    return clock.monotonic_ns() - start_ns


def _open(path: str, header: bytes) -> None:
    global _python_ring, _path
    _path = path
    if _native is not None:
        _native.start(path, header, KINDS)
        return
    _python_ring = ring.Ring(path, header, KINDS, clock.monotonic_ns)
    span.redirect(_python_ring.span, _python_ring.emit, _python_ring.intern)


def _header(rank: int, role: str, worker: int) -> bytes:
    anchor = clock.anchor()
    return ring.HEADER.pack(
        MAGIC,
        FORMAT_VERSION,
        ring.RECORD.size,
        CHUNK_BYTES,
        HEADER_BYTES,
        0,
        0,
        os.getpid(),
        os.getppid(),
        rank,
        worker,
        ROLES.index(role),
        0,
        anchor.before_ns,
        anchor.wall_ns,
        anchor.after_ns,
        host().encode()[:64],
        0,
        0,
        0,
        0,
        0,
        0,
        0,
        0,
        0,
        0,
    )


def _forget_in_child() -> None:
    """The Python writer's part of a fork; the extension does its own."""
    global _python_ring
    _before_stop.clear()
    if _python_ring is not None:
        span.redirect()
        _python_ring.forget()
        _python_ring = None
