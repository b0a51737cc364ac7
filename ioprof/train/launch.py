"""Starts the ranks of the built-in job through torchrun's elastic launcher, watches them, and ends them all."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from ioprof.train.config import JobConfig
from ioprof.train.failures import failures

_PATIENCE_S: Final = 15
"""How long the ranks get to stop by themselves after Ctrl-C before they are killed."""
_POLL_S: Final = 0.2
_PATIENCE_POLLS: Final = round((_PATIENCE_S + 5) / _POLL_S)  # the launcher itself kills ranks that take longer
_SOCKET: Final = "pymp-12345678/listener-12345678"
"""What multiprocessing calls a socket, below TMPDIR: both names end in eight random characters."""
_LONGEST_SOCKET_PATH_BYTES: Final = 107  # man 7 unix: 108, with the NUL at its end


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
    with open(log, "ab") as output:
        launcher = subprocess.Popen(
            [
                *(sys.executable, "-m", "ioprof.train.torchrun", str(os.getpid())),
                *("--standalone", "--nproc-per-node", str(config.ranks), "--shutdown-timeout", str(_PATIENCE_S)),
                *("-m", "ioprof.train.job", str(config_path)),
            ],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # a terminal's Ctrl-C reaches us alone, and we pass it on once
            env=_environment(environment, config.spool),
        )
    try:
        _watch(launcher, config.spool / "progress", advance, interrupts)
    finally:
        _kill(launcher)
    if launcher.returncode == 0:
        return Outcome("complete", ())
    interrupted = interrupts() > 0
    return Outcome("interrupted" if interrupted else "failed", failures(config, log, interrupted=interrupted))


def socket_safe_folder(spool: Path) -> Path | None:
    """A new folder in the spool for the job's temporary files; None if sockets in it would have too long a path."""
    folder = spool / "tmp"
    if len(os.fsencode(folder / _SOCKET)) > _LONGEST_SOCKET_PATH_BYTES:
        return None
    folder.mkdir()
    return folder


def _environment(base: Mapping[str, str], spool: Path) -> dict[str, str]:
    """torch, its launcher and multiprocessing leave files in TMPDIR; there they go away with the spool."""
    temporary = socket_safe_folder(spool)
    changed = {"TMPDIR": str(temporary)} if temporary else {}
    return {"OMP_NUM_THREADS": "1", **base, **changed}


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
