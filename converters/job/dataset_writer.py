"""The writer of a job: receives the outcome of each image, in order, and writes the dataset; it can
resume anywhere.
"""

import contextlib
import json
import shutil
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from ioprof import __version__
from ioprof.converters.images.transforms import CORRUPT, OTHER_FORM
from ioprof.converters.job.crash_recovery import UncheckedDataset, count_valid_records
from ioprof.converters.job.destination import put_in_place, sync_file_system
from ioprof.converters.job.image_converter import RecordData
from ioprof.converters.job.journal import (
    Entry,
    Journal,
    QuarantineEntry,
    RecordEntry,
    journal_progress,
    read_runs,
)
from ioprof.converters.job.length_quantiles import length_quantiles
from ioprof.converters.job.partial_output import PartialOutput, open_partial_output
from ioprof.converters.layouts.lustre_striping import recommended_stripes, stripe_folder
from ioprof.converters.layouts.registry import LAYOUTS, Layout, Record, Target
from ioprof.converters.options import ConvertOptions
from ioprof.errors import CommandError
from ioprof.files import read_json_object
from ioprof.format.dataset import (
    MANIFEST_NAME,
    Dataset,
    ImageClass,
    RecordDigest,
    write_json_atomically,
)
from ioprof.reporter import Advance


class Outcome(NamedTuple):
    """The result of converting one image."""

    wnid: str
    name: str
    """Its file name in the dataset; for a bad image, in the source."""
    where: object
    """The image; its `str()` is used in messages."""
    made: RecordData | str
    """Its record, or the reason why there is none."""


CHUNK_IMAGES: Final = 8
"""Default number of images per task."""

Item = TypeVar("Item")

Outcomes = Callable[[int], Generator[list[Outcome]]]
"""Returns the outcomes of the images from an index on, in order, in chunks."""


