"""Staging: copies a dataset to a folder of this node, verified and resumable.

DIR/.NAME.partial/     incomplete: see `ioprof.converters.job.partial_output`; its journal has a line "PART-NUMBER SHA256" per part
DIR/NAME/              the copy: a dataset like any other, and `staged.json`, which says of what, and whether it is kept
"""  # noqa: E501

import os
import re
from array import array
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from ioprof import clock
from ioprof.converters.job.destination import put_in_place, require_space, sync_file_system
from ioprof.converters.job.partial_output import PartialOutput, open_partial_output
from ioprof.errors import CommandError, DatasetError, IoprofError
from ioprof.files import read_json_object, remove_own
from ioprof.format.dataset import (
    MANIFEST_NAME,
    Dataset,
    RecordDigest,
    read_index,
    write_json_atomically,
)
from ioprof.format.run_record import StageRecord
from ioprof.instrument.kernel_clocks import boot_id
from ioprof.jobs.options import BEFORE
from ioprof.reporter import Advance, ignore_progress
from ioprof.storage.copying import (
    PART_BYTES,
    TASK_PARTS,
    THREADS,
    Part,
    Task,
    copy,
    make_folders,
    part_matches,
    parts_of,
)
from ioprof.storage.node_local import NodeLocal

STAGED_NAME: Final = "staged.json"
VERIFY: Final = ("digest", "size")
_SCHEMA: Final = "ioprof.staged/1"
_HALF_WRITTEN: Final = re.compile(r"\.\d+$")
"""Ends the names of files that a worker was killed in writing (`loaders/filling.py`)."""
_SPACE_MARGIN: Final = 1.02
_FILE_OVERHEAD_BYTES: Final = 4096
_WORTH_PROCESSES_BYTES: Final = 1 << 28

TaskObserver = Callable[[Task], None]
"""Called with each finished task, in the thread that copied it."""


@dataclass(frozen=True)
class StageOptions:
    """How `ioprof run` stages its dataset."""

    place: NodeLocal
    mode: str
    """One of `options.STAGE_MODES`."""
    keep: bool


