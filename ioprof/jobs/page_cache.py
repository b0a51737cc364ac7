"""The page cache before the built-in job: brought into the state that is asked for, and proven by
residency.
"""

import json
import os
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from ioprof.errors import CommandError
from ioprof.format.dataset import Dataset
from ioprof.format.run_record import PageCacheRecord, ResidencyRecord
from ioprof.jobs.memory_limit import MemoryLimit
from ioprof.reporter import Reporter, in_megabytes, megabytes, stoppable
from ioprof.storage import describe
from ioprof.storage.lower_files import LowerFiles, evict_devices, lower_files
from ioprof.storage.residency import (
    Residency,
    evict,
    mapping_processes,
    proactive_reclaim,
    residency,
    warm,
)

_STAYED_RATIO: Final = 0.01
_WARM: Final = (
    "import json, sys; from ioprof.storage.residency import warm; warm(json.load(sys.stdin))"
)
_SHOWN: Final = 3


def _record_of(found: Residency) -> ResidencyRecord:
    return ResidencyRecord.of(found.facts())


def check_cache_state(cache: str | None, dataset: Dataset | None, limited: bool) -> str | None:
    """The state of the page cache to start with; raises `CommandError`. A memory limit needs a cold
    one: see `storage.limits`.
    """
    if cache is not None and dataset is None:
        raise CommandError(
            f"--cache {cache} is about a dataset's files, and --loader null reads none; leave"
            " it out"
        )
    return cache or ("cold" if limited and dataset else None)


class PageCache:
    """The page cache of a job's dataset; `state` is one of `options.CACHE_STATES`, or None: not
    looked at.
    """

    def __init__(
        self, state: str | None, reporter: Reporter, num_interrupts: Callable[[], int]
    ) -> None:
        self._state, self._reporter, self._num_interrupts = state, reporter, num_interrupts
        self._record: PageCacheRecord | None = None

    def record(self) -> PageCacheRecord | None:
        """For run.json, complete when the block of `prepare` has ended; None where the page cache
        was not looked at.
        """
        return self._record

    @contextmanager
    def prepare(self, dataset: Dataset | None, limit: MemoryLimit, spool: Path) -> Iterator[None]:
        """Bring the dataset's files into the state, or out of it; look at them again when the block
        ends.
        """
        if self._state is None or dataset is None:
            yield
            return
        paths = dataset.data_files()
        storage, before = describe(dataset.path), _record_of(residency(paths))
        start = self._bring_into_state(paths, limit, spool)
        below = lower_files(storage)
        lower = self._lower_state(below)
        holders: list[str] = []
        if self._state == "cold" and (start.ratio or 0) > _STAYED_RATIO:
            holders = [
                f"{command} (pid {pid})" for pid, command in mapping_processes(paths).items()
            ][:_SHOWN]
        reclaim = proactive_reclaim()
        found = PageCacheRecord(
            asked=self._state,
            kind=storage.kind,
            before=before,
            start=_record_of(start),
            held_by=tuple(holders),
            reclaim=reclaim,
            lower=_record_of(lower) if lower else None,
            hidden_lower=below.hidden,
        )
        self._record = found
        self._report(start, holders, reclaim)
        if self._state == "cold":
            self._report_below(lower, below)
        yield
        with suppress(CommandError):  # a file was removed meanwhile: no reason to lose the run
            self._record = found.replace(end=_record_of(residency(paths)))

    def _bring_into_state(self, paths: list[str], limit: MemoryLimit, spool: Path) -> Residency:
        if self._state == "as-is":
            return residency(paths)
        num_bytes = sum(os.stat(path).st_size for path in paths)
        if self._state == "cold" or limit.asked_bytes is None:
            what, act = ("evict", evict) if self._state == "cold" else ("warm", warm)
            with self._reporter.progress(f"{what}, MB", megabytes(num_bytes)) as advance:
                return act(paths, stoppable(in_megabytes(advance), self._num_interrupts))
        # A page is charged to the group that reads it first: read by this process, it would not
        # count against the limit.
        evict(paths)
        self._reporter.say(f"warm: reading {num_bytes / 1e6:.1f} MB under the memory limit")
        command = limit.command(spool, "-c", _WARM)
        ended = subprocess.run(
            command, input=json.dumps(paths), text=True, capture_output=True, check=False
        )
        if ended.returncode:
            why = ended.stderr.strip().splitlines()[-1:] or [f"exit code {ended.returncode}"]
            raise CommandError(
                "--cache warm: the files could not be read under the memory limit"
                f" ({why[0][:200]}); give a larger one",
                1,
            )
        return residency(paths)

    def _lower_state(self, below: LowerFiles) -> Residency | None:
        """What is cached of the files below the file system; evicted before, where the dataset is
        to be cold.
        """
        if not below.files:
            return None
        if self._state != "cold":
            return residency(below.files)
        evict_devices(below.devices)
        return evict(below.files)

    def _report_below(self, lower: Residency | None, below: LowerFiles) -> None:
        what = f"{', '.join(below.files[:_SHOWN])}, which the dataset's file system lies on"
        if lower is not None and lower.ratio is None:
            self._reporter.say(f"page cache: cold is not proven of {what}: {lower.reason}")
        elif lower is not None and (lower.ratio or 0) > _STAYED_RATIO:
            self._reporter.say(
                f"page cache: {lower.ratio:.1%} of {what}, stayed in memory; the run is not cold"
            )
        for hidden in below.hidden[:_SHOWN]:
            self._reporter.say(
                "page cache: cold is not proven: the dataset's file system lies on a hidden file:"
                f" {hidden}"
            )

    def _report(self, start: Residency, holders: list[str], reclaim: str | None) -> None:
        say = self._reporter.say
        if start.ratio is None:
            say(f"page cache: {self._state} is not proven: {start.reason}")
        elif self._state == "cold" and start.ratio > _STAYED_RATIO:
            why = (
                f"mapped by {', '.join(holders)}"
                if holders
                else "a file system in memory, or pages that are locked or in use"
            )
            say(
                f"page cache: {start.ratio:.1%} of the files stayed in memory ({why}); the run is"
                " not cold"
            )
        elif self._state == "warm" and start.ratio < 1 - _STAYED_RATIO:
            say(
                f"page cache: only {start.ratio:.1%} of the files are in memory: there is no room"
                " for more; the run is not warm"
            )
        if self._state == "warm" and reclaim:
            say(f"page cache: {reclaim}: what the job does not read soon will not stay warm")
