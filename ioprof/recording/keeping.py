"""Keeps the last minutes of a recording and the sums of all of it (`ioprof record --keep`), while
the job goes on.

A thread of the process that records looks at the capture files from time to time, adds up what is
older than the window, and makes holes where it was (`ingest/dropping.py`). The job's processes do
nothing for it.
"""

import os
import re
import tempfile
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

from ioprof import clock
from ioprof.errors import CommandError
from ioprof.files import read_regular_file
from ioprof.instrument.host import host

if TYPE_CHECKING:
    import numpy as np

    from ioprof.ingest.appended_files import AppendedFile
    from ioprof.ingest.dropping import FileDropper
    from ioprof.ingest.kept_state import KeptState

SHORTEST_S: Final = 5.0
"""A window must have some steps, and `ioprof watch`, which looks every 5 s, must see spans before
they are dropped."""
LONGEST_S: Final = 30 * 86400.0
_UNITS: Final = {"s": 1, "m": 60, "min": 60, "h": 3600, "d": 86400}
_EXAMPLE: Final = "type it as --keep 10m (s, m, h or d)"
_NICE: Final = 10
_SLOWEST_S: Final = 5.0


def parse_keep(text: str) -> int:
    """Nanoseconds of a text such as `30s`, `10m`, `1.5h`. Raises `CommandError` for others, and if
    it is too short or long.
    """
    seconds = seconds_of(text)
    if seconds is None:
        raise CommandError(f"--keep {_shown(text)}: not a length of time; {_EXAMPLE}")
    if seconds < SHORTEST_S:
        raise CommandError(
            f"--keep {_shown(text)}: too short to see steps in; give {SHORTEST_S:.0f}s or more,"
            " such as 10m"
        )
    if seconds > LONGEST_S:
        raise CommandError(
            f"--keep {_shown(text)}: more than 30 days; leave --keep out to keep all"
        )
    return round(seconds * 1e9)


def seconds_of(text: str) -> float | None:
    """Of a length of time such as `30s`, `10m`, `1.5h`, `7d`; None: it is none."""
    match = re.fullmatch(r"\s*(\d{1,9}(?:\.\d{1,9})?)\s*([a-z]+)\s*", text, re.ASCII)
    return float(match[1]) * _UNITS[match[2]] if match and match[2] in _UNITS else None


def _shown(text: str) -> str:
    return text if len(text) <= 40 and text.isprintable() else ascii(text[:40])


def check_keeping() -> None:
    """Raise `CommandError` where nothing can be dropped while a job runs."""
    from ioprof.files import punch_hole

    with tempfile.TemporaryFile(prefix="ioprof-") as file:
        try:
            file.write(bytes(8192))
            file.flush()
            punch_hole(file.fileno(), 0, 4096)
        except OSError as error:
            what = (
                f"the file system of {tempfile.gettempdir()} cannot free parts of a file"
                f" ({error.strerror})"
            )
            raise CommandError(
                f"--keep: {what}; set TMPDIR to a folder on ext4, xfs, btrfs or tmpfs"
            ) from None


