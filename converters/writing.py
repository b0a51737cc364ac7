"""The writer of a job: takes what became of each image, in order, and makes the dataset, from wherever it was left off."""

import contextlib
import json
import shutil
from array import array
from collections.abc import Callable, Generator, Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeVar

import numpy as np

from ioprof import __version__
from ioprof.converters.destination import put_in_place, sync_file_system
from ioprof.converters.halfmade import HalfMade, half_made
from ioprof.converters.journal import Entry, Journal, Quarantined, Recorded, runs, told
from ioprof.converters.layouts import LAYOUTS, Layout, Record, Target
from ioprof.converters.options import ConvertOptions
from ioprof.converters.reading import Made
from ioprof.converters.recovery import Suspect, num_readable
from ioprof.converters.stripes import advice, stripe_folder
from ioprof.converters.transforms import OTHER_FORM
from ioprof.dataset import MANIFEST_NAME, Dataset, ImageClass, RecordDigest, quantiles_of, write_json_atomically
from ioprof.errors import CommandError

Advance = Callable[[int], object]
"""Is told how many more images are done."""


class Outcome(NamedTuple):
    """What became of one image."""

    wnid: str
    name: str
    """Of its file in the dataset; of one that was left out, in the source."""
    where: object
    """For messages, by its text."""
    made: Made | str
    """Its record, or in words why there is none."""


CHUNK_IMAGES: Final = 8
"""How many images a process is given at a time, where nothing else is known."""

Item = TypeVar("Item")

Outcomes = Callable[[int], Generator[list[Outcome]]]
"""Those of the images from a place on, in order, a few at a time."""


@dataclass(frozen=True)
class Writing:
    """One dataset to be written."""

    destination: Path
    options: ConvertOptions
    classes: tuple[ImageClass, ...]
    source: str
    """In words, for the manifest."""
    first: int
    """Place of the first image in the order of the whole source; 0 unless this is a part."""
    images: int
    """How many images there are to be written, from `first` on."""
    total: int
    """How many images the whole source has, or the limit allows."""

    def run(self, work: HalfMade, outcomes: Outcomes, advance: Advance) -> "Tally":
        """Write what is not yet in `work.data`, and wait until all of it is on stable storage."""
        for path in work.data.glob(".*.tmp"):  # of a manifest that was being written
            path.unlink()
        trusted = work.same_boot() or not work.is_worth_keeping
        start = told(work.journal).records if trusted else self._readable(work, is_finished=False)
        if not start:
            work.clear()
            trusted = True
        if trusted:  # else it stays suspect to the end, however often the job is interrupted
            work.note_boot()
        tally = self._written(work, start, outcomes, advance)
        sync_file_system(work.folder)
        if not trusted and self._readable(work, is_finished=True) != tally.records:
            work.clear()
            raise CommandError("what was there before the machine went down is damaged; start the same command again", exit_code=1)
        return tally

    def told(self, work: HalfMade) -> "Tally | None":
        """What the journal says, if it tells of all images."""
        return Tally.of(work.journal) if told(work.journal).images == self.images else None

    def _written(self, work: HalfMade, start: int, outcomes: Outcomes, advance: Advance) -> "Tally":
        work.data.mkdir(exist_ok=True)
        if self.options.stripe and not start:
            stripe_folder(work.data, advice(self.options.layout, self.options.shards), self.destination)
        labels = {entry.wnid: label for label, entry in enumerate(self.classes)}
        layout: Layout = LAYOUTS[self.options.layout](self._target(work), start=start)
        with layout:
            tally = Tally.of(work.journal, layout.durable())
            for entry in tally.quarantined:
                self._check(entry, entry.name)
            if tally.images:
                advance(tally.images)
            with Journal(work.journal, tally.end) as journal, contextlib.closing(outcomes(self.first + tally.images)) as chunks:
                for chunk in chunks:
                    self._take(chunk, tally, journal, layout, labels)
                    advance(len(chunk))
            layout.finish()
            tally.shards = layout.shards
        return tally

    def _take(self, chunk: list[Outcome], tally: "Tally", journal: Journal, layout: Layout, labels: dict[str, int]) -> None:
        entries = [_entry(outcome, labels) for outcome in chunk]
        for outcome, entry in zip(chunk, entries, strict=True):
            if isinstance(entry, Quarantined):
                self._check(entry, outcome.where)
        journal.append(entries)  # before the records: what a kill leaves of them is then told of
        for outcome, entry in zip(chunk, entries, strict=True):
            if isinstance(entry, Recorded):
                assert isinstance(outcome.made, Made)
                place = self.first + tally.images
                layout.add(Record(tally.records, outcome.wnid, outcome.name, entry.label, outcome.made.data, place))
            tally.add(entry)

    def _check(self, entry: Quarantined, where: object) -> None:
        if self.options.on_error == "fail":
            hint = "" if entry.reason.endswith(OTHER_FORM) else "; to leave such images out: --on-error quarantine"
            raise CommandError(f"{where}: {entry.reason}{hint}", exit_code=1)

    def _readable(self, work: HalfMade, is_finished: bool) -> int:
        tally = Tally.of(work.journal)
        if not tally.records:
            return 0
        found = num_readable(Suspect(self.manifest(work.data, tally), self._target(work), work.journal), is_finished)
        return 0 if self.options.layout == "lmdb" and found < tally.records else found  # what is wrong in it cannot be cut off

    def _target(self, work: HalfMade) -> Target:
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
        """The dataset at `folder`; raises `CommandError` if it has no record."""
        if not tally.lengths:
            first, count = tally.quarantined[0], len(tally.quarantined)
            what = f"all {count} images are bad (the first: {first.name}, {first.reason})"
            raise CommandError(f"{what}; nothing to make a dataset of", exit_code=1)
        return Dataset(
            path=folder,
            name=self.destination.name,
            split=self.options.split,
            layout=self.options.layout,
            image=self.options.image_format,
            records=tally.records,
            bytes=sum(tally.lengths),
            classes=self.classes,
            label_convention="sorted_wnid",
            record_bytes_quantiles=quantiles_of(tally.lengths),
            digest=tally.digest.text(),
            source=self.source,
            version=__version__,
            shuffle_seed=self.options.shuffle_seed,
            quarantined=tuple(entry._asdict() for entry in tally.quarantined),
            shards=tally.shards,
        )


