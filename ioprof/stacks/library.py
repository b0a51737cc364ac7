"""The C library that copies stacks out of other processes (`native/stacks/`), which is no Python
module: it is called by ctypes.
"""

import ctypes
from ctypes import POINTER, byref, c_char_p, c_int, c_uint32, c_uint64, c_void_p
from functools import cache
from pathlib import Path
from typing import Any, Final

LIBRARY: Final = Path(__file__).parent.parent / "_stacks.so"
_LAYOUT_WORDS: Final = 17

_Words = c_uint64 * _LAYOUT_WORDS


class TargetState(ctypes.Structure):
    """What became of a sampled thread.

    `torn`: stacks that changed while they were read, and were dropped; `idle`: times at which it
    ran no Python code; `failed`: 1 if it is not read any more; `error`: errno of the last failure,
    0: none.
    """

    _fields_ = [(name, c_uint64) for name in ("samples", "torn", "idle", "failed", "error")]


def is_built() -> bool:
    """Whether the library is there; it is not where it could not be built, as for another libc."""
    return LIBRARY.is_file()


@cache
def _functions() -> Any:
    library = ctypes.CDLL(str(LIBRARY))
    number, long = c_uint32, c_uint64
    for name, result, arguments in (
        ("open", c_void_p, [c_int]),
        ("close", None, [c_void_p]),
        ("stop", None, [c_void_p]),
        ("read", c_int, [c_int, long, c_void_p, long]),
        ("add", c_int, [c_void_p, c_int, number, number, number, long, POINTER(_Words)]),
        ("set_every", None, [c_void_p, number, number]),
        ("watch_lock", None, [c_void_p, number, long]),
        ("remove", None, [c_void_p, number]),
        ("state", None, [c_void_p, number, POINTER(TargetState)]),
        ("run", long, [c_void_p, long, long, c_char_p, long]),
        ("error", c_int, [c_void_p, POINTER(c_uint64), POINTER(c_uint64)]),
    ):
        function = getattr(library, f"ioprof_stacks_{name}")
        function.restype, function.argtypes = result, arguments
    return library


def read_memory(pid: int, address: int, size: int) -> bytes:
    """`size` bytes of the memory of a process, which is not stopped; raises `OSError`."""
    data = ctypes.create_string_buffer(size)
    error = _functions().ioprof_stacks_read(pid, address, data, size)
    if error:
        raise OSError(error, f"memory of process {pid}")
    return data.raw


class Reader:
    """Samples threads of other processes into a file. All methods but `stop` are called by one
    thread.
    """

    def __init__(self, descriptor: int) -> None:
        self._library = _functions()
        self._sampler = self._library.ioprof_stacks_open(descriptor)
        if not self._sampler:
            raise MemoryError("no memory for a sampler of stacks")

    def add(
        self,
        number: int,
        pid: int,
        thread_state: int,
        layout: tuple[int, ...],
        every: int,
        thread: int = 0,
    ) -> None:
        """Sample the thread of a process in each `every`th pass from now on. `layout` has the words
        of `struct layout`, `thread` is the kernel's number of the thread; 0: the main one.

        Raises `OSError` for one that cannot be sampled.
        """
        assert len(layout) == _LAYOUT_WORDS
        words = byref(_Words(*layout))
        error = self._library.ioprof_stacks_add(
            self._sampler, pid, thread, number, every, thread_state, words
        )
        if error:
            raise OSError(
                error,
                f"process {pid} has a layout that cannot be used, or there are too many processes",
            )

    def set_every(self, number: int, every: int) -> None:
        """Sample a thread in each `every`th pass."""
        self._library.ioprof_stacks_set_every(self._sampler, number, every)

    def watch_lock(self, number: int, address: int) -> None:
        """Sample which thread holds the interpreter's lock, which is at this address, while that
        thread waits for it.
        """
        self._library.ioprof_stacks_watch_lock(self._sampler, number, address)

    def remove(self, number: int) -> None:
        """Sample that thread no more."""
        self._library.ioprof_stacks_remove(self._sampler, number)

    def state(self, number: int) -> TargetState:
        """What became of a thread that was added; zeros if it was removed."""
        found = TargetState()
        self._library.ioprof_stacks_state(self._sampler, number, byref(found))
        return found

    def run(
        self, until_ns: int, period_ns: int, folder: bytes | None = None, changed_ns: int = 0
    ) -> int:
        """Sample all threads about each `period_ns` until `until_ns` or `stop`; returns the number
        of passes. Releases the GIL.

        With a folder it also ends within 0.2 s after the folder's time of change is another one
        than `changed_ns`.
        """
        passes: int = self._library.ioprof_stacks_run(
            self._sampler, until_ns, period_ns, folder, changed_ns
        )
        return passes

    def stop(self) -> None:
        """End the run in progress, and each later one at once; any thread may call it."""
        self._library.ioprof_stacks_stop(self._sampler)

    def error(self) -> tuple[int, int, int]:
        """Errno of the first write that failed (0: none), the number of samples that found no room
        in the tables, and the nanoseconds that reading new code objects took.
        """
        full, reading_ns = c_uint64(), c_uint64()
        error: int = self._library.ioprof_stacks_error(
            self._sampler, byref(full), byref(reading_ns)
        )
        return error, full.value, reading_ns.value

    def close(self) -> None:
        """Write what is left, and release all memory."""
        self._library.ioprof_stacks_close(self._sampler)
        self._sampler = None