@dataclass(frozen=True)
class DatasetWriter:
    """Writes one dataset."""

    destination: Path
    options: ConvertOptions
    classes: tuple[ImageClass, ...]
    source: str
    """The value of `Dataset.source` in the manifest."""
    first: int
    """Index of the first image in the order of the whole source; 0 unless this is a part."""
    images: int
    """Number of images to write, from `first` on."""
    total: int
    """Number of images in the whole source, or `limit`."""
    refused: tuple[QuarantineEntry, ...] = ()
    """What the source left out by its name; `images` and `total` do not count it."""
    conversion: dict[str, Any] | None = None
    """The value of `Dataset.conversion` in the manifest."""

    def run(self, work: PartialOutput, outcomes: Outcomes, advance: Advance) -> "Tally":
        """Write what is missing in `work.data`, and wait until everything is on stable storage."""
        for path in work.data.glob(".*.tmp"):  # an incomplete manifest
            path.unlink()
        trusted = work.is_same_boot() or not work.has_progress
        start = (
            journal_progress(work.journal).records
            if trusted
            else self._count_valid(work, is_finished=False)
        )
        if not start:
            work.clear()
            trusted = True
        # otherwise the data is checked again at the end, however often the job is interrupted
        if trusted:
            work.record_boot()
        tally = self._write(work, start, outcomes, advance)
        sync_file_system(work.folder)
        if not trusted and self._count_valid(work, is_finished=True) != tally.records:
            work.clear()
            raise CommandError(
                "data written before the machine crashed is damaged; start the same command again",
                exit_code=1,
            )
        return tally

    def complete_tally(self, work: PartialOutput) -> "Tally | None":
        """The tally of the journal, if it lists all images."""
        return (
            Tally.of(work.journal) if journal_progress(work.journal).images == self.images else None
        )

    def _write(
        self, work: PartialOutput, start: int, outcomes: Outcomes, advance: Advance
    ) -> "Tally":
        work.data.mkdir(exist_ok=True)
        if self.options.stripe and not start:
            stripe_folder(
                work.data,
                recommended_stripes(self.options.layout, self.options.shards),
                self.destination,
            )
        labels = {entry.wnid: label for label, entry in enumerate(self.classes)}
        layout: Layout = LAYOUTS[self.options.layout](self._target(work), start=start)
        with layout:
            tally = Tally.of(work.journal, layout.num_durable())
            for entry in tally.quarantined:
                self._check_allowed(entry, entry.name)
            if tally.images:
                advance(tally.images)
            with (
                Journal(work.journal, tally.end) as journal,
                contextlib.closing(outcomes(self.first + tally.images)) as chunks,
            ):
                for chunk in chunks:
                    self._write_chunk(chunk, tally, journal, layout, labels)
                    advance(len(chunk))
            layout.finish()
            tally.shards = layout.shards
        return tally

    def _write_chunk(
        self,
        chunk: list[Outcome],
        tally: "Tally",
        journal: Journal,
        layout: Layout,
        labels: dict[str, int],
    ) -> None:
        entries: list[Entry] = []
        for wnid, name, where, made in chunk:
            if isinstance(made, RecordData):
                entries.append(RecordEntry(labels[wnid], made.length, made.sha256))
            else:
                bad = QuarantineEntry(f"{wnid}/{name}", " ".join(made.replace("\0", " ").split()))
                self._check_allowed(bad, where)
                entries.append(bad)
        journal.append(entries)  # before the records: after a kill every record is in the journal
        for outcome, entry in zip(chunk, entries, strict=True):
            if isinstance(entry, RecordEntry):
                assert isinstance(outcome.made, RecordData)
                place = self.first + tally.images
                layout.add(
                    Record(
                        tally.records,
                        outcome.wnid,
                        outcome.name,
                        entry.label,
                        outcome.made.data,
                        place,
                    )
                )
            tally.add(entry)

    def _check_allowed(self, entry: QuarantineEntry, where: object) -> None:
        is_corrupt = entry.reason.startswith(CORRUPT)
        if ((is_corrupt and self.options.on_corrupt) or self.options.on_error) == "fail":
            hint = (
                ""
                if entry.reason.endswith(OTHER_FORM)
                else "; to leave such images out: --on-error quarantine"
            )
            hint += (
                "; to use them as Pillow decodes them: --on-corrupt accept" if is_corrupt else ""
            )
            raise CommandError(f"{where}: {entry.reason}{hint}", exit_code=1)

    def _count_valid(self, work: PartialOutput, is_finished: bool) -> int:
        tally = Tally.of(work.journal)
        if not tally.records:
            return 0
        found = count_valid_records(
            UncheckedDataset(self.manifest(work.data, tally), self._target(work), work.journal),
            is_finished,
        )
        # a damaged LMDB cannot be truncated
        return 0 if self.options.layout == "lmdb" and found < tally.records else found

    def _target(self, work: PartialOutput) -> Target:
        options = self.options
        return Target(
            folder=work.data,
            split=options.split,
            image=options.image_format,
            wnids=tuple(entry.wnid for entry in self.classes),
            images=self.total,
            shards=options.shards,
            shard_bytes=options.shard_bytes,
            labels=options.labels,
            final=self.destination,
        )

    def manifest(self, folder: Path, tally: "Tally") -> Dataset:
        """The dataset at `folder`; raises `CommandError` if it has no records."""
        if not tally.records:
            first, count = tally.quarantined[0], len(tally.quarantined)
            what = f"all {count} images are bad (the first: {first.name}, {first.reason})"
            raise CommandError(f"{what}; a dataset needs at least one good image", exit_code=1)
        return Dataset(
            path=folder,
            name=self.destination.name,
            split=self.options.split,
            layout=self.options.layout,
            image=self.options.image_format,
            records=tally.records,
            bytes=tally.bytes,
            classes=self.classes,
            label_convention="sorted_wnid",
            record_bytes_quantiles=tally.record_bytes_quantiles,
            digest=tally.digest.text(),
            source=self.source,
            version=__version__,
            shuffle_seed=self.options.shuffle_seed,
            quarantined=tuple(entry._asdict() for entry in (*self.refused, *tally.quarantined)),
            shards=tally.shards,
            conversion=self.conversion,
        )


