"""What the capture library adds to one system call, measured in a process that it is loaded into,
and to a small program.

There the same three calls (open, pread of 4 KB, close) are made through the library and, by a
handle of the C library, without it; the difference is its cost. A trial takes some tens of
microseconds, less than a time slice of the scheduler, so that also on a busy machine most trials
are not interrupted; those that were, by the thread's count of context switches, do not count. The
median of the differences of neighbouring trials counts.
"""

import shutil
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from statistics import median
from tempfile import TemporaryFile
from typing import Final

from ioprof.instrument import preload
from ioprof.instrument.recorder import FEWEST_TRIALS, REHEARSAL

_CALLS: Final = 3
_PROGRAM: Final = """
import ctypes, resource, sys, time
path, trials, repeats, displaced = sys.argv[1].encode(), int(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])
there, here = bytearray(displaced), bytearray(displaced)
buffer = ctypes.create_string_buffer(4096)
def switches():
    usage = resource.getrusage(resource.RUSAGE_THREAD)
    return usage.ru_nvcsw + usage.ru_nivcsw
def took(library):
    open_, pread, close = library.open, library.pread, library.close
    here[:] = there
    before, start = switches(), time.monotonic_ns()
    for _ in range(repeats):
        descriptor = open_(path, 0)
        pread(descriptor, buffer, 4096, 0)
        close(descriptor)
    end = time.monotonic_ns()
    return end - start if switches() == before else None
through, past = ctypes.CDLL(None), ctypes.CDLL("libc.so.6")
took(through), took(past)
differences = []
for number in range(trials):
    first, second = (through, past) if number % 2 else (past, through)
    times = {first: took(first)}
    times[second] = took(second)
    if None not in times.values():
        differences.append((times[through] - times[past]) / repeats)
differences.sort()
num = len(differences)
print(num, (differences[(num - 1) // 2] + differences[num // 2]) / 2 if num else 0)
"""  # noqa: E501


def cost_per_call_ns(
    environment: Mapping[str, str], trials: int = 300, repeats: int = 10, displaced_bytes: int = 0
) -> float | None:
    """Nanoseconds, above 0. None: the library is not built, cannot be loaded here (no glibc, for
    example), or too many trials were interrupted, or the cost was smaller than the differences
    between trials.

    With `displaced_bytes` the processor's caches hold other data when a trial begins, as after
    decoding an image.
    """
    if preload.library() is None:
        return None
    with TemporaryFile(buffering=0) as file, TemporaryFile(buffering=0) as recorded:
        file.write(bytes(4096))
        numbers = map(str, (trials, repeats, displaced_bytes))
        line = [sys.executable, "-I", "-S", "-c", _PROGRAM, f"{REHEARSAL}{file.fileno()}", *numbers]
        changed = preload.environment(
            Path(f"{REHEARSAL}{recorded.fileno()}"), environment, hooks=False
        )
        kept = (file.fileno(), recorded.fileno())
        ended = subprocess.run(
            line, env=changed, pass_fds=kept, capture_output=True, text=True, check=False
        )
    try:
        num_trials, difference_ns = ended.stdout.split()
        cost_ns = float(difference_ns) / _CALLS
        return cost_ns if int(num_trials) >= FEWEST_TRIALS and cost_ns > 0 else None
    except ValueError:
        return None


def cost_per_process_ns(environment: Mapping[str, str], trials: int = 24) -> float | None:
    """What a small program that reads a file takes longer with the capture library, nanoseconds
    above 0: the difference of medians. None: as of `cost_per_call_ns`, or there is no `cat` here.
    """
    program = shutil.which("cat", path=environment.get("PATH"))
    if preload.library() is None or program is None:
        return None
    took: dict[bool, list[int]] = {False: [], True: []}
    with TemporaryFile(buffering=0) as file:
        file.write(bytes(4096))
        line = [program, f"{REHEARSAL}{file.fileno()}"]
        for number in range(2 * trials):
            with TemporaryFile(buffering=0) as spool:
                is_recorded, kept = number % 2 > 0, (file.fileno(), spool.fileno())
                folder = Path(f"{REHEARSAL}{spool.fileno()}")
                changed = preload.environment(folder, environment, hooks=False)
                start_ns = time.monotonic_ns()
                subprocess.run(
                    line,
                    env=changed if is_recorded else dict(environment),
                    pass_fds=kept,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                    check=False,
                )
                took[is_recorded].append(time.monotonic_ns() - start_ns)
    cost_ns = median(took[True]) - median(took[False])
    return float(cost_ns) if cost_ns > 0 else None
