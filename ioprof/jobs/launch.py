"""Starts the ranks of the built-in job on this host, watches them, and ends them all.

Each rank is a process of its own, with the variables that torchrun would give it. torchrun itself
is not used: it imports torch once more than the ranks do, before it starts them.
"""

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Final

from ioprof.errors import CommandError
from ioprof.format.run_record import Failure
from ioprof.jobs.failures import failures
from ioprof.jobs.tasks import local_variables
from ioprof.process import signal_name
from ioprof.reporter import Advance, note
from ioprof.train.config import JobConfig

_STOP_TIMEOUT_S: Final = 15
"""How long the ranks get to stop by themselves after Ctrl-C before they are killed."""
_POLL_S: Final = 0.05
_RECENT_STEPS: Final = 50
"""Of which the share of waiting is shown while the job runs."""
_FOLDER: Final = "ioprof-job-"
_SOCKET: Final = f"{_FOLDER}12345678/pymp-12345678/listener-12345678"
"""A socket of multiprocessing in the job's temporary folder: all names end in eight random
characters."""
_LONGEST_SOCKET_PATH_BYTES: Final = 107  # man 7 unix: 108, with the NUL at its end
_SHORT_FOLDERS: Final = (
    Path("/tmp"),  # noqa: S108 - a folder of our own is made in it
    Path("/dev/shm"),  # noqa: S108 - a folder of our own is made in it
)


@dataclass(frozen=True)
class Outcome:
    """How a job ended."""

    status: str
    """`complete`, `interrupted` or `failed`."""
    failures: tuple[Failure, ...]
    """One for each rank that failed, the likely cause first; ranks that stopped on request are not
    listed."""


def launch(
    config: JobConfig,
    log: Path,
    environment: Mapping[str, str],
    advance: Advance,
    num_interrupts: Callable[[], int],
    program: str = "ioprof.train.job",
) -> Outcome:
    """Run the job; all its output is appended to `log`, `advance(steps)` is called as steps are
    done.

    `num_interrupts()` is how often the user has asked for the end: 1 stops all ranks in order, and
    the outcome is `interrupted`; one more kills them. `program` is the module that each rank runs.
    """
    config_path = config.spool / "config.json"
    config.save(config_path)
    with temporary_folder(config.spool) as temporary, open(log, "ab") as output:
        ranks = _Ranks(program, _POLL_S)
        try:
            own = {"OMP_NUM_THREADS": "1", **environment, "TMPDIR": str(temporary)}
            for rank in config.own_ranks:
                ranks.start(
                    rank, config_path, {**own, **_variables(config, rank, environment)}, output
                )
            _watch(ranks, config.spool / "progress", advance, num_interrupts)
        finally:
            ranks.kill()
    if not any(ranks.codes.values()):
        return Outcome("complete", ())
    interrupted = num_interrupts() > 0
    found = failures(config, ranks.signals, interrupted=interrupted)
    return Outcome("interrupted" if interrupted else "failed", found)


def _variables(config: JobConfig, rank: int, environment: Mapping[str, str]) -> dict[str, str]:
    """What names a rank, as torchrun does it."""
    own = {"RANK": str(rank), "WORLD_SIZE": str(config.ranks)}
    if config.is_task:
        return {**own, "LOCAL_RANK": "0", **local_variables(environment)}
    return {**own, "LOCAL_RANK": str(rank), "LOCAL_WORLD_SIZE": str(config.ranks)}


class _Ranks:
    """The processes of the ranks."""

    def __init__(self, program: str, poll_s: float) -> None:
        self.codes: dict[int, int | None] = {}
        """Exit code by rank; None: it has not ended."""
        self.signals: dict[int, str] = {}
        """By which signal a rank was killed that was not stopped from here."""
        self._processes: dict[int, subprocess.Popen[bytes]] = {}
        self._is_stopping = False
        self._program, self._poll_s = program, poll_s

    def start(
        self, rank: int, config: Path, environment: Mapping[str, str], output: IO[bytes]
    ) -> None:
        """Start one rank."""
        self.codes[rank] = None
        self._processes[rank] = subprocess.Popen(
            [
                environment.get("PYTHON_EXEC", sys.executable),
                "-u",
                "-m",
                self._program,
                str(config),
                str(os.getpid()),
            ],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # a terminal's Ctrl-C reaches us alone, and we pass it on once
            env=dict(environment),
        )

    def have_ended(self) -> bool:
        """Whether all have ended, or one has failed; waits up to the time of a poll for it."""
        time.sleep(self._poll_s)
        for rank, process in self._processes.items():
            self.codes[rank] = code = process.poll()
            if code is not None and code < 0 and not self._is_stopping:
                self.signals[rank] = signal_name(-code)
        return all(code is not None for code in self.codes.values()) or (
            any(self.codes.values()) and not self._is_stopping
        )

    def stop(self) -> None:
        """Ask all to stop."""
        self._is_stopping = True
        for process in self._processes.values():
            process.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """Kill those that have not ended; their workers die with them: see ioprof.process."""
        self._is_stopping = True
        for rank, process in self._processes.items():
            if process.poll() is None:
                process.kill()
            self.codes[rank] = process.wait()


@contextmanager
def temporary_folder(spool: Path) -> Iterator[Path]:
    """A folder for what torch, its launcher and multiprocessing put into TMPDIR, removed when the
    block ends.

    It is in the spool, or where the paths of its sockets are short enough: with a longer one,
    torch's workers lose every batch that they send, and the job hangs.
    """
    for parent in (spool, *_SHORT_FOLDERS):
        if len(os.fsencode(parent / _SOCKET)) <= _LONGEST_SOCKET_PATH_BYTES and os.access(
            parent, os.W_OK | os.X_OK
        ):
            break
    else:
        message = (
            "too long a path for the sockets of the loader's workers, and nothing can be written in"
            " /tmp"
        )
        raise CommandError(
            f"{spool.parent}: {message}; set TMPDIR to a folder with a shorter one", 1
        )
    with tempfile.TemporaryDirectory(
        prefix=_FOLDER, dir=parent, ignore_cleanup_errors=True
    ) as made:
        yield Path(made)


def _bytes_from(path: Path, place: int) -> bytes:
    """What a file that grows has from this place on."""
    try:
        with open(path, "rb") as file:
            file.seek(place)
            return file.read()
    except FileNotFoundError:
        return b""


def _watch(
    ranks: _Ranks, progress: Path, advance: Advance, num_interrupts: Callable[[], int]
) -> None:
    """Return when all ranks have ended, have been stopped for the first that failed, or did not
    stop in time.
    """
    done, recent, has_ended = 0, b"", False
    note(advance, "starting workers")
    while not has_ended:
        has_ended = ranks.have_ended()
        waited = _bytes_from(progress, done)
        if waited:
            recent = (recent + waited)[-_RECENT_STEPS:]
            note(advance, f"waiting for batches {sum(recent) / 255 / len(recent):.0%} of the time")
        advance(len(waited))
        done += len(waited)
        if num_interrupts():
            break
    if all(code is not None for code in ranks.codes.values()):
        return
    ranks.stop()
    before, deadline = num_interrupts(), time.monotonic() + _STOP_TIMEOUT_S
    while not ranks.have_ended() and time.monotonic() < deadline and num_interrupts() == before:
        pass
