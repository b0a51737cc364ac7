"""What is done to storage and memory before the built-in job starts, and what is seen of them when it has ended."""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from ioprof.cli.console import Advance, progress, say
from ioprof.dataset import Dataset, read_index
from ioprof.errors import CommandError
from ioprof.storage import describe
from ioprof.storage.distinct import distinct
from ioprof.storage.limits import Group, Slice, memory_limit
from ioprof.storage.residency import Residency, evict, mapped_by, proactive_reclaim, residency, warm

if TYPE_CHECKING:
    from ioprof.cli.staged_job import StageOptions

CACHE_STATES: Final = ("cold", "warm", "as-is")
_STAYED_RATIO: Final = 0.01
_WARM: Final = "import json, sys; from ioprof.storage.residency import warm; warm(json.load(sys.stdin))"
_SHOWN: Final = 3
_MOST_FILES: Final = 100_000


@dataclass(frozen=True)
class Preparation:
    """What a run is asked to do about storage and memory."""

    cache: str | None = None
    """One of `CACHE_STATES`; None: not looked at."""
    memory_limit_bytes: int | None = None
    stage: "StageOptions | None" = None


def checked_cache(cache: str | None, dataset: Dataset | None, limited: bool) -> str | None:
    """The state of the page cache that is asked for; raises `CommandError`. A limit asks for a cold one: see `storage.limits`."""
    if cache is not None and cache not in CACHE_STATES:
        raise CommandError(f"--cache {cache!r}: choose one of {', '.join(CACHE_STATES)}")
    if cache is not None and dataset is None:
        raise CommandError(f"--cache {cache} is about a dataset's files, and --loader null reads none; leave it out")
    return cache or ("cold" if limited and dataset else None)


def dataset_files(dataset: Dataset) -> list[str]:
    """The files that a job on the dataset reads, in the order of their records."""
    if dataset.layout == "files":
        return [str(dataset.index_path), *(f"{dataset.path}/{path}" for path in read_index(dataset)[0])]
    return [str(path / "data.mdb" if dataset.layout == "lmdb" else path) for path in dataset.shard_paths()]


def own_place(dataset: Dataset | None) -> dict[str, Any] | None:
    """Whether the copies that a multiple of a dataset consists of have the disk to themselves; None where there are no copies."""
    if dataset is None or dataset.scale <= 1:
        return None
    found = distinct(dataset_files(dataset)[-_MOST_FILES:], describe(dataset.path).file_system or "")
    if found.shared_bytes:
        say(f"{dataset.path}: {found.shared_bytes / found.bytes:.0%} of the bytes share their place on the disk with others")
    elif found.reason:
        say(f"{dataset.path}: not known whether its copies are so many bytes on the disk: {found.reason}")
    return found.facts()


