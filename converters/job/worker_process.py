"""The main loop of a pool's worker process, and the messages between it and its parent. Imports
little, to start fast.

A message is its length, the number of out-of-band buffers in the slot, and a pickle; an answer also
holds the slot's number and the buffers' lengths. Both ends are processes of one user, and no other
process has the socket, so pickle is safe.
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
"""Size of a slot in the shared memory; a larger result is sent through the socket."""

_HEAD: Final = struct.Struct("<QI")
_MAX_READ_BYTES: Final = 1 << 20
_M_TRIM_THRESHOLD: Final = -1  # <malloc.h>
_M_MMAP_THRESHOLD: Final = -3


def serve(descriptor: int, memory: int) -> None:
    """Run the tasks received through the socket until the parent exits; `memory` is the descriptor
    of the slots, or -1.
    """
    _tune_malloc()
    slots = mmap.mmap(memory, 0) if memory >= 0 else None
    with contextlib.suppress(EOFError, OSError):  # the parent has exited
        function = pickle.loads(receive(descriptor)[0])  # noqa: S301
        while True:
            number, slot, task = pickle.loads(receive(descriptor)[0])  # noqa: S301
            _send_answer(descriptor, (number, *_run_task(function, task)), slot, slots)


def _tune_malloc() -> None:
    # By default glibc returns the pages of each image's buffers to the kernel and faults them in
    # again for the next image: 4 to 15 faults per image. With these thresholds blocks of up to 32
    # MiB come from the heap, of which up to 128 MiB may be unused.
    with contextlib.suppress(AttributeError, OSError):  # another C library
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(_M_MMAP_THRESHOLD, 32 << 20)
        mallopt(_M_TRIM_THRESHOLD, 128 << 20)


def _run_task(function: Callable[[Any], Any], task: Any) -> tuple[Any, Exception | None]:
    try:
        return function(task), None
    except Exception as error:
        import traceback

        error.add_note("in a worker process:\n" + traceback.format_exc())
        return None, error


def _send_answer(
    descriptor: int, answer: tuple[Any, ...], slot: int, slots: mmap.mmap | None
) -> None:
    parts: list[pickle.PickleBuffer] = []
    message = pickle.dumps(answer, 5, buffer_callback=parts.append if slots is not None else None)
    lengths = [part.raw().nbytes for part in parts]
    if sum(lengths) > SLOT_BYTES:
        lengths, message = [], pickle.dumps(answer, 5)
    elif slots is not None:
        for part, place in zip(parts, _slot_views(slots, slot, lengths), strict=True):
            place[:] = part
    send(descriptor, struct.pack(f"<{len(lengths) + 1}Q", slot, *lengths) + message, len(lengths))


def _slot_views(slots: mmap.mmap, slot: int, lengths: Iterable[int]) -> Iterator[memoryview]:
    start, view = slot * SLOT_BYTES, memoryview(slots)
    for length in lengths:
        yield view[start : start + length]
        start += length


def decode_answer(
    message: bytes, num_parts: int, slots: mmap.mmap | None
) -> tuple[int, int, Any, Exception | None]:
    """Slot, task number, result and exception from a worker's message."""
    slot, *lengths = struct.unpack_from(f"<{num_parts + 1}Q", message)
    parts = [] if slots is None else list(_slot_views(slots, slot, lengths))
    number, result, error = pickle.loads(memoryview(message)[8 * (num_parts + 1) :], buffers=parts)  # noqa: S301
    return slot, number, result, error


def send(descriptor: int, message: bytes, num_parts: int = 0) -> None:
    """Send a message; raises OSError when the other end is closed."""
    data = memoryview(_HEAD.pack(len(message), num_parts) + message)
    while data:
        data = data[os.write(descriptor, data) :]


def receive(descriptor: int) -> tuple[bytes, int]:
    """A message, and its number of buffers in the slot; raises EOFError or OSError when the other
    end is closed.
    """
    length, num_parts = _HEAD.unpack(_read_exactly(descriptor, _HEAD.size))
    return _read_exactly(descriptor, length), num_parts


def _read_exactly(descriptor: int, size: int) -> bytes:
    pieces: list[bytes] = []
    while size > 0:
        data = os.read(descriptor, min(size, _MAX_READ_BYTES))
        if not data:
            raise EOFError
        pieces.append(data)
        size -= len(data)
    return pieces[0] if len(pieces) == 1 else b"".join(pieces)
