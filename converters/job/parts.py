"""A conversion in parts, one per task of a scheduler's job array, and the merge of the parts.

Part 2 of 4 of DST is the folder `DST.part-2-of-4`: its records as one LMDB environment, independent
of the requested layout, its journal, and `part.json`, written last. It has no records when all its
images are bad. The merge reads the parts' records in order and passes them to the writer of a
conversion on one machine, so the result has the same bytes.
"""

import glob
import json
import re
from collections.abc import Generator, Iterator
from contextlib import closing, suppress
from dataclasses import asdict, dataclass, fields, replace
from itertools import chain, islice
from pathlib import Path
from typing import Any, ClassVar, Final

import msgspec

from ioprof.converters.job.dataset_writer import (
    DatasetWriter,
    Job,
    Outcome,
    Resumable,
    Tally,
    dataset_job,
    in_chunks,
)
from ioprof.converters.job.destination import SPACE_MARGIN, check_destination, require_space
from ioprof.converters.job.engines import local
from ioprof.converters.job.image_converter import RecordData
from ioprof.converters.job.journal import QuarantineEntry, RecordEntry, read_entries
from ioprof.converters.job.partial_output import PartialOutput, open_partial_output
from ioprof.converters.layouts.registry import LAYOUTS
from ioprof.converters.layouts.stored_records import Piece, StoredRecords
from ioprof.converters.manifests import PART_NAME, PART_SCHEMA
from ioprof.converters.options import ConvertOptions
from ioprof.errors import CommandError, DatasetError
from ioprof.files import read_regular_file
from ioprof.format.dataset import Dataset, ImageClass, is_plain_name, parse_json
from ioprof.reporter import Advance

_MAX_PARTS: Final = 10_000
# key in the identity of a merge, in addition to that of its parts: the number of parts
_MERGE: Final = "merge of"


