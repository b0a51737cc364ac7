"""Programs run under the capture library, and what it recorded of them."""

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Final

import polars as pl
import pytest
from repository import NATIVE, PROGRAMS

import ioprof
from ioprof.format.run_record import ProcessRecord
from ioprof.format.trace import Trace
from ioprof.ingest import read_spool

LIBRARY: Final = Path(ioprof.__file__).with_name("_capture.so")

LIBRARY_HEADER_BYTES: Final = 832
"""What glibc's linker reads of each library that it loads (struct filebuf in elf/dl-load.c)."""

needs_library = pytest.mark.skipif(
    not LIBRARY.exists(), reason="the capture library is not built: no C compiler"
)


def hook_names() -> list[str]:
    """The functions that the library interposes, but vfork, whose hook is in assembly."""
    names = re.findall(
        r"^HOOK\([^,]+?, (\w+),", (NATIVE / "capture" / "hooks.h").read_text(), flags=re.MULTILINE
    )
    assert "read" in names
    return names


def environment(spool: Path, **changes: str) -> dict[str, str]:
    """The environment of a job's processes: that of the tests, and what loads the library."""
    spool.mkdir(exist_ok=True)
    return {**os.environ, "IOPROF_SPOOL": str(spool), "LD_PRELOAD": str(LIBRARY), **changes}


def run_captured(spool: Path, *command: object, **changes: str) -> str:
    """What a command prints that runs under the library; it must end well."""
    words = [str(word) for word in command]
    ended = subprocess.run(
        words,
        env=environment(spool, **changes),
        capture_output=True,
        text=True,
        timeout=120,
        errors="replace",
    )
    assert (0, "") == (ended.returncode, ended.stderr), ended.stdout + ended.stderr
    return ended.stdout


def run_python(spool: Path, program: str, *arguments: object, **changes: str) -> str:
    """The same for a Python program, or one of `tests/programs`."""
    words = [str(PROGRAMS / program)] if program.endswith(".py") else ["-c", program]
    return run_captured(spool, sys.executable, *words, *arguments, **changes)


def captured(spool: Path) -> Trace:
    """What the library recorded, of which nothing may be damaged."""
    trace = read_spool(spool)
    assert () == trace.run.capture.damaged
    return trace


def reads_of(trace: Trace, path: Path | str) -> pl.DataFrame:
    """The reads of one file, in the order of their offsets."""
    named = trace.spans.join(trace.files, on="file").filter(
        pl.col("kind") == "read", pl.col("path") == str(path)
    )
    return named.sort("offset", "start_ns")


def bytes_by_source(reads: pl.DataFrame) -> dict[str, int]:
    """How many bytes came from where."""
    return dict(reads.group_by(pl.col("source").cast(pl.String)).agg(pl.col("bytes").sum()).rows())


def check_counters(trace: Trace, *, libraries: int = 0) -> list[ProcessRecord]:
    """The processes, checked by their counters: bytes were seen, none was lost, and 99.9 % of what
    the kernel counted was seen.

    The headers of so many libraries may be missing anyhow, which the dynamic linker reads within
    itself. More than the kernel counted cannot have been seen, but for what the threads of a
    process that waits for children are reading at that moment.
    """
    processes = list(trace.run.processes)
    assert 0 < sum(process.reads.seen_bytes for process in processes)
    for process in processes:
        kernel, seen = process.reads.io_rchar, process.reads.seen_bytes
        assert 0 == process.lost, process
        assert (
            -kernel // 1000
            <= kernel - seen
            <= max(kernel // 1000, LIBRARY_HEADER_BYTES * libraries)
        ), process
    return processes
