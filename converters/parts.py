"""A conversion in parts, one per job of a scheduler's array, and what puts them together.

Part 2 of 4 of DST is the folder `DST.part-2-of-4`: its records as one LMDB environment, whatever layout was asked for, its journal,
and `part.json`, written last; it may have no record at all, when all its images are bad. Merging reads the parts' records in order
and hands them to the same writer that one machine would have used, so the bytes are the same.
"""

import json
import re
from collections.abc import Generator, Iterator
from contextlib import closing, suppress
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Any, Final

from ioprof.converters.destination import PART_NAME, PART_SCHEMA, SPACE_MARGIN, checked_destination, partial_name, require_space
from ioprof.converters.engines import local
from ioprof.converters.halfmade import HalfMade, half_made
from ioprof.converters.journal import Quarantined, Recorded, entries
from ioprof.converters.options import ConvertOptions
from ioprof.converters.reading import Made
from ioprof.converters.stored import Piece, StoredRecords
from ioprof.converters.writing import Advance, Job, Outcome, Tally, Writing, dataset_job, in_chunks
from ioprof.dataset import Dataset, ImageClass, is_plain_name
from ioprof.errors import CommandError, DatasetError

_MAX_PARTS: Final = 10_000
_MAX_PART_BYTES: Final = 1 << 28
_MERGE: Final = "merge of"  # what the identity of a merge has beside that of its parts: their number