class Keeper:
    """Bounds the spool of a recording between `start` and `stop`."""

    def __init__(self, spool: Path, keep_ns: int) -> None:
        from ioprof.ingest.kept_state import KeptState

        self._spool = spool
        self._state = KeptState(
            host=host(), wall_offset_ns=clock.anchor().offset_ns, keep_ns=keep_ns
        )
        self._droppers: dict[str, FileDropper] = {}
        self._appended: dict[str, AppendedFile] = {}
        self._every_s = min(_SLOWEST_S, keep_ns / 1e9 / 10)
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="ioprof-keep", daemon=True)
        self.errors: list[str] = []
        """Why nothing was dropped at some time, such as a full disk; each once."""

    def start(self) -> "Keeper":
        """Begin. Raises OSError if the spool cannot be written to."""
        self._state.save(self._spool)
        self._thread.start()
        return self

    def stop(self, end_ns: int) -> None:
        """End; the window ends at `end_ns`."""
        self._ended.set()
        self._thread.join()
        self._state.end_ns = end_ns
        try:
            self._state.save(self._spool)
        except OSError as error:
            self._note(error)

    def _run(self) -> None:
        with suppress(OSError, AttributeError):  # of this thread alone (man 2 setpriority)
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICE)
        while not self._ended.wait(self._every_s):
            try:
                self.drop_old(clock.monotonic_ns())
            except OSError as error:
                self._note(error)

    def _note(self, error: OSError) -> None:
        if (text := error.strerror or str(error)) not in self.errors:
            self.errors.append(text)

    def drop_old(self, now_ns: int) -> None:
        """Drop what was over before the window that ends now."""
        from ioprof.ingest.kept_state import locked

        before_ns = now_ns - (self._state.keep_ns or 0)
        with locked(self._spool, wait=False) as is_locked:
            if is_locked:
                self._drop_before(before_ns, now_ns)
                _drop_gpu_windows(self._spool, before_ns, now_ns)

    def _drop_before(self, before_ns: int, now_ns: int) -> None:
        state, due = self._state, self._old_samples(before_ns, now_ns)
        planned = bool(due)
        for path in sorted(self._spool.glob("*.ring")):
            dropper = self._droppers.get(path.name)
            if dropper is None:
                from ioprof.ingest.dropping import FileDropper

                dropper = self._droppers[path.name] = FileDropper(path)
            shift_ns = _shift_ns(path, state)
            if shift_ns is None:
                continue
            if dropper.plan(before_ns - shift_ns, state.sums):
                planned = True
                state.done[path.name] = dropper.done
            planned |= self._plan_removal(path, dropper, before_ns - shift_ns)
        if not planned:
            return
        state.dropped_until_ns = before_ns
        state.save(self._spool)
        for dropper in self._droppers.values():
            dropper.carry_out()
        for name in state.removing:
            (self._spool / name).unlink(missing_ok=True)
            self._droppers.pop(name, None)
            state.done.pop(name, None)
            self._appended.pop(name, None)
        state.removing = []
        for file in due:
            try:
                file.drop()
            except OSError as error:  # nothing is dropped, and the others are as before
                self._note(error)

    def _old_samples(self, before_ns: int, now_ns: int) -> "list[AppendedFile]":
        """The files of samples and page faults that have enough from before the window."""
        from ioprof.ingest.appended_files import AppendedFile
        from ioprof.ingest.sidecar_files import FOLDS

        for pattern, (fold, header_bytes) in FOLDS.items():
            for path in self._spool.glob(pattern):
                self._appended.setdefault(path.name, AppendedFile(path, fold, header_bytes))
        return [file for file in self._appended.values() if file.look(now_ns, before_ns)]

    def _plan_removal(self, path: Path, dropper: "FileDropper", before_ns: int) -> bool:
        """Whether the file is of a process that had ended before, so that only its sums stay."""
        from ioprof.ingest.dropping import file_header
        from ioprof.ingest.job_sums import JobSums

        header = file_header(path)
        if (
            header is None
            or dropper.num_pending
            or not (header["closed"] or _has_ended(header, self._state.host))
        ):
            return False
        sums = JobSums()
        last_ns = dropper.sum_all(sums)
        changed_ns = _changed_ns(path)  # of a process without spans
        if max(last_ns or 0, changed_ns if last_ns is None else 0) >= before_ns:
            return False
        process = path.stem.rpartition("-")[0]
        others = {each.name for each in self._spool.glob(f"{process}-*.ring")} - {
            path.name,
            *self._state.removing,
        }
        own = [] if others else _own_files(self._spool, process)
        if any(_changed_ns(each) >= before_ns for each in own):
            return False
        self._state.sums.merge(sums)
        self._state.removing += [path.name, *(each.name for each in own)]
        self._state.removed += not others
        self._state.lost += min(int(header["lost"]), 1 << 40)
        return True


def _changed_ns(path: Path) -> int:
    """When the file was last written to, CLOCK_MONOTONIC; 0: it has gone."""
    try:
        return clock.monotonic_ns() - (time.time_ns() - path.stat().st_mtime_ns)
    except OSError:
        return 0


def _own_files(spool: Path, process: str) -> list[Path]:
    """The other files of a process that has ended, unless they say something of all of the job;
    `process` is host and id.
    """
    from ioprof.ingest.appended_files import KEPT_SUFFIX
    from ioprof.ingest.process_cpus import THREAD_POOLS

    series, facts = spool / f"counters-{process}.jsonl", spool / f"facts-{process}.jsonl"
    found = [
        each for each in (series, series.with_name(series.name + KEPT_SUFFIX)) if each.exists()
    ]
    with suppress(OSError):
        if all(THREAD_POOLS.encode() in line for line in read_regular_file(facts).splitlines()):
            found.append(facts)
    return found


def _shift_ns(path: Path, state: "KeptState") -> int | None:
    from ioprof.ingest.dropping import file_header
    from ioprof.ingest.untrusted_values import anchor_of, text

    header = file_header(path)
    return (
        None if header is None else state.shift_ns(text(bytes(header["host"])), anchor_of(header))
    )


def _has_ended(header: "np.void", own_host: str) -> bool:
    """Whether the process of a capture file's header ran on this host and is gone."""
    from ioprof.ingest.untrusted_values import text

    return (
        text(bytes(header["host"])) == own_host and not Path(f"/proc/{int(header['pid'])}").exists()
    )


def _drop_gpu_windows(spool: Path, before_ns: int, now_ns: int) -> None:
    """Remove the files of GPU windows that were written before."""
    oldest_ns = time.time_ns() - (now_ns - before_ns)
    for path in spool.glob("kineto-*"):
        with suppress(OSError):
            if path.stat().st_mtime_ns < oldest_ns:
                path.unlink()


def may_repeat_drops(spool: Path) -> bool:
    """Whether `repeat_drops` would change files of the spool."""
    from ioprof.ingest.kept_state import KeptState

    state = KeptState.load(spool)
    return state is not None and bool(state.removing or state.done)


def repeat_drops(spool: Path) -> None:
    """After a kill: drop again what is in the sums, so that nothing is counted twice."""
    from ioprof.ingest.dropping import FileDropper
    from ioprof.ingest.kept_state import KeptState

    state = KeptState.load(spool)
    if state is None:
        return
    for name in state.removing:
        if name.endswith(".ring"):
            (spool / name).unlink(missing_ok=True)
    for name, done in state.done.items():
        if "/" not in name and name not in state.removing:
            FileDropper(spool / name, done).repeat()
