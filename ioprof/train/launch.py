"""Starts the ranks of the built-in job through torchrun's elastic launcher, watches them, and ends them all."""

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from ioprof.train.config import JobConfig

_PATIENCE_S: Final = 15
"""How long the ranks get to stop by themselves after Ctrl-C before they are killed."""
_POLL_S: Final = 0.2


@dataclass(frozen=True)
class Outcome:
    """How a job ended."""

    status: str
    """`complete`, `interrupted` or `failed`."""
    failures: tuple[dict[str, Any], ...]
    """`{"rank", "what"}` for each rank that failed, the likely cause first; ranks that were only told to stop are not listed."""


def launch(config: JobConfig, log: Path, advance: Callable[[int], None]) -> Outcome:
    """Run the job and say how it ended; all its output goes to `log`, `advance(steps)` is called as steps are done.

    A KeyboardInterrupt while it runs ends all ranks and gives `interrupted`; a second one kills them at once.
    """
    config_path = config.spool / "config.json"
    config.save(config_path)
    with open(log, "ab") as output:
        launcher = subprocess.Popen(
            [
                *(sys.executable, "-m", "ioprof.train.torchrun", "--standalone", "--nproc-per-node", str(config.ranks)),
                *("--shutdown-timeout", str(_PATIENCE_S), "-m", "ioprof.train.job", str(config_path)),
            ],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # a terminal's Ctrl-C reaches us alone, and we pass it on once
            env={**os.environ, "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1")},
        )
    interrupted = _watch(launcher, config.spool / "progress", advance)
    failures = _failures(config, log)
    if interrupted:
        return Outcome("interrupted", failures)
    return Outcome("complete" if launcher.returncode == 0 else "failed", failures)


def _watch(launcher: "subprocess.Popen[bytes]", progress: Path, advance: Callable[[int], None]) -> bool:
    """Wait for the launcher's end; True if that was asked for by Ctrl-C or SIGTERM."""
    done = 0
    previous = signal.signal(signal.SIGTERM, signal.default_int_handler)  # a scheduler's SIGTERM ends the job as Ctrl-C does
    try:
        while True:
            try:
                launcher.wait(timeout=_POLL_S)
                return False
            except subprocess.TimeoutExpired:
                steps = progress.stat().st_size if progress.exists() else 0
                advance(steps - done)
                done = steps
    except KeyboardInterrupt:
        _end(launcher)
        return True
    finally:
        signal.signal(signal.SIGTERM, previous)


def _end(launcher: "subprocess.Popen[bytes]") -> None:
    launcher.send_signal(signal.SIGTERM)
    try:
        launcher.wait(timeout=_PATIENCE_S + 5)
    except (subprocess.TimeoutExpired, KeyboardInterrupt):
        launcher.kill()  # the ranks die with it, and their workers with them: see ioprof.process
        launcher.wait()


def _failures(config: JobConfig, log: Path) -> tuple[dict[str, Any], ...]:
    signals = _signals_in_log(log)
    failures = []
    for rank in range(config.ranks):
        outcome = _outcome(config.spool, rank)
        if outcome is None and rank in signals:
            failures.append((0, {"rank": rank, "what": f"was killed by {signals[rank]}"}))
        elif outcome is None:
            failures.append((3, {"rank": rank, "what": "ended without saying why"}))
        elif outcome not in ("done", "stopped"):
            # Errors of the exchange are mostly the echo of another rank's end.
            echo = "gloo" in outcome.lower() or "Connection" in outcome
            failures.append((2 if echo else 1, {"rank": rank, "what": outcome}))
    return tuple(failure for _, failure in sorted(failures, key=lambda entry: entry[0]))


def _outcome(spool: Path, rank: int) -> str | None:
    try:
        return str(json.loads((spool / f"rank-{rank}.json").read_text())["outcome"])
    except (OSError, ValueError, KeyError):
        return None


def _signals_in_log(log: Path) -> dict[int, str]:
    """Ranks that torchrun saw killed, and by which signal, from the table it prints (`rank : 1 (...)`, `exitcode : -9 (...)`)."""
    text = log.read_text(errors="replace")
    found = re.findall(r"rank\s*:\s*(\d+) \(local_rank.*\n\s*exitcode\s*:\s*-(\d+)", text)
    return {int(rank): _signal_name(int(number)) for rank, number in found}


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