@dataclass(frozen=True)
class Job:
    """A resumable job that writes a dataset or a part of one, and renames it to its destination."""

    writing: DatasetWriter
    identity: dict[str, Any]
    """What must be equal for a job to resume an interrupted one."""
    manifest_name: str
    manifest: Callable[["Tally"], dict[str, Any]]
    """Content of the file `manifest_name`, which is written last; raises `CommandError` where
    records are required and missing."""
    clean: Callable[[PartialOutput], None] = lambda _: None
    """Called after the rename; must be idempotent."""

    def done(self) -> int:
        """Number of images that an interrupted run of the same job has finished."""
        work = PartialOutput.for_destination(self.writing.destination)
        return work.images_done if work.read_job() == self.identity else 0

    def run(self, outcomes: Outcomes, advance: Advance) -> "Tally":
        """Do what is not yet done; raises `CommandError`, and keeps finished work."""
        destination = self.writing.destination
        with open_partial_output(destination, self.identity, self.writing.options.force) as work:
            tally = self.writing.complete_tally(work)
            if tally is not None and self._is_at(destination, tally):
                advance(tally.images)
            else:
                if tally is not None and self._is_at(work.data, tally):
                    advance(tally.images)
                else:
                    tally = self.writing.run(work, outcomes, advance)
                    self._save_manifest(work, tally)
                self._put_in_place(work, tally)
            self.clean(work)
        return tally

    def _put_in_place(self, work: PartialOutput, tally: "Tally") -> None:
        destination = self.writing.destination
        try:
            put_in_place(work.data, destination, self.writing.options.force)
        except (KeyboardInterrupt, CommandError):
            if self._is_at(destination, tally):  # raised after the rename: the dataset is complete
                self.clean(work)
                work.clear()
            raise

    def _save_manifest(self, work: PartialOutput, tally: "Tally") -> None:
        try:
            keys = self.manifest(tally)
        except CommandError:
            work.clear()
            raise
        if self.manifest_name != MANIFEST_NAME:
            shutil.copyfile(work.journal, work.data / work.journal.name)
        write_json_atomically(work.data / self.manifest_name, keys)

    def _is_at(self, folder: Path, tally: "Tally") -> bool:
        if (found := read_json_object(folder / self.manifest_name)) is None:
            return False
        expected = json.loads(json.dumps(self.manifest(tally)))
        return {**found, "shards": None} == {**expected, "shards": None}


class Resumable(ABC):
    """A planned conversion, merge or copy; planned and run again after an interruption, it goes on
    from where it was.
    """

    @property
    @abstractmethod
    def _job(self) -> Job:
        """What writes the dataset."""

    def done(self) -> int:
        """Number of images that an interrupted run of the same job has finished."""
        return self._job.done()

    @cached_property
    def done_before(self) -> int:
        """`done()` when it was planned."""
        return self.done()


def dataset_job(writing: DatasetWriter, identity: dict[str, Any]) -> Job:
    """The job that writes a whole dataset."""
    return Job(
        writing,
        identity,
        MANIFEST_NAME,
        lambda tally: writing.manifest(writing.destination, tally).manifest(),
    )


class Tally:
    """The manifest's totals, accumulated while the records are written, which are the first of a
    journal.
    """

    def __init__(self, journal: Path) -> None:
        self._journal = journal
        self.digest = RecordDigest()
        self.records = self.bytes = 0
        """Number of records, and their total length."""
        self.quarantined: list[QuarantineEntry] = []
        self.end = 0
        """End of the entries that were read from the journal, a file offset."""
        self.shards: int | None = None
        """Set when all records are written."""

    @classmethod
    def of(cls, journal: Path, records: int | None = None) -> "Tally":
        """The tally of a journal; with `records`, up to the entry before the record of that
        number.
        """
        tally = cls(journal)
        for run, tally.end in read_runs(journal, records):
            if isinstance(run, QuarantineEntry):
                tally.quarantined.append(run)
            else:
                tally.digest.add_entries(run.tobytes())
                tally.records, tally.bytes = (
                    tally.records + len(run),
                    tally.bytes + int(run["length"].sum()),
                )
        return tally

    @property
    def images(self) -> int:
        """Number of records and quarantined images."""
        return self.records + len(self.quarantined)

    @cached_property
    def record_bytes_quantiles(self) -> dict[str, int]:
        """Of all records; to be asked when they are complete. The journal has them, so that they
        are not held in memory.
        """
        return length_quantiles(self._lengths, self.records, self.bytes)

    def _lengths(self) -> Iterator[NDArray[np.int64]]:
        for run, _ in read_runs(self._journal, self.records):
            if not isinstance(run, QuarantineEntry):
                yield run["length"]

    def add(self, entry: Entry) -> None:
        """Add the next image."""
        if isinstance(entry, QuarantineEntry):
            self.quarantined.append(entry)
        else:
            self.digest.add_hashed(entry.label, entry.length, entry.sha256)
            self.records, self.bytes = self.records + 1, self.bytes + entry.length


def in_chunks(items: Iterable[Item], size: int = CHUNK_IMAGES) -> Iterator[list[Item]]:
    """Split into lists of `size` items; the last may be shorter."""
    items = iter(items)
    while chunk := list(islice(items, size)):
        yield chunk
