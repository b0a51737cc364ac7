"""What the capture library adds to one call, measured here and now: in a process of its own, which it is loaded into.

There the same three calls (open, pread of 4 KB, close) are made through the library and, by the C library's own handle, past it;
what differs is the library's part. The median of several rounds counts, since other programs disturb some.
"""

import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from ioprof.record import preload

_CALLS: Final = 3
_PROGRAM: Final = """
import ctypes, sys, time
path, rounds, repeats = sys.argv[1].encode(), int(sys.argv[2]), int(sys.argv[3])
buffer = ctypes.create_string_buffer(4096)
def took(library):
    open_, pread, close = library.open, library.pread, library.close
    start = time.monotonic_ns()
    for _ in range(repeats):
        descriptor = open_(path, 0)
        pread(descriptor, buffer, 4096, 0)
        close(descriptor)
    return time.monotonic_ns() - start
through, past = ctypes.CDLL(None), ctypes.CDLL("libc.so.6")
took(through), took(past)
differences = sorted(took(through) - took(past) for _ in range(rounds))
print(differences[rounds // 2] / repeats)
"""


def cost_per_call_ns(environment: Mapping[str, str], rounds: int = 7, repeats: int = 300) -> float | None:
    """Nanoseconds; null where the library is not built, or cannot be tried here (no glibc, say)."""
    if preload.library() is None:
        return None
    with tempfile.TemporaryDirectory(prefix="ioprof-") as folder:
        path, spool = Path(folder, "file"), Path(folder, "spool")  # not in the spool: its files are nobody's reads
        path.write_bytes(bytes(4096))
        spool.mkdir()
        line = [sys.executable, "-I", "-S", "-c", _PROGRAM, str(path), str(rounds), str(repeats)]
        changed = preload.environment(spool, environment, hooks=False)
        ended = subprocess.run(line, env=changed, capture_output=True, text=True, check=False)
    try:
        return max(0.0, float(ended.stdout) / _CALLS)
    except ValueError:
        return None
