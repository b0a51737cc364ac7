"""The writer of spans in Python, only for jobs whose interpreter cannot load the extension: a
Python older than its stable ABI, one with another libc (musl), or a frozen program. The same calls
write the same bytes, ten times slower.

`native/FORMAT.md` explains the bytes, `wire_format` describes them. A full chunk stays where it is,
and the thread continues in another one. The extension flushes it instead, which saves page faults;
they are negligible compared to what a span costs here.
"""

import mmap
import operator
import os
import struct
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final

from ioprof.format.schema import SOURCES
from ioprof.format.wire_format import (
    CHUNK_BYTES,
    CHUNK_HEADER,
    CHUNK_HEADER_BYTES,
    FILE_HEADER,
    HEADER_BYTES,
    SLOTS,
    STRING_BYTES,
    WINDOW_CHUNKS,
    offset_of,
    struct_format,
)
from ioprof.format.wire_format import RECORD as RECORD_FIELDS

HEADER: Final = struct.Struct(struct_format(FILE_HEADER))
"""The start of the file."""
RECORD: Final = struct.Struct(struct_format(RECORD_FIELDS))
"""One slot."""
WINDOW_BYTES: Final = WINDOW_CHUNKS * CHUNK_BYTES
WINDOWS: Final = 65536
ABANDONED: Final = 64
RETRY_EVERY: Final = 1024
KNOWN_STRINGS: Final = 1 << 17
"""Known strings are forgotten when there are this many; one that comes again is written again, and
the reader merges the two."""

_ELLIPSIS: Final = "…".encode()
# Indices of words of 8 bytes
_CHUNKS_WORD: Final = offset_of(FILE_HEADER, "chunks") // 8
_LOST_WORD: Final = offset_of(FILE_HEADER, "lost") // 8
_STATE_WORD: Final = offset_of(CHUNK_HEADER, "state") // 8
_TID_WORD: Final = offset_of(CHUNK_HEADER, "tid") // 8  # the other half of the word, `flags`, is 0

_CLOSED_OFFSET: Final = offset_of(FILE_HEADER, "closed")
_MAKING_OFFSET: Final = offset_of(FILE_HEADER, "making")

_LIMITS: Final = {
    "step": 1 << 31,
    "batch": 1 << 63,
    "bytes": 1 << 63,
    "file": 1 << 31,
    "offset": 1 << 63,
    "stream": 1 << 15,
}
"""A field must be less than this, and not less than its negative."""


