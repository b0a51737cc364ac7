"""Runs programs under the hooks, as `ioprof record` would, and reads what they recorded."""

import importlib.util
import os
import subprocess
import sys
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Final

import polars as pl
from repository import ROOT

from ioprof.format.trace import Trace
from ioprof.ingest import read_spool

JOB_PYTHON: Final = os.environ.get("IOPROF_JOB_PYTHON", sys.executable)
"""The Python that recorded programs run under; `make compat` sets it to that of another
environment."""
SITE: Final = ROOT / "ioprof" / "instrument" / "site"


@cache
def job_has(module: str) -> bool:
    """Whether recorded programs can import a module."""
    if JOB_PYTHON == sys.executable:
        with suppress(ModuleNotFoundError):  # of its package
            return importlib.util.find_spec(module) is not None
        return False
    program = f"import importlib.util, sys; sys.exit(importlib.util.find_spec({module!r}) is None)"
    return (
        subprocess.run([JOB_PYTHON, "-c", program], capture_output=True, check=False).returncode
        == 0
    )


def environment(spool: Path | None, **more: str) -> dict[str, str]:
    """What a process of a job gets; without a spool it is no job of ioprof's."""
    left_out = {"PYTHONPATH", "IOPROF_SPOOL", "IOPROF_HOOKS", "RANK", "SLURM_PROCID"}
    kept = {name: value for name, value in os.environ.items() if name not in left_out}
    hooked = (
        {"IOPROF_SPOOL": str(spool), "PYTHONPATH": str(SITE), "IOPROF_DEBUG": "1"} if spool else {}
    )
    return {**kept, **hooked, "OMP_NUM_THREADS": "1", **more}


def start(
    arguments: list[object], spool: Path | None, executable: str = JOB_PYTHON, **more: str
) -> "subprocess.Popen[str]":
    """Start a Python program, its output kept; `more` are variables of its environment."""
    if spool:
        spool.mkdir(exist_ok=True)
    command = [executable, *map(str, arguments)]
    return subprocess.Popen(
        command,
        env=environment(spool, **more),
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        stdin=subprocess.DEVNULL,
    )


def finish(process: "subprocess.Popen[str]", code: int = 0) -> str:
    """What a program wrote, on both streams, when it has ended with `code`."""
    out, err = process.communicate(timeout=120)
    assert code == process.returncode, out + err
    return out + err


def run(
    arguments: list[object],
    spool: Path | None,
    code: int = 0,
    executable: str = JOB_PYTHON,
    **more: str,
) -> str:
    """Run a Python program to its end; what it wrote."""
    return finish(start(arguments, spool, executable, **more), code)


def recorded(spool: Path) -> Trace:
    """What the processes of a job recorded; nothing of it is damaged, and no hook failed to find
    what it observes."""
    trace = read_spool(spool)
    assert () == trace.run.capture.damaged
    assert [] == [
        line
        for path in spool.glob("facts-*.jsonl")
        for line in path.read_text().splitlines()
        if "unobserved" in line
    ]
    return trace


def of_kind(trace: Trace, kind: str) -> pl.DataFrame:
    """The spans of a kind, in the order of their starts."""
    return trace.spans.filter(pl.col("kind") == kind).sort("start_ns")
