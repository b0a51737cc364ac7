"""Programs run under the capture library, and what it told of them."""

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any, Final

import polars as pl
import pytest
from captures import PROGRAMS
from repository import ROOT

import ioprof
from ioprof.spool import read_spool
from ioprof.trace import Trace

LIBRARY: Final = Path(ioprof.__file__).with_name("_capture.so")
NATIVE: Final = ROOT / "ioprof" / "native"

needs_library = pytest.mark.skipif(not LIBRARY.exists(), reason="the capture library is not built: no C compiler")


def environment(spool: Path, **changes: str) -> dict[str, str]:
    """What a job's processes get, beside what the tests themselves have."""
    spool.mkdir(exist_ok=True)
    return {**os.environ, "IOPROF_SPOOL": str(spool), "LD_PRELOAD": str(LIBRARY), **changes}


def run_captured(spool: Path, *command: object, **changes: str) -> str:
    """What a command prints that runs under the library; it must end well."""
    words = [str(word) for word in command]
    ended = subprocess.run(words, env=environment(spool, **changes), capture_output=True, text=True, timeout=120, errors="replace")
    assert (0, "") == (ended.returncode, ended.stderr), ended.stdout + ended.stderr
    return ended.stdout


def run_python(spool: Path, program: str, *arguments: object, **changes: str) -> str:
    """The same for a Python program, or one of `tests/programs`."""
    words = [str(PROGRAMS / program)] if program.endswith(".py") else ["-c", program]
    return run_captured(spool, sys.executable, *words, *arguments, **changes)


def captured(spool: Path) -> Trace:
    """What the library told, of which nothing may be damaged."""
    trace = read_spool(spool, {})
    assert [] == trace.run["capture"]["damaged"]
    return trace


def reads_of(trace: Trace, path: Path | str) -> pl.DataFrame:
    """The reads of one file, in the order of their offsets."""
    named = trace.spans.join(trace.files, on="file").filter(pl.col("kind") == "read", pl.col("path") == str(path))
    return named.sort("offset", "start_ns")


def bytes_by_source(reads: pl.DataFrame) -> dict[str, int]:
    """How many bytes came from where."""
    return dict(reads.group_by(pl.col("source").cast(pl.String)).agg(pl.col("bytes").sum()).rows())


def seen_ratio(process: dict[str, Any]) -> float:
    """The part of what the kernel says a process read that the library saw; 1 where it read nothing."""
    reads = process["reads"]
    assert reads["io_rchar"] is not None
    return reads["seen_bytes"] / reads["io_rchar"] if reads["io_rchar"] else 1.0


def compiled(source: str, program: Path, *options: str) -> Path:
    """A C program of `tests/programs`; skips where it cannot be built."""
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler")
    words = [compiler, "-std=gnu11", "-O1", "-g", "-Wall", "-Wextra", "-Werror", "-pthread", PROGRAMS / source, *options]
    built = subprocess.run([*words, "-o", program, "-ldl"], capture_output=True, text=True)
    if built.returncode and "cannot find" in built.stderr:
        pytest.skip(f"the C compiler lacks a library for: {' '.join(options)}")
    assert (0, "") == (built.returncode, built.stderr)
    return program
