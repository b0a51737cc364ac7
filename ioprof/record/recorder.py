"""Starts and stops the recording of this process into a capture file of its own.

A forked child records nothing until `start` is called there. A process that is killed leaves all that it recorded, and a file
that does not say `closed`.
"""

import os
import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final

from ioprof import clock
from ioprof.errors import CaptureError
from ioprof.record import ring, span
from ioprof.record.endings import call_at_end
from ioprof.record.host import host
from ioprof.schema import CHUNK_BYTES, FORMAT_VERSION, HEADER_BYTES, KINDS, MAGIC, RANK_SOURCES, ROLES

try:
    from ioprof import _native
except ImportError:  # built without a C compiler
    _native = None  # type: ignore[assignment]

_AFTER_ALL_OTHERS: Final = -100
"""Priority of the recording's end among multiprocessing's finalizers: queues and pools may still record while they end."""

_WHO: Final = struct.Struct("<2iI"), 48
"""Rank, worker and role in the file's header, and where."""
_RANK_SOURCE: Final = struct.Struct("<I"), 156

_twin: ring.Ring | None = None
_path = ""
_last_words: list[Callable[[], None]] = []


def start(spool: Path, *, rank: int = -1, role: str = "other", worker: int = -1, native: bool | None = None) -> None:
    """Record this process into a new file in the folder `spool`, until `stop` or the process's end.

    `rank` and `worker` are -1 where there is none; `role` is one of `schema.ROLES`. `native` False takes the Python twin, True
    insists on the extension, None takes the extension where there is one. Raises `CaptureError`.
    """
    if is_recording():
        raise CaptureError("this process is being recorded already; end that with ioprof.record.recorder.stop()")
    if role not in ROLES:
        raise CaptureError(f"role {role!r}: what a process can be is one of {', '.join(ROLES)}")
    if native and _native is None:
        raise CaptureError("the capture extension is not built here; install a C compiler and reinstall, or leave native=None")
    name = f"{host()}-{os.getpid()}-{clock.monotonic_ns()}.ring"
    try:
        _open(os.path.join(os.path.abspath(spool), name), _header(rank, role, worker), _native is not None and native is not False)
    except OSError as error:
        raise CaptureError(f"{spool}: no capture file can be made there ({error.strerror}); give a writable folder") from None
    call_at_end(stop, _forget_in_child, _AFTER_ALL_OTHERS)


def identify(rank: int, role: str, worker: int = -1, rank_source: str | None = None) -> None:
    """Say in the file's header what this process turned out to be: it may learn that long after its recording began.

    `rank_source` is one of `schema.RANK_SOURCES`. Does nothing while nothing is recorded, or when the file is gone.
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


def before_stop(function: Callable[[], None]) -> None:
    """Call `function` when the recording of this process ends in an orderly way, while spans may still be emitted."""
    if function not in _last_words:
        _last_words.append(function)


def stop() -> None:
    """End the recording, if there is one; its file then says that the process did so itself."""
    global _twin
    while _last_words:
        _last_words.pop()()
    if _twin is not None:
        span.redirect()
        _twin.close()
        _twin = None
    elif _native is not None:
        _native.stop()


def is_recording() -> bool:
    """Whether spans of this process go to a file."""
    return _twin is not None or (_native is not None and _native.is_recording())


def uses_native() -> bool:
    """Whether the extension records, or would; False means the Python twin."""
    return _twin is None and _native is not None


def lost() -> int:
    """Spans and strings of this recording that found no room; 0 while nothing is recorded."""
    if _twin is not None:
        return _twin.lost
    return 0 if _native is None else _native.lost()


def cost_per_span_ns(spans: int = 2000, repeats: int = 5) -> float:
    """Nanoseconds that one span costs here and now: the median of `repeats` runs of `spans` spans into a throw-away file.

    High where the machine is busy, or where the twin records. The loop's own time is subtracted.
    """
    import statistics
    import tempfile

    with tempfile.TemporaryDirectory(prefix="ioprof-") as folder, _rehearsal(os.path.join(folder, "rehearsal.ring")) as open_span:
        bare = min(_time_bare_loop(spans) for _ in range(repeats))
        full = statistics.median(_time_spans(open_span, spans) for _ in range(repeats))
    return (full - bare) / spans


@contextmanager
def _rehearsal(path: str) -> Iterator[Callable[[str], Any]]:
    """What opens a span in a file of its own, in this thread only; others go on recording as before."""
    header = _header(-1, "other", -1)
    if not uses_native():
        yield ring.Ring(path, header, KINDS, clock.monotonic_ns).span
        return
    _native.start(path, header, KINDS, True)
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


def _open(path: str, header: bytes, native: bool) -> None:
    global _twin, _path
    _path = path
    if native:
        _native.start(path, header, KINDS)
        return
    _twin = ring.Ring(path, header, KINDS, clock.monotonic_ns)
    span.redirect(_twin.span, _twin.emit, _twin.intern)


def _header(rank: int, role: str, worker: int) -> bytes:
    anchor = clock.anchor()
    return ring.HEADER.pack(
        MAGIC, FORMAT_VERSION, ring.RECORD.size, CHUNK_BYTES, HEADER_BYTES, 0, 0, os.getpid(), os.getppid(), rank, worker,
        ROLES.index(role), 0, anchor.before_ns, anchor.wall_ns, anchor.after_ns, host().encode()[:64], 0, 0, 0, 0, 0, 0, 0, 0, 0,
    )  # fmt: skip


def _forget_in_child() -> None:
    """The twin's part of a fork; the extension does its own."""
    global _twin
    _last_words.clear()
    if _twin is not None:
        span.redirect()
        _twin.forget()
        _twin = None
