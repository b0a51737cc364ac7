"""A copy of the dataset that the job's own workers fill: made ready before it starts; finished or dropped when it has ended."""

import os
from collections.abc import Callable, Generator, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from ioprof import clock
from ioprof.cli.console import say
from ioprof.cli.staging import Staging
from ioprof.converters.destination import put_in_place
from ioprof.converters.halfmade import HalfMade, half_made
from ioprof.errors import CommandError
from ioprof.loaders.filling import FILLING, flags_of, missing_ranges, prepare
from ioprof.storage.staging import Part, copy
from ioprof.train.config import JobConfig


def check_fillable(loader: str) -> None:
    """Raise `CommandError` for a loader that reads by itself, so that nobody sees its bytes."""
    if loader not in FILLING:
        raise CommandError(
            f"--stage-mode while-training works with --loader {', '.join(FILLING)}; with {loader} use --stage-mode before"
        )


@contextmanager
def filled(staging: Staging, config: JobConfig, facts: dict[str, Any], interrupted: Callable[[], int]) -> Iterator[JobConfig]:
    """The job that fills the copy; afterwards the copy is whole and in its place if it is kept, and else it is gone.

    It is also gone if somebody interrupted the job: who asks for the end does not want to wait for the rest.

    Raises `CommandError` where there is no room, or where something else lies in its place.
    """
    if staging.existing() is not None:
        raise CommandError(f"{staging.destination}: is there already, so nothing is left to fill; use --stage-mode before")
    if config.loader == "lmdb":
        say("while its copy is filled, an LMDB is read value by value (pread), not through its memory map")
    files = staging.files()
    staging.check_space(sum(Path(source).stat().st_size for source, _ in files), len(files))
    identity = {"filled by": os.getpid(), "of": str(staging.dataset.path), "since": clock.monotonic_ns()}
    with ExitStack() as stack:
        work = stack.enter_context(half_made(staging.destination, identity, force=False))
        prepare(work.folder, staging.dataset, files)
        failed = yield from _job(replace(config, local_copy=work.folder))
        facts |= _counted(work, staging)
        facts["kept"] = staging.keep and failed is None and not interrupted()
        if facts["kept"]:
            facts |= _finished(work, staging)
    if failed is not None:  # not the copy's: half_made would take it for such
        raise failed


def _job(config: JobConfig) -> Generator[JobConfig, None, BaseException | None]:
    """Yields the job; returns what it raised."""
    try:
        yield config
    except BaseException as error:
        return error
    return None


def _counted(work: HalfMade, staging: Staging) -> dict[str, Any]:
    """How much of the copy the job has filled."""
    present = total = 0
    for number in range(1 if staging.dataset.layout == "files" else len(staging.files())):
        flags = flags_of(work.folder, number)
        present, total = present + int(flags.sum()), total + len(flags)
    return {"filled_ratio": present / total if total else None}


def _finished(work: HalfMade, staging: Staging) -> dict[str, Any]:
    """Copy what no worker has read, compare the digest, and put the copy into its place."""
    begin_ns = clock.monotonic_ns()
    parts = list(_missing(work, staging))
    if parts:
        say(f"staging what no worker has read: {sum(part.bytes for part in parts) / 1e6:.1f} MB")
    for _ in copy(parts, range(len(parts)), work.data, clock.monotonic_ns, lambda _: None):
        pass
    staging.finish(work)
    put_in_place(work.data, staging.destination, force=False)
    return {"finish_s": (clock.monotonic_ns() - begin_ns) / 1e9}


def _missing(work: HalfMade, staging: Staging) -> Iterator[Part]:
    files = staging.files()
    if staging.dataset.layout == "files":
        flags = flags_of(work.folder)
        index, records = files[0], files[1:]
        for source, target in (index, *(file for file, there in zip(records, flags, strict=True) if not there)):
            size = Path(source).stat().st_size
            yield Part(source, target, 0, size, size)
        return
    for number, (source, target) in enumerate(files):
        size = Path(source).stat().st_size
        for start, length in missing_ranges(flags_of(work.folder, number), size):
            yield Part(source, target, start, length, size)
