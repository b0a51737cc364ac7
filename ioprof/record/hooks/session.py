"""The recording of this process as the hooks see it: where it goes, who this is, and what a forked child makes of it."""

import os
import sys
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from ioprof.errors import CaptureError
from ioprof.record import recorder
from ioprof.record.hooks import observers
from ioprof.record.host import host
from ioprof.record.identity import Identity


class Here:
    """What the hooks know of one thread.

    One plain object for all of them: an attribute of a `threading.local` is a search through dictionaries each time, and what is
    called for every sample finds none of those in the processor's caches when it comes back from a decoder.
    """

    __slots__ = ("batch", "decoding", "fetching", "nested", "number")

    def __init__(self) -> None:
        self.number = -1
        """Of the batch that it is about to make, -1 where that is not known."""
        self.fetching = False
        """It is making a batch."""
        self.batch = -1
        """The number of that batch, -1 where that is not known, or it makes none."""
        self.nested = False
        """Another loader works within the making of that batch."""
        self.decoding = False
        """It is within an observed decoder."""

    def begin_batch(self, number: int) -> None:
        """From now on it makes a batch; -1: of unknown number."""
        self.fetching, self.batch = True, number
        observers.makes(number)

    def end_batch(self) -> None:
        """It makes none any more."""
        self.fetching, self.batch = False, -1
        observers.makes(-1)


class _OfThread(threading.local):
    def __init__(self) -> None:
        self.here = Here()


class Session:
    """One per process.

    A child that multiprocessing forked records from its start; one of a bare `os.fork`, which may only be about to become another
    program, from its first span on, by `wake`.
    """

    def __init__(self) -> None:
        self.is_on = False
        """Whether the hooks of this process emit spans."""
        self.asleep = False
        """This is a forked child that has not begun to record."""
        self.spool = Path()
        self.who = Identity()
        self.thread = _OfThread()
        self._window: str | None = None
        self._environment: dict[str, str] = {}
        self._anew: list[Callable[[], None]] = []
        self._told: set[str] = set()
        self._follows_forks = False

    def begin(self, spool: Path, window: str | None, environment: Mapping[str, str]) -> None:
        """Record this process into `spool`, and its GPU in windows, None for the usual ones, see `gpu`; raises `CaptureError`."""
        self.spool, self.who = spool, Identity.of(environment)
        self._window, self._environment = window, dict(environment)
        self._record()
        self._forget()
        if not self._follows_forks:
            self._follows_forks = True
            os.register_at_fork(after_in_child=self._in_child)

    def end(self) -> None:
        """Stop recording this process."""
        gpu = sys.modules.get("ioprof.record.gpu")
        if gpu is not None:
            gpu.stop()
        recorder.stop()
        self._is(on=False)

    def wake(self) -> None:
        """Begin the recording of a forked child, if this is one that has not."""
        if self.asleep:
            self._is(on=False)
            with suppress(CaptureError):  # the spool is full or gone; the child goes on unrecorded
                self._record()

    def train(self) -> None:
        """From now on it is known that this process trains, or consumes batches."""
        if self.who.role != "other":
            return
        self.who.train(self.spool)
        from ioprof.record import gpu  # most processes of a job do not train, and need not load it

        with suppress(CaptureError):  # a window that cannot be understood; the launcher has refused it already
            gpu.start(self.spool, self._window or gpu.DEFAULT_WINDOW, rank=self.who.rank, environment=self._environment)

    def renew(self, function: Callable[[], None]) -> None:
        """Call `function` when a recording begins, and in forked children: to forget what was the parent's, or an earlier one's."""
        self._anew.append(function)

    def tell(self, **facts: Any) -> None:
        """Leave facts about the job that no span can carry in a file of the spool, one object per line, each once."""
        import json

        line = json.dumps(facts, sort_keys=True, default=str)
        if line in self._told or len(self._told) > 1000:
            return
        self._told.add(line)
        try:
            with open(self.spool / f"facts-{host()}-{os.getpid()}.jsonl", "a", encoding="utf-8") as file:
                file.write(line + "\n")
        except OSError:  # the report will miss them
            pass

    def _record(self) -> None:
        if not recorder.is_recording():
            recorder.start(self.spool, rank=self.who.rank, role=self.who.role, worker=self.who.worker)
        self.who.publish()
        self._is(on=True)

    def _in_child(self) -> None:
        if not self.is_on:
            return
        self._is(on=True, asleep=True)
        self.who = Identity(self.who.rank, self.who.source)
        self._forget()

    def _is(self, on: bool, asleep: bool = False) -> None:
        self.is_on, self.asleep = on, asleep
        observers.watch(on, asleep, self.wake)

    def _forget(self) -> None:
        self.thread = _OfThread()
        observers.forget()
        self._told = set()
        for function in self._anew:
            function()


session = Session()
