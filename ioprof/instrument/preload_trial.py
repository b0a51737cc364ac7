"""Whether the capture library can be loaded into a program, asked of the dynamic linker before the
job starts.
"""

import os
import shutil
import struct
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from ioprof.instrument import preload

_BEGINNING_BYTES: Final = 4096
"""Of a program: its ELF header and program headers, or the line that names its interpreter."""
_SCRIPTS: Final = 5
"""Interpreters of scripts that may be scripts, as in the kernel (fs/exec.c)."""
_PT_INTERP: Final = 3
_LAYOUTS: Final = {1: ("<28xI10x2H", "<2I8xI"), 2: ("<32xQ14x2H", "<I4xQ16xQ")}
"""By the class of an ELF file, 32 or 64 bits: in its header where its program headers are, the size
of one, and how many; in one of these its type, and offset and size of what it describes (man 5
elf)."""


def why_not_loaded(program: str, environment: Mapping[str, str]) -> str | None:
    """Why a program would not start with the library, or complain about it; None: it would start
    well, or not without it either.

    The program's own dynamic linker maps it and its libraries, under the limits of this process,
    and does not start it (man 8 ld.so, --list); about 3 ms. `program` as given to exec,
    `environment` is the job's without ioprof.
    """
    library = preload.library()
    found = shutil.which(program, path=environment.get("PATH"))
    linker = None if library is None or found is None else _linker_of(found)
    if library is None or found is None or linker is None:
        return None
    listing = [linker, "--list", _interpreter_of(found)]
    loaded = {
        **environment,
        "LD_PRELOAD": preload.first(str(library), environment.get("LD_PRELOAD"), ":"),
    }
    with_library = _list(listing, loaded)
    if with_library is None or (
        with_library.returncode == 0 and str(library) in with_library.stdout
    ):
        return None
    without = _list(listing, environment)
    if without is None or without.returncode != 0:
        return None
    said = with_library.stderr.strip().splitlines() or [
        f"{linker} ended with {with_library.returncode}"
    ]
    return f"the capture library cannot be loaded into {found}: {said[0]}"


def _list(
    command: list[str], environment: Mapping[str, str]
) -> "subprocess.CompletedProcess[str] | None":
    try:
        return subprocess.run(
            command,
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=60,
        )
    except (OSError, subprocess.SubprocessError):
        return None


def _beginning(path: str) -> bytes:
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        return os.read(descriptor, _BEGINNING_BYTES)
    finally:
        os.close(descriptor)


def _interpreter_of(program: str) -> str:
    """The ELF file that the kernel loads for a program: itself, or the interpreter of a script."""
    for _ in range(_SCRIPTS):
        beginning = _beginning(program)
        words = beginning[2:].partition(b"\n")[0].split()
        if not beginning.startswith(b"#!") or not words:
            break
        program = os.fsdecode(words[0])
    return program


def _linker_of(program: str) -> str | None:
    """The dynamic linker that a program names; None: it has none, or it cannot be read."""
    try:
        beginning = _beginning(_interpreter_of(program))
        if beginning[:4] != b"\x7fELF":
            return None
        header, segment = _LAYOUTS[beginning[4]]
        start, size, count = struct.unpack_from(header, beginning)
        for place in range(start, start + size * count, size):
            kind, offset, length = struct.unpack_from(segment, beginning, place)
            if kind == _PT_INTERP:
                linker = os.fsdecode(beginning[offset : offset + length].rstrip(b"\0"))
                return linker if Path(linker).is_file() else None
    except (OSError, KeyError, IndexError, ValueError, struct.error):
        pass
    return None
