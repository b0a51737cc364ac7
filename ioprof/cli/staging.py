"""A dataset copied to a folder of this node: checked, gone on with, used again where it is there, removed when nobody keeps it.

DIR/.NAME.partial/     half-made: what `ioprof.converters.halfmade` says, its journal a line "number-of-part sha256" for each part
DIR/NAME/              the copy: a dataset like any other, and `staged.json`, which says of what, and who keeps it
"""

import json
import os
import shutil
from array import array
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from ioprof import clock
from ioprof.cli.console import Advance
from ioprof.cli.preparing import dataset_files
from ioprof.converters.destination import put_in_place, sync_file_system
from ioprof.converters.halfmade import HalfMade, half_made
from ioprof.converters.verification import Verifier
from ioprof.dataset import MANIFEST_NAME, Dataset, RecordDigest, read_index, write_json_atomically
from ioprof.errors import CommandError, DatasetError, IoprofError
from ioprof.storage.staging import PART_BYTES, THREADS, Part, Task, copy, is_there, make_folders, parts_of

STAGED_NAME: Final = "staged.json"
VERIFY: Final = ("digest", "size")
BEFORE: Final = "before"
"""The mode of a copy that is made at once."""
_SCHEMA: Final = "ioprof.staged/1"
_BOOT_ID: Final = Path("/proc/sys/kernel/random/boot_id")
_MAX_STAGED_BYTES: Final = 1 << 16
_SPACE_MARGIN: Final = 1.02
_FILE_OVERHEAD_BYTES: Final = 4096
_WORTH_PROCESSES_BYTES: Final = 1 << 28

Noted = Callable[[Task], None]
"""Is told, in the thread that copied it, of each task."""