@dataclass(frozen=True)
class Part:
    """Part `number` of `parts`, counted from 1."""

    number: int
    parts: int

    @classmethod
    def parse(cls, text: str) -> "Part":
        """Parse `i/n`; raises `CommandError`."""
        match = re.fullmatch(r"(\d{1,6})/(\d{1,6})", text)
        if not match or not 1 <= int(match[1]) <= int(match[2]) <= _MAX_PARTS:
            raise CommandError(
                f"--part {text!r}: give i/n, such as 1/4 to 4/4 for four parts (at most"
                f" {_MAX_PARTS})"
            )
        return cls(int(match[1]), int(match[2]))

    def places(self, total: int) -> range:
        """Indices of its images among `total`: all parts together contain each once, in order."""
        return range((self.number - 1) * total // self.parts, self.number * total // self.parts)

    def folder_for(self, destination: Path) -> Path:
        """The folder of this part of `destination`."""
        return destination.with_name(f"{destination.name}.part-{self.number}-of-{self.parts}")

    def __str__(self) -> str:
        return f"{self.number}/{self.parts}"


def part_options(options: ConvertOptions) -> ConvertOptions:
    """The options by which a part of a dataset with `options` is stored."""
    return replace(options, layout="lmdb", labels=None, shards=None, shard_bytes=None)


def without_versions(identity: dict[str, Any]) -> dict[str, Any]:
    """Options and source of a job, which are stored with what it makes."""
    return {key: value for key, value in identity.items() if key not in ("versions", "part")}


def part_job(
    part: Part, writing: DatasetWriter, identity: dict[str, Any], options: ConvertOptions
) -> Job:
    """The job that makes a part."""

    def manifest(tally: Tally) -> dict[str, Any]:
        return {
            "schema": PART_SCHEMA,
            "part": part.number,
            "parts": part.parts,
            "total": writing.total,
            "records": tally.records,
            "bytes": tally.bytes,
            "digest": tally.digest.text(),
            "quarantined": [entry._asdict() for entry in tally.quarantined],
            "refused": [entry._asdict() for entry in writing.refused],
            "source": writing.source,
            "classes": [asdict(entry) for entry in writing.classes],
            "options": asdict(options),
            "identity": identity,
        }

    return Job(writing, {**identity, "part": str(part)}, PART_NAME, manifest)


# ------------------------------------------------------------------------------------------ merging


@dataclass(frozen=True)
class FinishedPart:
    """A complete part."""

    path: Path
    part: Part
    total: int
    records: int
    bytes: int
    """Total length of the records."""
    quarantined: tuple[dict[str, str], ...]
    """In the format of `Dataset.quarantined`."""
    source: str
    classes: tuple[ImageClass, ...]
    options: ConvertOptions
    identity: dict[str, Any]
    refused: tuple[QuarantineEntry, ...] = ()
    """What the whole source left out by its name: the same in all parts."""

    @property
    def places(self) -> range:
        """Indices of its images in the shuffled order of the whole source."""
        return self.part.places(self.total)

    @property
    def writing(self) -> DatasetWriter:
        """The writer that wrote it."""
        places = self.places
        return DatasetWriter(
            self.path,
            part_options(self.options),
            self.classes,
            self.source,
            places.start,
            len(places),
            self.total,
        )

    def outcomes(self, skip: int, workers: int | None) -> Iterator[Outcome]:
        """The outcomes of its images after the first `skip`; raises `DatasetError` when a record
        differs from the journal.
        """
        tally = Tally.of(self._journal)
        if tally.images != len(self.places):
            raise _damaged(self.path, "its journal is cut short")
        first_record = sum(
            isinstance(entry, RecordEntry) for entry in islice(read_entries(self._journal), skip)
        )
        stored = self._stored(tally, first_record, workers)
        for entry in islice(read_entries(self._journal), skip, None):
            if isinstance(entry, QuarantineEntry):
                wnid, _, name = entry.name.partition("/")
                yield Outcome(wnid, name, entry.name, entry.reason)
                continue
            found = next(stored, None)
            if found is None or (found[1], len(found[2].data), found[2].sha256) != entry:
                raise _damaged(
                    self.path,
                    f"record {found[0] if found else '(missing)'} is not what was written",
                )
            if entry.label >= len(self.classes):
                raise _damaged(
                    self.path,
                    f"record {found[0]} has the label {entry.label}, and there are"
                    f" {len(self.classes)} classes",
                )
            yield Outcome(self.classes[entry.label].wnid, found[0], found[0], found[2])

    @property
    def _journal(self) -> Path:
        return self.path / "journal"

    def manifest(self) -> dict[str, Any]:
        """The content of `part.json`."""
        found: dict[str, Any] = json.loads((self.path / PART_NAME).read_bytes())
        return found

    def _stored(
        self, tally: Tally, skip: int, workers: int | None
    ) -> Iterator[tuple[str, int, RecordData]]:
        if not tally.records:
            return
        with closing(_HashedRecords(self.writing.manifest(self.path, tally))) as work:
            pieces = work.pieces().after(skip)
            if pieces:
                with closing(local(workers)(work, pieces, len(pieces))) as results:
                    for found in results:
                        yield from found


class _HashedRecords(StoredRecords):
    """Reads pieces, and hashes their records."""

    def __call__(self, piece: Piece) -> list[tuple[str, int, RecordData]]:
        return [(name, label, RecordData.of(data)) for name, label, data in self.read(piece)]


@dataclass(frozen=True)
class Merge(Resumable):
    """A planned merge: all parts exist and belong to the same conversion."""

    was_done: ClassVar[bool] = False
    """Something is left to do."""
    destination: Path
    parts: list[FinishedPart]
    force: bool
    workers: int | None

    @property
    def images(self) -> int:
        """Number of images of all parts."""
        return self.parts[0].total

    @property
    def options(self) -> ConvertOptions:
        """The options of the merged dataset."""
        return replace(self.parts[0].options, force=self.force, workers=self.workers)

    def run(self, advance: Advance = lambda _: None) -> Dataset:
        """Merge, and remove the parts. Raises `CommandError` or `DatasetError`; the same merge,
        started again, resumes.
        """
        self._job.run(self._outcomes, advance)
        return Dataset.load(self.destination)

    @property
    def _job(self) -> Job:
        first = self.parts[0]
        # with `fail` there would be no finished parts
        options = replace(self.options, on_error="quarantine", on_corrupt=None)
        writing = DatasetWriter(
            self.destination,
            options,
            first.classes,
            first.source,
            0,
            first.total,
            first.total,
            first.refused,
            without_versions(first.identity),
        )
        job = dataset_job(writing, {**first.identity, _MERGE: len(self.parts)})
        return replace(job, clean=lambda work: move_parts(self.destination, job.identity, work))

    def _outcomes(self, first: int) -> Generator[list[Outcome]]:
        remaining = (part for part in self.parts if first < part.places.stop)
        outcomes = (
            part.outcomes(max(0, first - part.places.start), self.workers) for part in remaining
        )
        yield from in_chunks(chain.from_iterable(outcomes))


@dataclass(frozen=True)
class WrittenMerge:
    """A merge whose dataset is complete; of one that was killed after the rename the parts remain
    to be removed.
    """

    destination: Path
    images: int
    identity: dict[str, Any] | None = None
    """Of the job whose parts remain; None: they are gone, and nothing is left to do."""

    @property
    def was_done(self) -> bool:
        """Whether nothing is left to do."""
        return self.identity is None

    @property
    def done_before(self) -> int:
        """All images."""
        return self.images

    def done(self) -> int:
        """All images."""
        return self.images

    def run(self, advance: Advance = lambda _: None) -> Dataset:
        """Remove the parts, if they remain."""
        if self.identity is not None:
            with open_partial_output(self.destination, self.identity, force=False) as work:
                move_parts(self.destination, self.identity, work)
            advance(self.images)
        return Dataset.load(self.destination)


def plan_merge(
    destination: Path, force: bool = False, workers: int | None = None
) -> Merge | WrittenMerge:
    """Find the parts of `destination` and check the free space; raises `CommandError` or
    `DatasetError` if a part is missing.
    """
    target = check_destination(destination, force=True)
    PartialOutput.for_destination(target).remove_if_empty()
    if (cleanup := _find_cleanup(target)) is not None:
        return cleanup
    if not force and (done := _find_merged(target)) is not None:
        return done
    target = check_destination(destination, force)
    parts = []
    for folder, part in _find_parts(target):
        parts.append(read_part(folder))
        if parts[-1].part != part:
            raise _damaged(folder, f"is part {parts[-1].part}")
    first = parts[0]
    for other in parts[1:]:
        keys = [
            key
            for key in first.identity.keys() | other.identity.keys()
            if first.identity.get(key) != other.identity.get(key)
        ]
        keys += [key for key in ("total", "classes") if getattr(other, key) != getattr(first, key)]
        if keys:
            raise CommandError(
                f"{other.path}: differs from part {first.part} in {', '.join(sorted(keys))};"
                " convert it again"
            )
    merging = Merge(target, parts, force, workers)
    size = sum(path.stat().st_size for part in parts for path in part.path.rglob("*.mdb"))
    left = 1 - merging.done_before / merging.images
    files = round(merging.images * left) if merging.options.layout == "files" else 1
    require_space(target, round(size * SPACE_MARGIN * left), files)
    return merging


def _find_merged(destination: Path) -> WrittenMerge | None:
    if any(destination.parent.glob(f"{glob.escape(destination.name)}.part-*")):
        return None
    try:
        dataset = Dataset.load(destination)
    except DatasetError:
        return None
    return WrittenMerge(destination, dataset.records) if dataset.conversion is not None else None


def _find_cleanup(destination: Path) -> WrittenMerge | None:
    work = PartialOutput.for_destination(destination)
    identity = work.read_job() or {}
    try:
        dataset = Dataset.load(destination)
    except DatasetError:
        return None
    parts, tally = identity.get(_MERGE), Tally.of(work.journal)
    if type(parts) is not int or not 0 < parts <= _MAX_PARTS:
        return None
    if (tally.records, tally.digest.text()) != (dataset.records, dataset.digest):
        return None
    return WrittenMerge(destination, tally.images, identity)


def move_parts(destination: Path, identity: dict[str, Any], work: PartialOutput) -> None:
    """Move the merged parts into the job's folder, which is removed at the end: a kill then leaves
    no part at its own place.
    """
    for number in range(1, identity[_MERGE] + 1):
        folder = Part(number, identity[_MERGE]).folder_for(destination)
        with suppress(DatasetError):  # moved already, or of another conversion
            if {**read_part(folder).identity, _MERGE: identity[_MERGE]} == identity:
                folder.rename(work.folder / folder.name)


def _find_parts(destination: Path) -> list[tuple[Path, Part]]:
    pattern = re.compile(re.escape(destination.name) + r"\.part-(\d{1,6})-of-(\d{1,6})")
    matches = [
        match for path in destination.parent.glob("*") if (match := pattern.fullmatch(path.name))
    ]
    found = {
        Part(int(match[1]), int(match[2])): destination.with_name(match[0]) for match in matches
    }
    counts = sorted({part.parts for part in found})
    if not found:
        what = f"ioprof convert imagenet SOURCE {destination} --part 1/4"
        raise CommandError(f"{destination}: there are no parts next to it; make them with: {what}")
    if len(counts) > 1:
        kinds = " and of ".join(map(str, counts))
        raise CommandError(
            f"{destination}: there are parts of {kinds} next to it; remove those of the other"
            " conversion"
        )
    wanted = [Part(number, counts[0]) for number in range(1, min(counts[0], _MAX_PARTS) + 1)]
    missing = [
        part for part in wanted if part not in found or not (found[part] / PART_NAME).is_file()
    ]
    if missing:
        unfinished = PartialOutput.for_destination(
            missing[0].folder_for(destination)
        ).folder.exists()
        state = " (started, but not finished)" if unfinished else ""
        more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
        raise CommandError(
            f"{destination}: part {missing[0]}{state}{more} is missing; make it with: --part"
            f" {missing[0]}"
        )
    return [(found[part], part) for part in wanted]


def read_part(folder: Path) -> FinishedPart:
    """The part in a folder; raises `DatasetError` if it cannot be used."""
    path = folder / PART_NAME
    try:
        keys = parse_json(read_regular_file(path))
        if keys["schema"] != PART_SCHEMA:
            raise _damaged(
                folder,
                f"schema is {str(keys['schema'])[:60]!r}, this version of ioprof reads"
                f" {PART_SCHEMA!r}",
            )
        part = Part.parse(f"{keys['part']}/{keys['parts']}")
        classes = tuple(
            ImageClass(str(entry["wnid"]), str(entry["name"])) for entry in keys["classes"]
        )
        if not classes or not all(is_plain_name(entry.wnid) for entry in classes):
            raise _damaged(folder, "its classes cannot be used")
        options = _options(keys["options"])
        quarantined = tuple(
            {"name": str(entry["name"]), "reason": str(entry["reason"])}
            for entry in keys["quarantined"]
        )
        refused = tuple(
            QuarantineEntry(str(entry["name"]), str(entry["reason"]))
            for entry in keys.get("refused", [])
        )
        counts = int(keys["total"]), int(keys["records"]), int(keys["bytes"])
        found = FinishedPart(
            folder,
            part,
            *counts,
            quarantined,
            str(keys["source"]),
            classes,
            options,
            keys["identity"],
            refused,
        )
    except OSError as error:
        raise DatasetError(f"{path}: cannot be read ({error.strerror})") from None
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError, CommandError) as error:
        raise _damaged(
            folder, f"{PART_NAME}: {type(error).__name__} {str(error)[:200]!r}"
        ) from None
    if not (
        0 < found.total < 2**40
        and found.records >= 0
        and found.bytes >= 0
        and isinstance(found.identity, dict)
    ):
        raise _damaged(folder, f"{PART_NAME} cannot be used")
    return found


def _options(values: dict[str, Any]) -> ConvertOptions:
    """The options of a part; raises ValueError, TypeError and `CommandError`."""
    options = msgspec.convert(values, ConvertOptions)
    unknown = values.keys() - {field.name for field in fields(ConvertOptions)}
    if unknown or options.layout not in LAYOUTS:
        raise ValueError(f"options {', '.join(sorted(unknown)) or options.layout}")
    return options


def _damaged(folder: Path, what: str) -> DatasetError:
    return DatasetError(f"{folder}: {what}; remove it and convert this part again")
