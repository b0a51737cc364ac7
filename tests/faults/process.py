"""The training process itself: jobs that read, fault and decode in the training loop or in threads
of its process."""

from pathlib import Path
from typing import Final

import numpy
from repository import PROGRAMS

from faults.case import Case

_PREFETCH: Final = Path(PROGRAMS, "prefetch_thread.py").read_text().splitlines()


def _line(mark: str) -> str:
    """`prefetch_thread.py:38`, the line that ends with this comment."""
    return f"prefetch_thread.py:{next(number for number, line in enumerate(_PREFETCH, 1) if line.endswith(f'  # {mark}'))}"  # noqa: E501


def _library() -> Path | None:
    """A large shared library."""
    found = sorted((Path(numpy.__file__).parent.parent / "numpy.libs").glob("*openblas*.so*"))
    return found[0] if found else None


_LIBRARY = _library()

CASES = (
    Case(
        name="a loop that reads, no loader",
        program="read_in_loop.py",
        arguments=("{data}/records.bin", 40),
        disk_bytes_per_s=6 << 20,
        files=(("records.bin", 48 << 20),),
        bound_by="storage",
        says=("records.bin",),
        advises="records.bin",
    ),
    Case(
        name="a loop that decodes, beside a DataLoader",
        program="decode_in_loop.py",
        arguments=("{data}", 160, 1),
        bound_by="decode",
        advises="Do this work in",
    ),
    Case(
        name="a loop that decodes, no loader",
        program="decode_in_loop.py",
        arguments=("{data}", 160, -1),
        bound_by="decode",
        advises="Do this work in",
    ),
    Case(
        name="a thread that decodes two batches ahead, behind a Condition",
        program="prefetch_thread.py",
        arguments=("{data}", 60, 5),
        bound_by="decode",
        says=(_line("decode"), "while threads of its process"),
        never_says=(
            f"{_line('wait')} in Prefetcher.next)",
            "the training process itself spent",
        ),
        advises=f"{_line('decode')} in Prefetcher.sample: threads of the training process",
        names=(_line("decode"),),
    ),
    Case(
        name="threads that read from a slow disk",
        program="read_in_threads.py",
        arguments=("{data}", 16, 2, 0),
        disk_bytes_per_s=2 << 20,
        bound_by="storage",
        advises="storage",
    ),
    Case(
        name="an environment in a process of its own",
        program="step_environment.py",
        arguments=(60, 600_000),
        bound_by="host",
        says=("step_environment.py",),
        advises="waits for faster",
        names=("waiting for other threads or processes",),
    ),
    Case(
        name="Python in the loop, with threads that read ahead",
        program="read_in_threads.py",
        arguments=("{data}", 24, 2, 100),
        bound_by="host",
        says=("read_in_threads.py",),
        advises="read_in_threads.py",
    ),
    *(
        Case(
            name="a shared library on a slow disk",
            program="touch_library.py",
            arguments=("{data}/libkernels.so", 12),
            disk_bytes_per_s=6 << 20,
            files=(("libkernels.so", library),),
            bound_by="storage",
            says=("libkernels.so",),
            advises="libkernels.so",
            needs_faults=True,
        )
        for library in ([_LIBRARY] if _LIBRARY else [])
    ),
)
