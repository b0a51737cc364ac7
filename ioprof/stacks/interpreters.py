"""The Python interpreter of another process: where its structures are, and the states of its
threads.
"""

import os
import re
import struct
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from ioprof.errors import CaptureError
from ioprof.stacks.elf import symbol_addresses
from ioprof.stacks.layouts import OFFSETS_BYTES, Layout, layout_of

ReadMemory = Callable[[int, int, int], bytes]
"""`read(pid, address, size)`: that much memory of a process; raises `OSError`."""

_SYMBOLS: Final = ("_PyRuntime", "Py_Version", "PyCode_Type")
_IMAGE: Final = re.compile(r"libpython3\.\d+\w*\.so[\d.]*|python3(\.\d+\w*)?")
"""Files that may hold the interpreter, besides the program: that may be the dynamic linker, or
embed Python."""
_MOST_THREADS: Final = 4096


@dataclass(frozen=True)
class Interpreter:
    """An interpreter at an address, of one process or of several that were forked from it."""

    runtime: int
    """Address of `_PyRuntime`."""
    code_type: int
    """Address of `PyCode_Type`."""
    version: int
    """PY_VERSION_HEX."""
    layout: Layout

    def main_thread(self, pid: int, read: ReadMemory) -> int | None:
        """The address of the state of the main thread of a process; None: it has none, or its
        interpreter is another.

        Raises `OSError` where the memory of the process cannot be read at all.
        """
        # The oldest that has the number: until a new thread runs, its state has the number of the
        # thread that made it.
        return next(
            (state for state, number in reversed(self.threads(pid, read)) if number == pid), None
        )

    def threads(self, pid: int, read: ReadMemory) -> list[tuple[int, int]]:
        """The addresses of the states of the threads of a process, and the kernel's numbers of
        them, the newest first.

        None of them if its interpreter is another. Until a new thread runs, its state has the
        number of the thread that made it. Raises `OSError` where the memory of the process cannot
        be read.
        """
        layout, found = self.layout, list[tuple[int, int]]()
        places = (layout.thread_interpreter, layout.frames.thread_native_id, layout.thread_next)
        interpreter = self._interpreter(pid, read)
        state = _word(read(pid, interpreter + layout.threads_head, 8)) if interpreter else 0
        while state and len(found) < _MOST_THREADS:
            fields = read(pid, state, max(places) + 8)
            of_interpreter, number, following = (
                _word(fields[place : place + 8]) for place in places
            )
            if of_interpreter != interpreter:
                return []
            found.append((state, number))
            state = following
        return found

    def _interpreter(self, pid: int, read: ReadMemory) -> int:
        """The newest one alone: subinterpreters have no main thread."""
        return _word(read(pid, self.runtime + self.layout.interpreters_head, 8))

    def lock(self, pid: int, read: ReadMemory) -> int:
        """The address of the lock that its threads share; 0: it is not known where this version
        keeps it.

        Raises `OSError` where the memory of the process cannot be read.
        """
        layout = self.layout
        if not layout.lock:
            return 0
        if layout.lock_in_runtime:
            return self.runtime + layout.lock
        interpreter = self._interpreter(pid, read)
        return _word(read(pid, interpreter + layout.lock, 8)) if interpreter else 0


class Interpreters:
    """Finds interpreters of processes. What it has found in one process it tries first in the next,
    since workers are forked.
    """

    def __init__(self, read: ReadMemory, proc: str = "/proc") -> None:
        self._read, self._proc = read, proc
        self._known: dict[tuple[str, int], dict[str, int]] = {}
        self._found: list[Interpreter] = []

    def find(self, pid: int) -> tuple[Interpreter, int]:
        """The interpreter of a process, and the address of the state of its main thread.

        Raises `CaptureError` for a process without an interpreter that can be read, and `OSError`
        if its memory cannot be read.
        """
        for interpreter in self._found:
            try:
                if thread := interpreter.main_thread(pid, self._read):
                    return interpreter, thread
            except OSError as error:
                if not isinstance(error, PermissionError | ProcessLookupError):
                    continue  # nothing is mapped there
                raise
        interpreter = self._locate(pid)
        thread = interpreter.main_thread(pid, self._read)
        if not thread:
            raise CaptureError(
                f"the main thread of process {pid} is not in the list of threads of its interpreter"
            )
        self._found.insert(0, interpreter)
        return interpreter, thread

    def _locate(self, pid: int) -> Interpreter:
        for path, inode, start in self._images(pid):
            symbols = self._symbols(pid, path, inode)
            if len(symbols) < len(_SYMBOLS):
                continue
            version = _word(self._read(pid, start + symbols["Py_Version"], 8))
            runtime = start + symbols["_PyRuntime"]
            layout = layout_of(version, self._read(pid, runtime, OFFSETS_BYTES))
            return Interpreter(runtime, start + symbols["PyCode_Type"], version, layout)
        raise CaptureError(f"process {pid} has no Python interpreter whose symbols can be found")

    def _images(self, pid: int) -> Iterator[tuple[str, int, int]]:
        """Path, inode and first address of the files that may hold the interpreter: libpython, or
        the program.
        """
        program = str(Path(f"{self._proc}/{pid}/exe").readlink())
        found = []
        with open(f"{self._proc}/{pid}/maps", encoding="utf-8", errors="surrogateescape") as lines:
            for line in lines:
                fields = line.rstrip("\n").split(maxsplit=5)
                if len(fields) == 6 and int(fields[2], 16) == 0:
                    path = fields[5]
                    if path == program or _IMAGE.fullmatch(Path(path).name):
                        found.append((path, int(fields[4]), int(fields[0].partition("-")[0], 16)))
        yield from sorted(found, key=lambda image: image[0] == program)

    def _symbols(self, pid: int, path: str, inode: int) -> dict[str, int]:
        if (path, inode) not in self._known:
            self._known[path, inode] = {}
            # as a process in a container sees it, and as this one does
            for place in (
                f"{self._proc}/{pid}/root{path}",
                path,
            ):
                with suppress(OSError):
                    if os.stat(place).st_ino == inode:
                        self._known[path, inode] = symbol_addresses(place, _SYMBOLS)
                        break
        return self._known[path, inode]


def _word(data: bytes) -> int:
    word: int = struct.unpack("<Q", data)[0]
    return word
