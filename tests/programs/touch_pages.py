"""A job that reads pages of a mapped file. Arguments: PATH HOW PAGES...

HOW: `plain`; `threads` and `forks` read a third each; `exec` reads, becomes a fresh program, and
that one reads on; `deleted` takes the file's name away first; `stream` reads in order, with
readahead; `killed` reads and kills itself; `stays` reads and waits until its input ends. Each
reader prints a line: its process and thread, the pages, its major faults, how long it took and
slept.
"""

import json
import mmap
import os
import resource
import signal
import sys
import threading
import time
from pathlib import Path

import numpy as np


def mapped(path: str) -> np.memmap:
    """The file as an array; no page comes unasked."""
    array = np.memmap(path, np.uint8, mode="r")
    array._mmap.madvise(mmap.MADV_RANDOM)
    return array


def touch(array: np.memmap, pages: list[int]) -> None:
    """Read one byte of each page, and say what that took."""
    # so that its own code, too, is in memory when faults are counted
    read_each(np.memmap(__file__, np.uint8, mode="r"), [0])
    cores, started, before = on_core_ns(), time.monotonic_ns(), major_faults()
    read_each(array, pages)
    faults, took = major_faults() - before, time.monotonic_ns() - started
    slept = took - (on_core_ns() - cores)
    line = {
        "pid": os.getpid(),
        "tid": threading.get_native_id(),
        "pages": pages,
        "faults": faults,
        "took_ns": took,
        "slept_ns": slept,
    }
    os.write(1, json.dumps(line).encode() + b"\n")


def read_each(array: np.memmap, pages: list[int]) -> None:
    for page in pages:
        array[page * mmap.PAGESIZE + 77]


def major_faults() -> int:
    return resource.getrusage(resource.RUSAGE_THREAD).ru_majflt


def on_core_ns() -> int:
    """How long this thread has been on a core, or has waited for one (kernel documentation,
    scheduler/sched-stats)."""
    return sum(map(int, Path("/proc/thread-self/schedstat").read_text().split()[:2]))


def threads(array: np.memmap, pages: list[int]) -> None:
    readers = [threading.Thread(target=touch, args=(array, pages[part::3])) for part in range(3)]
    for reader in readers:
        reader.start()
    for reader in readers:
        reader.join()


def forks(array: np.memmap, pages: list[int]) -> None:
    children = []
    for part in range(3):
        children.append(os.fork())
        if not children[-1]:
            touch(array, pages[part::3])
            os._exit(0)
    for child in children:
        os.waitpid(child, 0)


def become(array: np.memmap, pages: list[int]) -> None:
    half = len(pages) // 2
    touch(array, pages[:half])
    os.execv(
        sys.executable, [sys.executable, __file__, sys.argv[1], "plain", *map(str, pages[half:])]
    )


def deleted(array: np.memmap, pages: list[int]) -> None:
    Path(sys.argv[1]).unlink()
    touch(array, pages)


def stream(array: np.memmap, pages: list[int]) -> None:
    array._mmap.madvise(mmap.MADV_NORMAL)
    touch(array, sorted(pages))


def killed(array: np.memmap, pages: list[int]) -> None:
    touch(array, pages)
    os.kill(os.getpid(), signal.SIGKILL)


def stays(array: np.memmap, pages: list[int]) -> None:
    touch(array, pages)
    sys.stdin.read()


HOW = {
    "plain": touch,
    "threads": threads,
    "forks": forks,
    "exec": become,
    "deleted": deleted,
    "stream": stream,
    "killed": killed,
    "stays": stays,
}

if __name__ == "__main__":
    HOW[sys.argv[2]](mapped(sys.argv[1]), [int(page) for page in sys.argv[3:]])
