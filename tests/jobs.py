"""Runs `ioprof` as a user does: as a program, in its own process."""

import io
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout, suppress
from dataclasses import dataclass
from pathlib import Path
from unittest.mock import patch

import numpy as np
import psutil
from temporary import temporary_folder

from ioprof.cli import main
from ioprof.format.layout import FILE_HEADER_DTYPE
from ioprof.format.schema import ROLES


@dataclass(frozen=True)
class Finished:
    """How a command ended."""

    code: int
    out: str
    err: str


def ioprof(*arguments: object, cwd: Path, **options: object) -> Finished:
    """Run a command to its end; its temporary files go under `cwd`."""
    with started(*arguments, cwd=cwd, **options) as process:
        out, err = process.communicate(timeout=240)
    return Finished(process.returncode, out, err)


def report_of(folder: Path) -> str:
    """What `ioprof report --full` prints of a run, on one line. The command is called here: a
    process of its own would import all that this one has, which takes longer than the report."""
    said = io.StringIO()
    with redirect_stdout(said), patch.dict(os.environ, COLUMNS="100"):
        assert 0 == main(["report", "--full", str(folder)])
    return " ".join(said.getvalue().split())


def whole_report(finished: Finished, cwd: Path) -> str:
    """What a command printed, and the whole report of its run, `run` in `cwd`, on one line."""
    return f"{' '.join(finished.out.split())} {report_of(cwd / 'run')}"


def start(
    *arguments: object, cwd: Path, program: Path | None = None, **options: object
) -> "subprocess.Popen[str]":
    """Start a command, or a program that stands for `ioprof`, and return its process; `options` are
    those of Popen."""
    temporary = temporary_folder(cwd / "tmp")
    environment = {
        **os.environ,
        "TMPDIR": str(temporary),
        "COLUMNS": "100",
        "XDG_CACHE_HOME": str(_cache(cwd)),
    }
    usual = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    command = [
        sys.executable,
        *([str(program)] if program else ["-m", "ioprof"]),
        *map(str, arguments),
    ]
    return subprocess.Popen(command, cwd=cwd, env=environment, text=True, **{**usual, **options})  # type: ignore[call-overload]


def _cache(cwd: Path) -> Path:
    """A cache folder of its own, with the costs of recording that were measured on this machine."""
    folder = cwd / "cache" / "ioprof"
    for path in (Path.home() / ".cache" / "ioprof").glob("costs-*.json"):
        folder.mkdir(parents=True, exist_ok=True)
        shutil.copy(path, folder)
    return folder.parent


@contextmanager
def running(
    *arguments: object, cwd: Path, steps: int, **options: object
) -> Iterator["subprocess.Popen[str]"]:
    """A `run` that has made `steps` steps and goes on."""
    with started(*arguments, cwd=cwd, **options) as process:
        wait_until(lambda: steps_made(cwd) >= steps or process.poll() is not None)
        yield process


@contextmanager
def started(*arguments: object, cwd: Path, **options: object) -> Iterator["subprocess.Popen[str]"]:
    """A command under way, which is ended with the block, its job too, if it has not ended by
    itself."""
    process = start(*arguments, cwd=cwd, **options)
    try:
        yield process
    finally:
        if process.poll() is None:
            for each in psutil.Process(process.pid).children(recursive=True):
                with suppress(psutil.NoSuchProcess):
                    each.kill()
            process.kill()
        process.communicate()


def wait_until(condition: object, seconds: float = 120) -> None:
    """Poll until `condition()`; fail the test if that takes too long."""
    deadline = time.monotonic() + seconds
    while not condition():  # type: ignore[operator]
        assert time.monotonic() < deadline, "waited too long"
        time.sleep(0.05)


def steps_made(cwd: Path) -> int:
    """Steps that rank 0 of the job under way has made."""
    return max((path.stat().st_size for path in cwd.glob("tmp/ioprof-*/progress")), default=0)


def recorded_processes(cwd: Path) -> dict[tuple[str, int, int], int]:
    """Process id of each (role, rank, worker) that records into the spool of the job under way."""
    found = {}
    for path in cwd.glob("tmp/ioprof-*/*.ring"):
        header = np.frombuffer(path.read_bytes()[: FILE_HEADER_DTYPE.itemsize], FILE_HEADER_DTYPE)[
            0
        ]
        found[ROLES[header["role"]], int(header["rank"]), int(header["worker"])] = int(
            header["pid"]
        )
    return found


def alive(pid: int) -> bool:
    """Whether a process runs (a zombie does not)."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False
