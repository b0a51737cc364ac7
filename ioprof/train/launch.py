"""Starts the ranks of the built-in job through torchrun's elastic launcher, watches them, and ends them all."""

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from ioprof.errors import CommandError
from ioprof.train.config import JobConfig
from ioprof.train.failures import failures

_PATIENCE_S: Final = 15
"""How long the ranks get to stop by themselves after Ctrl-C before they are killed."""
_POLL_S: Final = 0.2
_PATIENCE_POLLS: Final = round((_PATIENCE_S + 5) / _POLL_S)  # the launcher itself kills ranks that take longer
_FOLDER: Final = "ioprof-job-"
_SOCKET: Final = f"{_FOLDER}12345678/pymp-12345678/listener-12345678"
"""What multiprocessing calls a socket in the job's temporary folder: all names end in eight random characters."""
_LONGEST_SOCKET_PATH_BYTES: Final = 107  # man 7 unix: 108, with the NUL at its end
_SHORT_FOLDERS: Final = (Path("/tmp"), Path("/dev/shm"))  # noqa: S108 - a folder of our own is made in it


@dataclass(frozen=True)
class Outcome:
    """How a job ended."""

    status: str
    """`complete`, `interrupted` or `failed`."""
    failures: tuple[dict[str, Any], ...]
    """`{"rank", "what"}` for each rank that failed, the likely cause first; ranks that were only told to stop are not listed."""


def launch(
    config: JobConfig, log: Path, environment: Mapping[str, str], advance: Callable[[int], None], interrupts: Callable[[], int]
) -> Outcome:
    """Run the job and say how it ended; all its output goes to `log`, `advance(steps)` is called as steps are done.

    `interrupts()` is how often somebody has asked for the end: once ends all ranks in order and gives `interrupted`, once more
    kills them.
    """
    config_path = config.spool / "config.json"
    config.save(config_path)
    command = [
        *(sys.executable, "-m", "ioprof.train.torchrun", str(os.getpid())),
        *("--standalone", "--nproc-per-node", str(config.ranks), "--shutdown-timeout", str(_PATIENCE_S)),
        *("-m", "ioprof.train.job", str(config_path)),
    ]
    with temporary_folder(config.spool) as temporary, open(log, "ab") as output:
        launcher = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # a terminal's Ctrl-C reaches us alone, and we pass it on once
            env={"OMP_NUM_THREADS": "1", **environment, "TMPDIR": str(temporary)},
        )
        try:
            _watch(launcher, config.spool / "progress", advance, interrupts)
        finally:
            _kill(launcher)
    if launcher.returncode == 0:
        return Outcome("complete", ())
    interrupted = interrupts() > 0
    return Outcome("interrupted" if interrupted else "failed", failures(config, log, interrupted=interrupted))


@contextmanager
def temporary_folder(spool: Path) -> Iterator[Path]:
    """A folder for what torch, its launcher and multiprocessing put into TMPDIR, gone with the block.

    It is in the spool, or where sockets in it have a path that is short enough: with a longer one, torch's workers lose
    every batch that they send, and the job waits for it without end.
    """
    for parent in (spool, *_SHORT_FOLDERS):
        if len(os.fsencode(parent / _SOCKET)) <= _LONGEST_SOCKET_PATH_BYTES and os.access(parent, os.W_OK | os.X_OK):
            break
    else:
        message = "too long a path for the sockets of the loader's workers, and nothing can be written in /tmp"
        raise CommandError(f"{spool.parent}: {message}; set TMPDIR to a folder with a shorter one", 1)
    with tempfile.TemporaryDirectory(prefix=_FOLDER, dir=parent, ignore_cleanup_errors=True) as made:
        yield Path(made)


def _watch(
    launcher: "subprocess.Popen[bytes]", progress: Path, advance: Callable[[int], None], interrupts: Callable[[], int]
) -> None:
    done = 0
    while not _has_ended(launcher):
        if interrupts():
            _end(launcher, interrupts)
            return
        steps = progress.stat().st_size if progress.exists() else 0
        advance(steps - done)
        done = steps


def _end(launcher: "subprocess.Popen[bytes]", interrupts: Callable[[], int]) -> None:
    """Have the launcher stop its ranks; return when it has, when patience ends, or when somebody insists."""
    launcher.send_signal(signal.SIGTERM)
    asked = interrupts()
    for _ in range(_PATIENCE_POLLS):
        if _has_ended(launcher) or interrupts() > asked:
            return


def _has_ended(launcher: "subprocess.Popen[bytes]") -> bool:
    """Whether the launcher has ended, which it gets a moment for."""
    try:
        launcher.wait(timeout=_POLL_S)
        return True
    except subprocess.TimeoutExpired:
        return False


def _kill(launcher: "subprocess.Popen[bytes]") -> None:
    if launcher.poll() is None:
        launcher.kill()  # the ranks die with it, and their workers with them: see ioprof.process
        launcher.wait()