def in_megabytes(advance: Advance) -> Advance:
    """What a progress bar that counts megabytes is told of bytes."""
    left = 0

    def told(count: int = 1, /) -> None:
        nonlocal left
        left += count
        advance(left // 1_000_000)
        left %= 1_000_000

    return told


def stoppable(advance: Advance, interrupted: Callable[[], int]) -> Advance:
    """The same, except that it raises KeyboardInterrupt once somebody has asked for the end."""

    def told(count: int = 1, /) -> None:
        advance(count)
        if interrupted():
            raise KeyboardInterrupt

    return told


# ------------------------------------------------------------------------------------------------ memory


class Limit:
    """The memory limit of a job, if there is one."""

    def __init__(self, asked_bytes: int | None, limited: Group | Slice | None) -> None:
        self.asked_bytes = asked_bytes
        self._limited = limited

    def environment(self, spool: Path) -> dict[str, str]:
        """What has torchrun start its ranks under the limit: they are run by a script that the variable names."""
        return {} if self._limited is None else {"PYTHON_EXEC": str(self._script(spool))}

    def command(self, spool: Path, *arguments: str) -> list[str]:
        """Python with these arguments, under the limit."""
        return [str(self._script(spool)) if self._limited else sys.executable, *arguments]

    def facts(self) -> dict[str, Any] | None:
        """For run.json, while the limit is still there."""
        if self._limited is None:
            return None
        wrapping = self._limited.wrapping
        return {"asked_bytes": self.asked_bytes, "by": wrapping.by, "name": wrapping.name, **self._limited.facts()}

    def _script(self, spool: Path) -> Path:
        assert self._limited is not None
        path = spool / "limited"
        if not path.exists():
            path.write_text(self._limited.wrapping.script(sys.executable))
            path.chmod(0o755)
        return path


@contextmanager
def limit_of(preparation: Preparation) -> Iterator[Limit]:
    """The memory limit that is asked for, while the block lasts; `CommandError` where it cannot be had."""
    if preparation.memory_limit_bytes is None:
        yield Limit(None, None)
        return
    with memory_limit(preparation.memory_limit_bytes) as limited:
        yield Limit(preparation.memory_limit_bytes, limited)


# ------------------------------------------------------------------------------------------------ page cache


@contextmanager
def page_cache(
    cache: str | None, dataset: Dataset | None, limit: Limit, spool: Path, run: dict[str, Any], interrupted: Callable[[], int]
) -> Iterator[None]:
    """Bring the page cache into the state that is asked for, and note it in `run` then and at the end of the block."""
    if cache is None or dataset is None:
        yield
        return
    paths = dataset_files(dataset)
    facts: dict[str, Any] = {"asked": cache, "kind": describe(dataset.path).kind, "before": residency(paths).facts()}
    run["cache"] = facts
    start = _brought(cache, paths, limit, spool, interrupted)
    facts |= {"start": start.facts(), "held_by": _held_by(cache, start, paths), "reclaim": proactive_reclaim()}
    _mention(cache, start, facts["held_by"])
    if cache == "warm" and facts["reclaim"]:
        say(f"page cache: {facts['reclaim']}: what the job does not read soon is not warm any more")
    yield
    facts["end"] = _at_end(paths)


def _at_end(paths: list[str]) -> dict[str, Any] | None:
    try:
        return residency(paths).facts()
    except CommandError:  # a file has gone meanwhile: no reason to lose the run
        return None


def _brought(cache: str, paths: list[str], limit: Limit, spool: Path, interrupted: Callable[[], int]) -> Residency:
    if cache == "as-is":
        return residency(paths)
    num_bytes = sum(os.stat(path).st_size for path in paths)
    megabytes = max(1, round(num_bytes / 1e6))
    if cache == "cold":
        with progress("evict, MB", megabytes) as advance:
            return evict(paths, stoppable(in_megabytes(advance), interrupted))
    if limit.asked_bytes is None:
        with progress("warm, MB", megabytes) as advance:
            return warm(paths, stoppable(in_megabytes(advance), interrupted))
    # Pages are charged to who reads them first: read here, they would be nobody's, and the limit would bound nothing.
    evict(paths)
    say(f"warm: reading {num_bytes / 1e6:.1f} MB under the memory limit")
    ended = subprocess.run(limit.command(spool, "-c", _WARM), input=json.dumps(paths), text=True, capture_output=True, check=False)
    if ended.returncode:
        why = ended.stderr.strip().splitlines()[-1:] or [f"exit code {ended.returncode}"]
        raise CommandError(
            f"--cache warm: the files could not be read under the memory limit ({why[0][:200]}); give a larger one", 1
        )
    return residency(paths)


def _held_by(cache: str, start: Residency, paths: list[str]) -> list[str]:
    """Programs that keep a cold file in memory, as far as one may see them."""
    if cache != "cold" or not (start.ratio or 0) > _STAYED_RATIO:
        return []
    return [f"{command} (pid {pid})" for pid, command in mapped_by(paths).items()][:_SHOWN]


def _mention(cache: str, start: Residency, held_by: list[str]) -> None:
    if start.ratio is None:
        say(f"page cache: {cache} is not proven: {start.reason}")
    elif cache == "cold" and start.ratio > _STAYED_RATIO:
        why = f"mapped by {', '.join(held_by)}" if held_by else "a file system in memory, or pages that are locked or in use"
        say(f"page cache: {start.ratio:.1%} of the files stayed in memory ({why}); the run is not cold")
    elif cache == "warm" and start.ratio < 1 - _STAYED_RATIO:
        say(f"page cache: only {start.ratio:.1%} of the files are in memory: there is no room for more; the run is not warm")