class Ring:
    """A capture file that this process writes, at an absolute path that does not exist yet. Raises
    `OSError`.

    `kinds` are the kinds of spans, of which "user", or else the last, is that of users' own spans.
    `clock` gives nanoseconds of CLOCK_MONOTONIC.
    """

    def __init__(
        self, path: str, header: bytes, kinds: tuple[str, ...], clock: Callable[[], int]
    ) -> None:
        self.clock = clock
        self.is_open = False
        self._path = path
        self._kinds = {kind: number for number, kind in enumerate(kinds, 1)}
        self._user_kind = self._kinds.get("user", len(kinds))
        self._strings: dict[str, int] = {}
        self._num_strings = 0
        self._full = False
        self._extending = threading.Lock()
        self._local = threading.local()
        self._abandoned: list[_Chunk] = []
        self._window: tuple[int, memoryview] = (-1, memoryview(b""))
        self._create(header)

    @property
    def lost(self) -> int:
        """Spans and strings that could not be stored."""
        return self._counters[_LOST_WORD]

    def close(self) -> None:
        """End the recording: the file says that the process did so itself."""
        struct.pack_into("<I", self._header, _CLOSED_OFFSET, 1)
        self.is_open = False

    def making(self, batch: int) -> None:
        """A thread fetches the batch of that number, -1: none; a reader needs it if the process is
        killed.
        """
        struct.pack_into("<Q", self._header, _MAKING_OFFSET, max(0, batch + 1))

    def forget(self) -> None:
        """End the recording without a store to the file: what a forked child does with its
        parent's.
        """
        self.is_open = False

    def span(
        self,
        kind: str,
        name: str | None = None,
        *,
        step: int = -1,
        batch: int = -1,
        bytes: int = -1,
        file: int = -1,
        offset: int = -1,
        stream: int = -1,
        source: int = 0,
    ) -> "Span":
        """A context manager that records how long its block took."""
        number, label = self._label(kind, name)
        return Span(
            self,
            number,
            label,
            {
                "step": step,
                "batch": batch,
                "bytes": bytes,
                "file": file,
                "offset": offset,
                "stream": stream,
                "source": source,
            },
        )

    def emit(
        self,
        kind: str,
        start_ns: int,
        end_ns: int,
        name: str | None = None,
        *,
        step: int = -1,
        batch: int = -1,
        bytes: int = -1,
        file: int = -1,
        offset: int = -1,
        stream: int = -1,
        source: int = 0,
    ) -> None:
        """Record a span that was timed elsewhere."""
        check_times(start_ns, end_ns)
        span = self.span(
            kind,
            name,
            step=step,
            batch=batch,
            bytes=bytes,
            file=file,
            offset=offset,
            stream=stream,
            source=source,
        )
        self.write(span.record(start_ns, end_ns))

    def intern(self, path: "str | bytes | os.PathLike[Any]") -> int:
        """The number of a path in this file; -1 where it could not be stored."""
        return self.string(os.fsdecode(path))

    def write(self, record: bytes) -> None:
        """Put a record into the calling thread's chunk, or count it as lost; ignored once the ring
        is closed.
        """
        if not self._enter():
            return
        try:
            chunk = self._room(1)
            if chunk is not None:
                chunk.append(record, 1)
        finally:
            self._local.busy = False

    def string(self, text: str) -> int:
        """The number of a string in this file, written at its first use; -1 where it cannot be
        stored.
        """
        known = self._strings.get(text)
        return self._write_string(text) if known is None else known

    def _write_string(self, text: str) -> int:
        if not self._enter():
            return -1
        try:
            return self._append_string(text)
        finally:
            self._local.busy = False

    def _enter(self) -> bool:
        """Whether this thread may write now: not if this is a signal handler or finalizer that
        interrupted a write of its thread.

        The chunk is then between two states, and this thread may hold the lock: the record is
        counted as lost.
        """
        if getattr(self._local, "busy", False):
            self._counters[_LOST_WORD] += 1
            return False
        self._local.busy = True
        return True

    def _append_string(self, text: str) -> int:
        data = _cut(_encoded(text))
        slots = 1 + -(-len(data) // RECORD.size)
        chunk = self._room(slots)
        if chunk is None:
            return -1
        number, self._num_strings = self._num_strings, self._num_strings + 1
        chunk.append(RECORD.pack(0, 0, len(data), -1, -1, -1, number, -1, -1, 0, 0) + data, slots)
        if len(self._strings) >= KNOWN_STRINGS:
            self._strings.clear()
        self._strings[text] = number
        return number

    def _label(self, kind: str, name: str | None) -> tuple[int, str | None]:
        if not isinstance(kind, str):
            raise TypeError(f"a span's kind is a str, not {type(kind).__name__}")
        number = self._kinds.get(kind)
        if number is not None:
            return number, name
        return self._user_kind, kind if name is None else f"{kind} {name}"

    def _room(self, slots: int) -> "_Chunk | None":
        # and perhaps in a forked child, whose parent's other threads held the lock
        if not self.is_open:
            return None
        place: _Place | None = getattr(self._local, "place", None)
        if place is not None and place.chunk.count + slots <= SLOTS:
            return place.chunk
        chunk = self._take_chunk(slots)
        if chunk is not None and place is None:
            self._local.place = _Place(self._abandoned, chunk)
        elif chunk is not None and place is not None:
            place.chunk = chunk
        return chunk

    def _take_chunk(self, slots: int) -> "_Chunk | None":
        with self._extending:
            chunk = self._take_abandoned(slots) or self._claim()
            if chunk is None:
                self._counters[_LOST_WORD] += 1
            return chunk

    def _take_abandoned(self, slots: int) -> "_Chunk | None":
        while self._abandoned:
            chunk = self._abandoned.pop(0)
            if chunk.count + 1 + slots <= SLOTS:
                chunk.append(
                    RECORD.pack(0, 0, -1, -1, threading.get_native_id(), -1, -1, -1, -1, 0, 0), 1
                )
                return chunk
        return None

    def _claim(self) -> "_Chunk | None":
        if self._full and self.lost % RETRY_EVERY:
            return None
        index = self._counters[_CHUNKS_WORD]
        self._counters[_CHUNKS_WORD] = index + 1
        number, place = divmod(index, WINDOW_CHUNKS)
        try:
            window = self._map_window(number)
        except (OSError, ValueError):  # ValueError: mmap of a file that was truncated
            self._full = True
            return None
        self._full = False
        return _Chunk(window[place * CHUNK_BYTES : (place + 1) * CHUNK_BYTES])

    def _map_window(self, number: int) -> memoryview:
        """The window's bytes; it stays mapped for as long as a chunk of it is in use."""
        if self._window[0] != number:
            if number >= WINDOWS:
                raise OSError(f"{self._path}: a capture file has no more than {WINDOWS} windows")
            self._window = number, self._map_reopened(HEADER_BYTES + number * WINDOW_BYTES)
        return self._window[1]

    def _map_reopened(self, offset: int) -> memoryview:
        # Opened again for every window: a job that closes all descriptors it does not know could
        # close one that is kept open.
        descriptor = self._open(0)
        try:
            if _identity(descriptor) != self._identity:
                raise OSError(f"{self._path}: replaced while it was recorded into")
            return _map(descriptor, offset, WINDOW_BYTES)
        finally:
            os.close(descriptor)

    def _open(self, more: int) -> int:
        return os.open(self._path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | more, 0o600)

    def _create(self, header: bytes) -> None:
        descriptor = self._open(os.O_CREAT | os.O_EXCL)
        try:
            self._identity = _identity(descriptor)
            self._header = _map(descriptor, 0, HEADER_BYTES)
        except OSError:
            os.unlink(self._path)
            raise
        finally:
            os.close(descriptor)
        self._header[: len(header)] = header
        self._counters = self._header.cast("Q")
        self.is_open = True
        # mapped now, so that no span has to wait for it; without room, spans are lost and counted #
        with suppress(OSError):
            self._map_window(0)


class _Chunk:
    """64 KiB of the file that one thread writes to."""

    __slots__ = ("_bytes", "_words", "count")

    def __init__(self, bytes_: memoryview) -> None:
        self._bytes = bytes_
        self._words = bytes_.cast("Q")
        self.count = self._words[_STATE_WORD]
        self._words[_TID_WORD] = threading.get_native_id()

    def append(self, data: bytes, slots: int) -> None:
        start = CHUNK_HEADER_BYTES + self.count * RECORD.size
        self._bytes[start : start + len(data)] = data
        self.count += slots
        self._words[_STATE_WORD] = self.count  # one aligned 8-byte store, after the slots


class _Place:
    """The chunk that a thread writes to. When the thread ends, this is deleted, and another thread
    may take the chunk.
    """

    __slots__ = ("_abandoned", "chunk")

    def __init__(self, abandoned: list[_Chunk], chunk: _Chunk) -> None:
        self._abandoned = abandoned
        self.chunk = chunk

    def __del__(self) -> None:
        if len(self._abandoned) < ABANDONED:
            self._abandoned.append(self.chunk)


class Span:
    """A span that is being recorded: from the start to the end of its with block."""

    __slots__ = ("_fields", "_kind", "_name", "_name_id", "_ring", "_start_ns")

    _ring: Ring
    _kind: int
    _fields: dict[str, int]
    _start_ns: int
    _name_id: int
    _name: str | None

    def __init__(self, ring: Ring, kind: int, name: str | None, fields: dict[str, int]) -> None:
        put = object.__setattr__
        put(self, "_ring", ring)
        put(self, "_kind", kind)
        put(self, "_fields", {field: _checked(field, value) for field, value in fields.items()})
        put(self, "_start_ns", 0)
        self._set_name(name)

    def __getattr__(self, field: str) -> Any:
        if field == "name":
            return self._name
        if field in _SETTABLE:
            return self._fields[field]
        raise AttributeError(f"a span has no {field!r}")

    def __setattr__(self, field: str, value: Any) -> None:
        if field == "name":
            self._set_name(value)
        elif field in _SETTABLE:
            self._fields[field] = _checked(field, value)
        else:
            raise AttributeError(f"a span has no {field!r}")

    def __enter__(self) -> "Span":
        object.__setattr__(self, "_start_ns", self._ring.clock())
        return self

    def __exit__(self, *exception: object) -> None:
        end_ns = self._ring.clock()
        if self._start_ns != 0:
            self._ring.write(self.record(self._start_ns, end_ns))

    def record(self, start_ns: int, end_ns: int) -> bytes:
        """The bytes of the slot."""
        field = self._fields
        return RECORD.pack(
            start_ns,
            end_ns,
            field["bytes"],
            field["offset"],
            field["batch"],
            field["step"],
            field["file"],
            self._name_id,
            field["stream"],
            self._kind,
            field["source"],
        )

    def _set_name(self, name: str | None) -> None:
        if name is not None and not isinstance(name, str):
            raise TypeError(f"a span's name is a str, not {type(name).__name__}")
        object.__setattr__(self, "_name", name)
        object.__setattr__(self, "_name_id", -1 if name is None else self._ring.string(name))


class Nothing:
    """What span() returns while nothing is recorded: attributes can be set, which has no effect."""

    __slots__ = ()

    def __getattr__(self, field: str) -> int | None:
        if field in _SETTABLE:
            return 0 if field == "source" else -1
        if field == "name":
            return None
        raise AttributeError(f"a span has no {field!r}")

    def __setattr__(self, field: str, value: Any) -> None:
        pass

    def __enter__(self) -> "Nothing":
        return self

    def __exit__(self, *exception: object) -> None:
        pass


_SETTABLE: Final = frozenset((*_LIMITS, "source"))
_NOTHING: Final = Nothing()


def check_times(start_ns: int, end_ns: int) -> None:
    """`ValueError` for a span that ends before it starts."""
    if operator.index(end_ns) < operator.index(start_ns):
        raise ValueError(f"a span cannot end ({end_ns} ns) before it starts ({start_ns} ns)")


def _checked(field: str, value: Any) -> int:
    number = operator.index(value)
    low, limit = (0, len(SOURCES) + 1) if field == "source" else (-_LIMITS[field], _LIMITS[field])
    if not low <= number < limit:
        raise ValueError(f"{field}={value!r} is not within {low}..{limit - 1}")
    return number


def _encoded(text: str) -> bytes:
    try:
        return os.fsencode(text)
    except UnicodeEncodeError:
        return text.encode("utf-8", "backslashreplace")


def _cut(data: bytes) -> bytes:
    """An overlong string ends in an ellipsis, and not within a UTF-8 character if it is UTF-8."""
    if len(data) <= STRING_BYTES:
        return data
    length = STRING_BYTES - len(_ELLIPSIS)
    continues = next((step for step in range(3) if data[length - step] & 0xC0 != 0x80), 3)
    return data[: length - continues] + _ELLIPSIS


def _identity(descriptor: int) -> tuple[int, int]:
    status = os.fstat(descriptor)
    return status.st_dev, status.st_ino


def _map(descriptor: int, offset: int, length: int) -> memoryview:
    # Blocks are allocated before they are touched: a store to a hole of a full disk raises SIGBUS.
    # Python ignores SIGXFSZ.
    os.posix_fallocate(descriptor, offset, length)
    slack = offset % mmap.ALLOCATIONGRANULARITY
    return memoryview(
        mmap.mmap(descriptor, length + slack, mmap.MAP_SHARED, offset=offset - slack)
    )[slack:]


# ------------------------------------------------------------ in place of the extension's functions

_redirected: tuple[Callable[..., Any], Callable[..., None], Callable[[Any], int]] | None = None


def span(
    kind: str, name: str | None = None, *, step: int = -1, batch: int = -1, bytes: int = -1,
    file: int = -1, offset: int = -1, stream: int = -1, source: int = 0,
) -> Any:  # fmt: skip
    """A context manager that records how long its block took; see `ioprof.instrument.span`."""
    if _redirected is None:
        return _NOTHING
    return _redirected[0](
        kind,
        name,
        step=step,
        batch=batch,
        bytes=bytes,
        file=file,
        offset=offset,
        stream=stream,
        source=source,
    )


def emit(
    kind: str,
    start_ns: int,
    end_ns: int,
    name: str | None = None,
    *,
    step: int = -1,
    batch: int = -1,
    bytes: int = -1,
    file: int = -1,
    offset: int = -1,
    stream: int = -1,
    source: int = 0,
) -> None:
    """Record a span that was timed elsewhere, in nanoseconds of CLOCK_MONOTONIC."""
    if _redirected is None:
        check_times(start_ns, end_ns)
        return
    _redirected[1](
        kind, start_ns, end_ns, name,
        step=step, batch=batch, bytes=bytes, file=file, offset=offset, stream=stream, source=source,
    )  # fmt: skip


def intern(path: "str | bytes | os.PathLike[Any]", /) -> int:
    """The number of a path, for `file=`; -1 while nothing is recorded."""
    return -1 if _redirected is None else _redirected[2](path)


def redirect(*functions: Callable[..., Any]) -> None:
    """Use other functions in place of span, emit and intern; without arguments, no longer."""
    global _redirected
    _redirected = (functions[0], functions[1], functions[2]) if functions else None