@dataclass(frozen=True)
class Staging:
    """A dataset that is to be copied into a folder."""

    dataset: Dataset
    folder: Path
    keep: bool
    verify: str = VERIFY[0]

    @property
    def destination(self) -> Path:
        """Where the copy will lie."""
        return Path(os.path.realpath(self.folder)) / Path(os.path.realpath(self.dataset.path)).name

    def existing(self) -> Dataset | None:
        """The copy that is there already and can be relied on; `CommandError` if something else lies in its place."""
        if not os.path.lexists(self.destination):
            return None
        staged = read_staged(self.destination)
        if staged is None or staged.get("digest") != self.dataset.digest or staged.get("layout") != self.dataset.layout:
            raise CommandError(f"{self.destination}: exists, and is no staged copy of {self.dataset.path}; give another folder")
        if not staged.get("synced") and staged.get("boot") != _boot():
            shutil.rmtree(self.destination)  # the machine went down since: nobody knows what of it came to the disk
            return None
        return Dataset.load(self.destination)

    def run(self, advance: Advance = lambda _=1: None, noted: Noted = lambda _: None) -> dict[str, Any]:
        """Copy what is not there yet, and say what that took, for run.json; raises `CommandError` or `DatasetError`.

        `advance` is told of bytes; what it raises ends the work, and what is done by then is kept for the next time.
        """
        begin_ns = clock.monotonic_ns()
        found = self.existing()
        parts = parts_of(self.files())
        facts = {**self.facts(BEFORE), "reused": found is not None}
        if found is not None:
            advance(facts["bytes"])
            self._keep_on(found.path)
            return {**facts, **_sums([]), "check_s": 0.0, "seconds": _seconds_since(begin_ns)}
        with half_made(self.destination, self._identity(parts), force=False) as work:
            tasks, check_s = self._made(work, parts, advance, noted)
            put_in_place(work.data, self.destination, force=False)
        return {**facts, **_sums(tasks), "check_s": check_s, "seconds": _seconds_since(begin_ns)}

    def _made(self, work: HalfMade, parts: list[Part], advance: Advance, noted: Noted) -> tuple[list[Task], float]:
        hashes = self._left(work, parts)
        wanted = [number for number in range(len(parts)) if number not in hashes]
        self.check_space(sum(parts[number].bytes for number in wanted), len(wanted))
        work.note_boot()
        make_folders(parts, work.data)
        if done := sum(parts[number].bytes for number in hashes):
            advance(done)
        tasks = []
        with open(work.journal, "ab", buffering=0) as journal:
            for task in copy(parts, wanted, work.data, clock.monotonic_ns, noted):
                journal.write("".join(f"{each.number} {each.sha256.hex()}\n" for each in task.copied).encode())
                hashes |= {each.number: each.sha256 for each in task.copied}
                tasks.append(replace(task, copied=()))
                advance(task.bytes)
        check_ns = clock.monotonic_ns()
        self._checked(work, parts, hashes)
        check_s = _seconds_since(check_ns)
        self._finish(work)
        return tasks, check_s

    def _left(self, work: HalfMade, parts: list[Part]) -> dict[int, bytes]:
        """The parts that an earlier try has copied, and their hashes."""
        found = _journal(work.journal, len(parts))
        if found and not work.same_boot():
            found = {number: sha256 for number, sha256 in found.items() if is_there(parts[number], work.data, sha256)}
            lines = "".join(f"{number} {sha256.hex()}\n" for number, sha256 in found.items())
            work.journal.write_text(lines)
        return found

    def finish(self, work: HalfMade) -> None:
        """Compare a copy that somebody else made with the manifest, and make it a dataset; it is not in its place yet."""
        self._check(work, self._problem_of(work.data))
        self._finish(work)

    def _checked(self, work: HalfMade, parts: list[Part], hashes: dict[int, bytes]) -> None:
        """Compare with the manifest: what was read of single files, what was written of anything else."""
        if self.verify != "digest":
            return
        lengths = self._hashed_records(parts, hashes)
        if lengths is None:
            self._check(work, self._problem_of(work.data))
            return
        digest = RecordDigest()
        for label, (length, sha256) in zip(read_index(self.dataset)[1], lengths, strict=True):
            digest.add_hashed(label, length, sha256)
        self._check(work, None if digest.text() == self.dataset.digest else f"digest: {digest.text()}")

    def _problem_of(self, folder: Path) -> str | None:
        workers = 1 if self.dataset.bytes < _WORTH_PROCESSES_BYTES else None
        return next(iter(Verifier(replace(self.dataset, path=folder), False, None, workers).run().problems), None)

    def _check(self, work: HalfMade, problem: str | None) -> None:
        if problem is not None:
            work.clear()
            path = self.dataset.path
            raise DatasetError(f"{path}: its copy is not what its manifest says ({problem}); see: ioprof verify {path}")

    def _hashed_records(self, parts: list[Part], hashes: dict[int, bytes]) -> list[tuple[int, bytes]] | None:
        """Length and hash of each record, if each is a part by itself; the first part is the index."""
        if self.dataset.layout != "files" or len(parts) != self.dataset.records + 1:
            return None
        return [(part.bytes, hashes[number]) for number, part in enumerate(parts[1:], start=1)]

    def _finish(self, work: HalfMade) -> None:
        if self.keep:  # a copy that goes with the run need not survive the machine
            sync_file_system(work.folder)
        self._note(work.data)
        write_json_atomically(work.data / MANIFEST_NAME, self.dataset.manifest())

    def _note(self, folder: Path) -> None:
        keys = {"schema": _SCHEMA, "from": str(self.dataset.path), "digest": self.dataset.digest, "layout": self.dataset.layout}
        write_json_atomically(folder / STAGED_NAME, {**keys, "boot": _boot(), "synced": self.keep, "keep": self.keep})

    def _keep_on(self, folder: Path) -> None:
        """A copy that was to go with another run, and is to be kept now."""
        if self.keep and not (read_staged(folder) or {}).get("keep"):
            sync_file_system(folder)
            self._note(folder)

    def files(self) -> list[tuple[str, str]]:
        """The dataset's files: where each is, and its place below the dataset's folder."""
        root = f"{self.dataset.path}/"
        return [(path, path.removeprefix(root)) for path in dataset_files(self.dataset)]

    def _identity(self, parts: list[Part]) -> dict[str, Any]:
        sizes = array("q", (part.bytes for part in parts))
        return {
            "staged": str(Path(os.path.realpath(self.dataset.path))),
            "digest": self.dataset.digest,
            "layout": self.dataset.layout,
            "parts": len(parts),
            "bytes": sum(sizes),
            "part_bytes": PART_BYTES,
        }

    def facts(self, mode: str) -> dict[str, Any]:
        """What is known before it begins, for run.json."""
        sizes = [os.stat(path).st_size for path, _ in self.files()]
        return {
            "mode": mode,
            "from": str(self.dataset.path),
            "to": str(self.destination),
            "files": len(sizes),
            "bytes": sum(sizes),
            "threads": THREADS,
            "verified": self.verify,
            "kept": self.keep,
        }

    def check_space(self, needed_bytes: int, needed_files: int) -> None:
        """Raise `CommandError` where the copy would not fit."""
        place = next(folder for folder in (self.folder, *self.folder.parents) if folder.is_dir())
        status = os.statvfs(place)
        free = status.f_bavail * status.f_frsize
        needed = round(needed_bytes * _SPACE_MARGIN) + needed_files * _FILE_OVERHEAD_BYTES
        if needed > free:
            what = f"needs {needed / 1e9:.3f} GB, {place} has {free / 1e9:.3f} GB free"
            raise CommandError(f"{self.destination}: {what}; give another folder, or stage less with --dataset-scale 50%", 1)
        if status.f_files and needed_files > status.f_favail:
            what = f"needs {needed_files} files, {place} has inodes for {status.f_favail}"
            raise CommandError(f"{self.destination}: {what}; give another folder, or convert the dataset to --layout lmdb", 1)


