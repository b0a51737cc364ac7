"""What runs in a worker of the pool, and the messages between it and its parent. Imports little, since it is loaded first.

A message is its length, how many parts of it lie in the slot instead, and a pickle; an answer also tells the slot and the parts'
lengths. Both ends are processes of one user, and no other has the socket.
"""

import contextlib
import ctypes
import mmap
import os
import pickle
import struct
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final

SLOT_BYTES: Final = 1 << 21
"""Address space of a slot; a result that does not fit goes through the socket."""

_HEAD: Final = struct.Struct("<QI")
_MOST_AT_ONCE: Final = 1 << 20
_M_TRIM_THRESHOLD: Final = -1  # <malloc.h>
_M_MMAP_THRESHOLD: Final = -3


def serve(descriptor: int, memory: int) -> None:
    """Do what comes through the socket until the parent has gone; `memory` is that of the slots, or -1."""
    _keep_memory()
    slots = mmap.mmap(memory, 0) if memory >= 0 else None
    with contextlib.suppress(EOFError, OSError):  # the parent has gone
        function = pickle.loads(receive(descriptor)[0])  # noqa: S301
        while True:
            number, slot, task = pickle.loads(receive(descriptor)[0])  # noqa: S301
            _answer(descriptor, (number, *_outcome(function, task)), slot, slots)


def _keep_memory() -> None:
    # glibc would give the pages of each image's buffers back to the kernel and fault them in again for the next: 4 to 15 faults per
    # image. Blocks of up to 32 MiB come from the heap instead, of which up to 128 MiB may lie idle.
    with contextlib.suppress(AttributeError, OSError):  # another C library
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(_M_MMAP_THRESHOLD, 32 << 20)
        mallopt(_M_TRIM_THRESHOLD, 128 << 20)


def _outcome(function: Callable[[Any], Any], task: Any) -> tuple[Any, Exception | None]:
    try:
        return function(task), None
    except Exception as error:
        import traceback

        error.add_note("in a worker process:\n" + traceback.format_exc())
        return None, error


def _answer(descriptor: int, answer: tuple[Any, ...], slot: int, slots: mmap.mmap | None) -> None:
    parts: list[pickle.PickleBuffer] = []
    message = pickle.dumps(answer, 5, buffer_callback=parts.append if slots is not None else None)
    lengths = [part.raw().nbytes for part in parts]
    if sum(lengths) > SLOT_BYTES:
        lengths, message = [], pickle.dumps(answer, 5)
    elif slots is not None:
        for part, place in zip(parts, parts_of(slots, slot, lengths), strict=True):
            place[:] = part
    send(descriptor, struct.pack(f"<{len(lengths) + 1}Q", slot, *lengths) + message, len(lengths))


def parts_of(slots: mmap.mmap, slot: int, lengths: Iterable[int]) -> Iterator[memoryview]:
    """The places of parts of these lengths in a slot."""
    start, view = slot * SLOT_BYTES, memoryview(slots)
    for length in lengths:
        yield view[start : start + length]
        start += length


def answer_of(message: bytes, num_parts: int, slots: mmap.mmap | None) -> tuple[int, int, Any, Exception | None]:
    """The slot, the task's number, its result and the error that it raised, as they came from a worker."""
    slot, *lengths = struct.unpack_from(f"<{num_parts + 1}Q", message)
    parts = [] if slots is None else list(parts_of(slots, slot, lengths))
    number, result, error = pickle.loads(memoryview(message)[8 * (num_parts + 1) :], buffers=parts)  # noqa: S301
    return slot, number, result, error


def send(descriptor: int, message: bytes, num_parts: int = 0) -> None:
    """Raises OSError where nobody receives any more."""
    data = memoryview(_HEAD.pack(len(message), num_parts) + message)
    while data:
        data = data[os.write(descriptor, data) :]


def receive(descriptor: int) -> tuple[bytes, int]:
    """A message, and how many parts of it lie in the slot; raises EOFError or OSError where nobody sends any more."""
    length, num_parts = _HEAD.unpack(_exactly(descriptor, _HEAD.size))
    return _exactly(descriptor, length), num_parts


def _exactly(descriptor: int, size: int) -> bytes:
    pieces: list[bytes] = []
    while size > 0:
        data = os.read(descriptor, min(size, _MOST_AT_ONCE))
        if not data:
            raise EOFError
        pieces.append(data)
        size -= len(data)
    return pieces[0] if len(pieces) == 1 else b"".join(pieces)