@dataclass(frozen=True)
class Part:
    """One of so many, counted from 1."""

    number: int
    parts: int

    @classmethod
    def parse(cls, text: str) -> "Part":
        """From `i/n`; raises `CommandError`."""
        match = re.fullmatch(r"(\d{1,6})/(\d{1,6})", text)
        if not match or not 1 <= int(match[1]) <= int(match[2]) <= _MAX_PARTS:
            raise CommandError(f"--part {text!r}: give i/n, such as 1/4 to 4/4 for four parts (at most {_MAX_PARTS})")
        return cls(int(match[1]), int(match[2]))

    def places(self, total: int) -> range:
        """Which of `total` images it reads: all parts together read each once, in order."""
        return range((self.number - 1) * total // self.parts, self.number * total // self.parts)

    def beside(self, destination: Path) -> Path:
        """Where it is made."""
        return destination.with_name(f"{destination.name}.part-{self.number}-of-{self.parts}")

    def __str__(self) -> str:
        return f"{self.number}/{self.parts}"


def part_options(options: ConvertOptions) -> ConvertOptions:
    """How a part is stored, whatever the dataset is to be."""
    return replace(options, layout="lmdb", labels=None, shards=None, shard_bytes=None)


def part_job(part: Part, writing: Writing, identity: dict[str, Any], options: ConvertOptions) -> Job:
    """The job that makes a part."""

    def manifest(tally: Tally) -> dict[str, Any]:
        return {
            "schema": PART_SCHEMA,
            "part": part.number,
            "parts": part.parts,
            "total": writing.total,
            "records": tally.records,
            "bytes": sum(tally.lengths),
            "digest": tally.digest.text(),
            "quarantined": [entry._asdict() for entry in tally.quarantined],
            "source": writing.source,
            "classes": [asdict(entry) for entry in writing.classes],
            "options": asdict(options),
            "identity": identity,
        }

    return Job(writing, {**identity, "part": str(part)}, PART_NAME, manifest)


# ------------------------------------------------------------------------------------------------ merging


@dataclass(frozen=True)
class MadePart:
    """A part that is whole."""

    path: Path
    part: Part
    total: int
    records: int
    bytes: int
    """Of all records' images."""
    quarantined: tuple[dict[str, str], ...]
    """As a dataset has them."""
    source: str
    classes: tuple[ImageClass, ...]
    options: ConvertOptions
    identity: dict[str, Any]

    @property
    def places(self) -> range:
        """Of its images in the order of the whole source."""
        return self.part.places(self.total)

    @property
    def writing(self) -> Writing:
        """What wrote it."""
        places = self.places
        return Writing(self.path, part_options(self.options), self.classes, self.source, places.start, len(places), self.total)

    def outcomes(self, skip: int, workers: int | None) -> Iterator[Outcome]:
        """Of its images but the first `skip`; raises `DatasetError` when a record is not the one that the part was made of."""
        tally = Tally.of(self._journal)
        if tally.images != len(self.places):
            raise _damaged(self.path, "its journal is cut short")
        first_record = sum(isinstance(entry, Recorded) for entry in islice(entries(self._journal), skip))
        stored = self._stored(tally, first_record, workers)
        for entry in islice(entries(self._journal), skip, None):
            if isinstance(entry, Quarantined):
                wnid, _, name = entry.name.partition("/")
                yield Outcome(wnid, name, entry.name, entry.reason)
            else:
                yield self._record(entry, next(stored, None))

    @property
    def _journal(self) -> Path:
        return self.path / "journal"

    def manifest(self) -> dict[str, Any]:
        """What `part.json` says."""
        found: dict[str, Any] = json.loads((self.path / PART_NAME).read_bytes())
        return found

    def _record(self, entry: Recorded, found: "tuple[str, int, Made] | None") -> Outcome:
        if found is None or (found[1], len(found[2].data), found[2].sha256) != entry:
            raise _damaged(self.path, f"record {found[0] if found else '(missing)'} is not what was written")
        return Outcome(self.classes[entry.label].wnid, found[0], found[0], found[2])

    def _stored(self, tally: Tally, skip: int, workers: int | None) -> Iterator[tuple[str, int, Made]]:
        if not tally.records:
            return
        with closing(_Rereading(self.writing.manifest(self.path, tally))) as work:
            pieces = [piece for piece in work.pieces() if piece.stop > skip]
            if pieces:
                pieces[0] = pieces[0]._replace(start=max(pieces[0].start, skip))
            with closing(local(workers)(work, pieces, len(pieces))) as results:
                for found in results:
                    yield from found


class _Rereading(StoredRecords):
    """Reads pieces whole, and hashes them."""

    def __call__(self, piece: Piece) -> list[tuple[str, int, Made]]:
        return [(name, label, Made.of(data)) for name, label, data in self.read(piece)]


@dataclass(frozen=True)
class Merging:
    """Parts that were found to belong together."""

    destination: Path
    parts: list[MadePart]
    force: bool
    workers: int | None

    @property
    def images(self) -> int:
        """How many images they were made from."""
        return self.parts[0].total

    @property
    def options(self) -> ConvertOptions:
        """Of the dataset that they make."""
        return replace(self.parts[0].options, force=self.force, workers=self.workers)

    @cached_property
    def done_before(self) -> int:
        """How many of them the same merge had done when this one was planned."""
        return self.done()

    def done(self) -> int:
        """How many of them the same merge has done before it was interrupted."""
        work = HalfMade.beside(self.destination)
        return work.images_done if work.job() == self._job.identity else 0

    def run(self, advance: Advance = lambda _: None) -> Dataset:
        """Do it, and remove the parts. Raises `CommandError` or `DatasetError`; the same merge, started again, goes on."""
        self._job.run(self._outcomes, advance)
        return Dataset.load(self.destination)

    @property
    def _job(self) -> Job:
        first = self.parts[0]
        options = replace(self.options, on_error="quarantine")  # what was to fail has failed
        writing = Writing(self.destination, options, first.classes, first.source, 0, first.total, first.total)
        job = dataset_job(writing, {**first.identity, _MERGE: len(self.parts)})
        return replace(job, clean=lambda work: _take_away(self.destination, job.identity, work))

    def _outcomes(self, first: int) -> Generator[list[Outcome]]:
        yield from in_chunks(self._each(first))

    def _each(self, first: int) -> Iterator[Outcome]:
        for part in self.parts:
            if first < part.places.stop:
                yield from part.outcomes(max(0, first - part.places.start), self.workers)


@dataclass(frozen=True)
class Merged:
    """A merge that was killed when the dataset was in its place already: what remains is to remove the parts."""

    destination: Path
    images: int
    identity: dict[str, Any]

    @property
    def done_before(self) -> int:
        """All of them."""
        return self.images

    def done(self) -> int:
        """All of them."""
        return self.images

    def run(self, advance: Advance = lambda _: None) -> Dataset:
        """Do it."""
        with half_made(self.destination, self.identity, force=False) as work:
            _take_away(self.destination, self.identity, work)
        advance(self.images)
        return Dataset.load(self.destination)


def plan_merge(destination: Path, force: bool = False, workers: int | None = None) -> Merging | Merged:
    """Find the parts of `destination` and look at the free space; raises `CommandError` or `DatasetError` for what is missing."""
    target = checked_destination(destination, force=True)
    HalfMade.beside(target).sweep()
    if (merged := _merged(target)) is not None:
        return merged
    target = checked_destination(destination, force)
    parts = [_expected_part(folder, part) for folder, part in _found_parts(target)]
    first = parts[0]
    for other in parts[1:]:
        keys = [key for key in first.identity.keys() | other.identity.keys() if first.identity.get(key) != other.identity.get(key)]
        if keys or other.total != first.total:
            raise CommandError(f"{other.path}: differs from part {first.part} in {', '.join(sorted(keys))}; convert it again")
    merging = Merging(target, parts, force, workers)
    size = sum(path.stat().st_size for part in parts for path in part.path.rglob("*.mdb"))
    left = 1 - merging.done_before / merging.images
    files = round(merging.images * left) if merging.options.layout == "files" else 1
    require_space(target, round(size * SPACE_MARGIN * left), files)
    return merging


def _merged(destination: Path) -> Merged | None:
    work = HalfMade.beside(destination)
    identity = work.job() or {}
    try:
        made = Dataset.load(destination)
    except DatasetError:
        return None
    parts, tally = identity.get(_MERGE), Tally.of(work.journal)
    if type(parts) is not int or not 0 < parts <= _MAX_PARTS or (tally.records, tally.digest.text()) != (made.records, made.digest):
        return None
    return Merged(destination, tally.images, identity)


def _take_away(destination: Path, identity: dict[str, Any], work: HalfMade) -> None:
    # Into the job's own folder, which goes when all is done: a kill then leaves no part that looks like one to be merged.
    for number in range(1, identity[_MERGE] + 1):
        folder = Part(number, identity[_MERGE]).beside(destination)
        with suppress(DatasetError):  # gone already, or another's
            if {**read_part(folder).identity, _MERGE: identity[_MERGE]} == identity:
                folder.rename(work.folder / folder.name)


def _expected_part(folder: Path, part: Part) -> MadePart:
    made = read_part(folder)
    if made.part != part:
        raise _damaged(folder, f"is part {made.part}")
    return made


def _found_parts(destination: Path) -> list[tuple[Path, Part]]:
    pattern = re.compile(re.escape(destination.name) + r"\.part-(\d{1,6})-of-(\d{1,6})")
    matches = [match for path in destination.parent.glob("*") if (match := pattern.fullmatch(path.name))]
    found = {Part(int(match[1]), int(match[2])): destination.with_name(match[0]) for match in matches}
    counts = sorted({part.parts for part in found})
    if not found:
        what = f"ioprof convert imagenet SOURCE {destination} --part 1/4"
        raise CommandError(f"{destination}: no parts beside it; make them with: {what}")
    if len(counts) > 1:
        kinds = " and of ".join(map(str, counts))
        raise CommandError(f"{destination}: parts of {kinds} lie beside it; remove those that are not meant")
    wanted = [Part(number, counts[0]) for number in range(1, min(counts[0], _MAX_PARTS) + 1)]
    missing = [part for part in wanted if part not in found or not (found[part] / PART_NAME).is_file()]
    if missing:
        begun = " (begun, and not done)" if destination.with_name(partial_name(missing[0].beside(destination))).exists() else ""
        more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
        raise CommandError(f"{destination}: part {missing[0]}{begun}{more} is missing; make it with: --part {missing[0]}")
    return [(found[part], part) for part in wanted]


def read_part(folder: Path) -> MadePart:
    """The part in a folder; raises `DatasetError` if it cannot be used."""
    path = folder / PART_NAME
    try:
        keys = json.loads(path.read_bytes()) if path.stat().st_size < _MAX_PART_BYTES else {}
        if keys["schema"] != PART_SCHEMA:
            raise _damaged(folder, f"schema is {str(keys['schema'])[:60]!r}, this version of ioprof reads {PART_SCHEMA!r}")
        part = Part.parse(f"{keys['part']}/{keys['parts']}")
        classes = tuple(ImageClass(str(entry["wnid"]), str(entry["name"])) for entry in keys["classes"])
        if not classes or not all(is_plain_name(entry.wnid) for entry in classes):
            raise _damaged(folder, "its classes cannot be used")
        options = ConvertOptions(**keys["options"])
        quarantined = tuple({"name": str(entry["name"]), "reason": str(entry["reason"])} for entry in keys["quarantined"])
        counts = int(keys["total"]), int(keys["records"]), int(keys["bytes"])
        made = MadePart(folder, part, *counts, quarantined, str(keys["source"]), classes, options, keys["identity"])
    except OSError as error:
        raise DatasetError(f"{path}: cannot be read ({error.strerror})") from None
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise _damaged(folder, f"{PART_NAME}: {type(error).__name__} {error}") from None
    if not (0 < made.total < 2**40 and made.records >= 0 and made.bytes >= 0 and isinstance(made.identity, dict)):
        raise _damaged(folder, f"{PART_NAME} cannot be used")
    return made


def _damaged(folder: Path, what: str) -> DatasetError:
    return DatasetError(f"{folder}: {what}; remove it and convert this part again")