def remove_staged(folder: Path) -> bool:
    """Remove a staged copy that nobody keeps; False if it stays. Its manifest goes first: what is left is no dataset."""
    staged = read_staged(folder)
    if staged is None or staged.get("keep") is not False:
        return False
    (folder / MANIFEST_NAME).unlink(missing_ok=True)
    shutil.rmtree(folder, ignore_errors=True)
    return not folder.exists()


def read_staged(folder: Path) -> dict[str, Any] | None:
    """What the copy in a folder says of itself; None if it is none of ioprof's."""
    path = folder / STAGED_NAME
    try:
        keys = json.loads(path.read_bytes()) if path.stat().st_size < _MAX_STAGED_BYTES else None
        Dataset.load(folder)
    except (OSError, ValueError, RecursionError, IoprofError):
        return None
    return keys if isinstance(keys, dict) and keys.get("schema") == _SCHEMA else None


def _journal(path: Path, num_parts: int) -> dict[int, bytes]:
    """Number and hash of each part that the journal tells of; a torn last line tells of nothing."""
    found = {}
    for line in _whole_lines(path):
        number, _, digits = line.partition(" ")
        if number.isdigit() and len(number) < 12 and int(number) < num_parts and len(digits) == 64:
            try:
                found[int(number)] = bytes.fromhex(digits)
            except ValueError:
                continue
    return found


def _whole_lines(path: Path) -> Iterator[str]:
    try:
        with open(path, encoding="ascii", errors="replace") as stream:
            yield from (line[:-1] for line in stream if line.endswith("\n"))
    except FileNotFoundError:
        return


def _sums(tasks: list[Task]) -> dict[str, Any]:
    return {
        "copied_bytes": sum(task.bytes for task in tasks),
        "read_s": sum(task.read_ns for task in tasks) / 1e9,
        "write_s": sum(task.write_ns for task in tasks) / 1e9,
    }


def _seconds_since(begin_ns: int) -> float:
    return (clock.monotonic_ns() - begin_ns) / 1e9


def _boot() -> str:
    try:
        return _BOOT_ID.read_text().strip()
    except OSError:
        return ""