@dataclass(frozen=True)
class Job:
    """A dataset or a part of one that is to be made at a place."""

    writing: Writing
    identity: dict[str, Any]
    """What has to be the same for a job to go on from what an interrupted one has done."""
    manifest_name: str
    manifest: Callable[["Tally"], dict[str, Any]]
    """The file that is written last, and what it says; raises `CommandError` where there must be records, and are none."""
    clean: Callable[[HalfMade], None] = lambda _: None
    """What else is to be done when all is in its place. May be done in part already."""

    def run(self, outcomes: Outcomes, advance: Advance) -> "Tally":
        """Do what is not yet done; raises `CommandError`, and keeps what is done."""
        destination = self.writing.destination
        with half_made(destination, self.identity, self.writing.options.force) as work:
            tally = self.writing.told(work)
            if tally is not None and self._is_at(destination, tally):
                advance(tally.images)
            else:
                tally = self._made(work, tally, outcomes, advance)
                self._put_in_place(work, tally)
            self.clean(work)
        return tally

    def _made(self, work: HalfMade, tally: "Tally | None", outcomes: Outcomes, advance: Advance) -> "Tally":
        if tally is not None and self._is_at(work.data, tally):
            advance(tally.images)
            return tally
        tally = self.writing.run(work, outcomes, advance)
        self._save(work, tally)
        return tally

    def _put_in_place(self, work: HalfMade, tally: "Tally") -> None:
        destination = self.writing.destination
        try:
            put_in_place(work.data, destination, self.writing.options.force)
        except (KeyboardInterrupt, CommandError):
            if self._is_at(destination, tally):  # it came too late to change anything
                self.clean(work)
                work.clear()
            raise

    def _save(self, work: HalfMade, tally: "Tally") -> None:
        try:
            keys = self.manifest(tally)
        except CommandError:
            work.clear()
            raise
        if self.manifest_name != MANIFEST_NAME:
            shutil.copyfile(work.journal, work.data / work.journal.name)
        write_json_atomically(work.data / self.manifest_name, keys)

    def _is_at(self, folder: Path, tally: "Tally") -> bool:
        try:
            found = json.loads((folder / self.manifest_name).read_bytes())
        except (OSError, ValueError):
            return False
        expected = json.loads(json.dumps(self.manifest(tally)))
        return isinstance(found, dict) and {**found, "shards": None} == {**expected, "shards": None}


def dataset_job(writing: Writing, identity: dict[str, Any]) -> Job:
    """The job that makes a whole dataset."""
    return Job(writing, identity, MANIFEST_NAME, lambda tally: writing.manifest(writing.destination, tally).manifest())


class Tally:
    """What the manifest says about the records, gathered as they are written."""

    def __init__(self) -> None:
        self.digest = RecordDigest()
        self.lengths = array("I")
        self.quarantined: list[Quarantined] = []
        self.end = 0
        """Of the part of the journal that it was read from."""
        self.shards: int | None = None
        """Known when all is written."""

    @classmethod
    def of(cls, journal: Path, records: int | None = None) -> "Tally":
        """What a journal tells, up to what follows its first so many records."""
        tally = cls()
        for run, tally.end in runs(journal, records):
            if isinstance(run, Quarantined):
                tally.quarantined.append(run)
            else:
                tally.digest.add_entries(run.tobytes())
                tally.lengths.frombytes(run["length"].astype(np.uint32).tobytes())
        return tally

    @property
    def records(self) -> int:
        """How many there are."""
        return len(self.lengths)

    @property
    def images(self) -> int:
        """Records, and images that were left out."""
        return len(self.lengths) + len(self.quarantined)

    def add(self, entry: Entry) -> None:
        """Take in the next image."""
        if isinstance(entry, Quarantined):
            self.quarantined.append(entry)
        else:
            self.digest.add_hashed(entry.label, entry.length, entry.sha256)
            self.lengths.append(entry.length)


def _entry(outcome: Outcome, labels: dict[str, int]) -> Entry:
    if isinstance(outcome.made, Made):
        return Recorded(labels[outcome.wnid], outcome.made.length, outcome.made.sha256)
    return Quarantined(f"{outcome.wnid}/{outcome.name}", " ".join(outcome.made.replace("\0", " ").split()))


def in_chunks(items: Iterable[Item], size: int = CHUNK_IMAGES) -> Iterator[list[Item]]:
    """Lists of `size` items; the last may be shorter."""
    items = iter(items)
    while chunk := list(islice(items, size)):
        yield chunk