@dataclass(frozen=True)
class Staging:
    """A dataset that is to be copied into a folder."""

    dataset: Dataset
    folder: Path
    keep: bool
    verify: str = VERIFY[0]
    part_bytes: int = PART_BYTES
    """Larger files are copied in parts of this size, by several threads, each with its own line in
    the journal."""
    task_parts: int = TASK_PARTS
    """Most parts that a thread copies before the journal is written."""

    @property
    def destination(self) -> Path:
        """The folder of the copy."""
        return Path(os.path.realpath(self.folder)) / Path(os.path.realpath(self.dataset.path)).name

    def existing(self) -> Dataset | None:
        """The complete copy that is there already, if any; `CommandError` if something else has its
        name.
        """
        if not os.path.lexists(self.destination):
            return None
        staged = read_staged(self.destination)
        if (
            staged is None
            or staged.get("digest") != self.dataset.digest
            or staged.get("layout") != self.dataset.layout
        ):
            raise CommandError(
                f"{self.destination}: exists, and is no staged copy of {self.dataset.path}; give"
                " another folder"
            )
        if not staged.get("synced") and staged.get("boot") != boot_id():
            # The machine went down since: what of it reached the disk is not known.
            if left := _remove_copy(self.destination, (target for _, target in self.files())):
                raise CommandError(
                    f"{self.destination}: holds {left[0]}, which ioprof did not put there; move it"
                    " elsewhere"
                )
            return None
        return Dataset.load(self.destination)

    def run(
        self, advance: Advance = ignore_progress, observe: TaskObserver = lambda _: None
    ) -> StageRecord:
        """Copy what is not there yet; returns what that took, for run.json. Raises `CommandError`
        or `DatasetError`.

        `advance` is called with bytes; what it raises ends the work, and what is done by then is
        kept for the next time.
        """
        begin_ns = clock.monotonic_ns()
        found = self.existing()
        parts = parts_of(self.files(), self.part_bytes)
        record = self.record(BEFORE).replace(reused=found is not None)
        tasks: list[Task] = []
        check_s = 0.0
        if found is not None:
            advance(record.bytes or 0)
            # made for another run, and to be kept from now on
            if self.keep and not (read_staged(found.path) or {}).get("keep"):
                sync_file_system(found.path)
                self._write_staged(found.path)
        else:
            with open_partial_output(self.destination, self._identity(parts), force=False) as work:
                hashes = self._copied_before(work, parts)
                tasks = self._copy_missing(work, parts, hashes, advance, observe)
                check_ns = clock.monotonic_ns()
                self._verify_copy(work, parts, hashes)
                check_s = _seconds_since(check_ns)
                self._make_dataset(work)
                put_in_place(work.data, self.destination, force=False)
        return record.replace(
            copied_bytes=sum(task.bytes for task in tasks),
            read_s=sum(task.read_ns for task in tasks) / 1e9,
            write_s=sum(task.write_ns for task in tasks) / 1e9,
            check_s=check_s,
            seconds=_seconds_since(begin_ns),
        )

    def _copied_before(self, work: PartialOutput, parts: list[Part]) -> dict[int, bytes]:
        """Number and sha256 of the parts that an interrupted run has copied."""
        hashes = _read_journal(work.journal, len(parts))
        if hashes and not work.is_same_boot():
            hashes = {
                number: sha256
                for number, sha256 in hashes.items()
                if part_matches(parts[number], work.data, sha256)
            }
            work.journal.write_text(
                "".join(f"{number} {sha256.hex()}\n" for number, sha256 in hashes.items())
            )
        return hashes

    def _copy_missing(
        self,
        work: PartialOutput,
        parts: list[Part],
        hashes: dict[int, bytes],
        advance: Advance,
        observe: TaskObserver,
    ) -> list[Task]:
        """Copy the parts that are not in `hashes`, and enter them there and in the journal."""
        wanted = [number for number in range(len(parts)) if number not in hashes]
        self.check_space(sum(parts[number].bytes for number in wanted), len(wanted))
        work.record_boot()
        make_folders(parts, work.data)
        if done := sum(parts[number].bytes for number in hashes):
            advance(done)
        tasks = []
        with open(work.journal, "ab", buffering=0) as journal:
            for task in copy(
                parts, wanted, work.data, clock.monotonic_ns, observe, task_parts=self.task_parts
            ):
                journal.write(
                    "".join(f"{each.number} {each.sha256.hex()}\n" for each in task.copied).encode()
                )
                hashes |= {each.number: each.sha256 for each in task.copied}
                tasks.append(replace(task, copied=()))
                advance(task.bytes)
        return tasks

    def _verify_copy(
        self, work: PartialOutput, parts: list[Part], hashes: dict[int, bytes]
    ) -> None:
        """Compare with the manifest: the hashes of what was read where each record is a file, else
        what was written.
        """
        if self.verify != "digest":
            return
        if self.dataset.layout != "files" or len(parts) != self.dataset.records + 1:
            self._verify_records(work)
            return
        digest = RecordDigest()
        # the first part is the index
        for number, label in enumerate(read_index(self.dataset)[1], start=1):
            digest.add_hashed(label, parts[number].bytes, hashes[number])
        if digest.text() != self.dataset.digest:
            raise self._damaged(work, f"digest: {digest.text()}")

    def _verify_records(self, work: PartialOutput) -> None:
        """Read all records of the copy, and compare them with the manifest."""
        workers = 1 if self.dataset.bytes < _WORTH_PROCESSES_BYTES else None
        # loads the libraries of images and layouts
        from ioprof.converters.job.verification import (
            Verifier,
        )

        problems = (
            Verifier(replace(self.dataset, path=work.data), False, None, workers).run().problems
        )
        if problems:
            raise self._damaged(work, problems[0])

    def _damaged(self, work: PartialOutput, problem: str) -> DatasetError:
        work.clear()
        path = self.dataset.path
        return DatasetError(
            f"{path}: its copy is not what its manifest says ({problem}); see: ioprof verify {path}"
        )

    def finish(self, work: PartialOutput) -> None:
        """Verify a copy that the job's workers have made, and make it a dataset; it is not in its
        place yet.
        """
        self._verify_records(work)
        self._make_dataset(work)

    def _make_dataset(self, work: PartialOutput) -> None:
        if self.keep:  # a copy that is removed after the run need not survive the machine
            sync_file_system(work.folder)
        self._write_staged(work.data)
        write_json_atomically(work.data / MANIFEST_NAME, self.dataset.manifest())

    def _write_staged(self, folder: Path) -> None:
        keys = {
            "schema": _SCHEMA,
            "from": str(self.dataset.path),
            "digest": self.dataset.digest,
            "layout": self.dataset.layout,
        }
        write_json_atomically(
            folder / STAGED_NAME,
            {**keys, "boot": boot_id(), "synced": self.keep, "keep": self.keep},
        )

    def files(self) -> list[tuple[str, str]]:
        """The dataset's files: path, and the same relative to the dataset's folder."""
        root = f"{self.dataset.path}/"
        files = self.dataset.data_files()
        if (
            outside := next((path for path in files if not path.startswith(root)), None)
        ) is not None:
            what = f"its records are in {outside}, outside of its folder, and are read there"
            raise CommandError(
                f"{self.dataset.path}: {what}; make a dataset of them: ioprof convert imagenet"
            )
        return [(path, path.removeprefix(root)) for path in files]

    def _identity(self, parts: list[Part]) -> dict[str, Any]:
        """What an interrupted run must agree in with this one to be resumed."""
        return {
            "staged": str(Path(os.path.realpath(self.dataset.path))),
            "digest": self.dataset.digest,
            "layout": self.dataset.layout,
            "parts": len(parts),
            "bytes": sum(array("q", (part.bytes for part in parts))),
            "part_bytes": self.part_bytes,
        }

    def record(self, mode: str) -> StageRecord:
        """What is known before the copy begins, for run.json."""
        sizes = [os.stat(path).st_size for path, _ in self.files()]
        return StageRecord(
            mode=mode,
            source=str(self.dataset.path),
            to=str(self.destination),
            files=len(sizes),
            bytes=sum(sizes),
            threads=THREADS,
            verified=self.verify,
            is_kept=self.keep,
        )

    def check_space(self, needed_bytes: int, needed_files: int) -> None:
        """Raise `CommandError` where the copy would not fit."""
        needed = round(needed_bytes * _SPACE_MARGIN) + needed_files * _FILE_OVERHEAD_BYTES
        require_space(
            self.destination,
            needed,
            needed_files,
            smaller="give another folder, or stage less with --dataset-scale 50%",
            fewer_files="give another folder, or convert the dataset to --layout lmdb",
        )


def stage_text(stage: StageRecord) -> str:
    """One line: what the copy holds, what of it was copied, how fast, and how it was verified."""
    what = f"{stage.to}: {stage.files} files, {(stage.bytes or 0) / 1e6:.1f} MB"
    if stage.reused:
        return f"{what}: is there already, of the same records"
    copied_mb, seconds = (stage.copied_bytes or 0) / 1e6, stage.seconds or 0.0
    rate = copied_mb / seconds if seconds else 0.0
    checked = (
        f"{stage.check_s:.1f} s of it comparing the digest"
        if stage.verified == "digest"
        else "sizes compared only"
    )
    return (
        f"{what}, {copied_mb:.1f} MB of them copied in {seconds:.1f} s ({rate:.1f} MB/s; {checked})"
    )


def remove_staged(folder: Path) -> bool:
    """Remove a staged copy that is not to be kept; False if it stays. The manifest goes first: what
    is left is no dataset.
    """
    staged = read_staged(folder)
    if staged is None or staged.get("keep") is not False:
        return False
    root = f"{folder}/"
    try:
        files = [
            path.removeprefix(root)
            for path in replace(Dataset.load(folder), path=folder).data_files()
        ]
    except IoprofError:
        return False
    _remove_copy(folder, files)
    return not folder.exists()


def _remove_copy(folder: Path, files: Iterable[str]) -> list[str]:
    """Remove a copy of these files; what else is in its folder stays, and is returned. The manifest
    goes first.
    """
    (folder / MANIFEST_NAME).unlink(missing_ok=True)
    own = {*files, STAGED_NAME}
    return remove_own(
        folder,
        lambda path: (
            path in own or _HALF_WRITTEN.sub("", path) in own or path.endswith("/lock.mdb")
        ),
    )


def read_staged(folder: Path) -> dict[str, Any] | None:
    """The keys of the copy's staged.json; None if the folder is no staged copy."""
    keys = read_json_object(folder / STAGED_NAME)
    if keys is None or keys.get("schema") != _SCHEMA:
        return None
    try:
        Dataset.load(folder)
    except (OSError, IoprofError):
        return None
    return keys


def _read_journal(path: Path, num_parts: int) -> dict[int, bytes]:
    """Number and sha256 of each part in the journal; a last line that was cut off, or a damaged
    one, is left out.
    """
    try:
        lines = path.read_text(encoding="ascii", errors="replace").split("\n")[:-1]
    except FileNotFoundError:
        return {}
    found = {}
    for line in lines:
        number, _, digits = line.partition(" ")
        if number.isdigit() and len(number) < 12 and int(number) < num_parts and len(digits) == 64:
            try:
                found[int(number)] = bytes.fromhex(digits)
            except ValueError:
                continue
    return found


def _seconds_since(begin_ns: int) -> float:
    return (clock.monotonic_ns() - begin_ns) / 1e9
