"""Verifies a dataset against its manifest: counts, bytes and digest; deep: every record decodes,
and has the source's label.
"""

import contextlib
import hashlib
import io
import re
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, NamedTuple

from PIL import Image

from ioprof import jpeg
from ioprof.converters.images.transforms import BadImageError, check_jpeg
from ioprof.converters.job.conversion import file_namer
from ioprof.converters.job.engines import local
from ioprof.converters.layouts.stored_records import Piece, StoredRecords
from ioprof.converters.sources.source import Source
from ioprof.converters.sources.source_kinds import open_source
from ioprof.errors import CommandError, DatasetError
from ioprof.format.dataset import Dataset, ImageFormat, RecordDigest
from ioprof.reporter import Advance

MAX_PROBLEMS: Final = 20
"""Further problems are counted, but not listed."""

_WNID: Final = re.compile(r"(n\d{8})_\d+")


class RecordFacts(NamedTuple):
    """Properties of one record as it is stored."""

    name: str
    label: int
    length: int
    sha256: bytes
    problem: str | None
    """Why it cannot be decoded; None if it can, or if that was not checked."""


@dataclass
class Verification:
    """The result of a verification."""

    dataset: Dataset
    deep: bool
    records: int = 0
    bytes: int = 0
    digest: str = ""
    labels_from: str | None = None
    """What labels were compared with, as text; None: they were not compared."""
    num_problems: int = 0
    problems: list[str] = field(default_factory=list)
    """The first of them, one line each."""

    @property
    def is_good(self) -> bool:
        """Whether there are no problems."""
        return not self.num_problems

    def to_dict(self) -> dict[str, object]:
        """The result as `ioprof verify --json` prints it."""
        return {
            "path": str(self.dataset.path),
            "good": self.is_good,
            "deep": self.deep,
            "records": self.records,
            "bytes": self.bytes,
            "digest": self.digest,
            "labels_compared_with": self.labels_from,
            "num_problems": self.num_problems,
            "problems": self.problems,
        }

    def text(self, seconds: float) -> str:
        """What was read, how long that took, and what is wrong: one line, and one for each listed
        problem.
        """
        how = f"; every record decodes; labels are those of {self.labels_from}" if self.deep else ""
        head = (
            f"{self.dataset.path}: {self.records} records, {self.bytes / 1e6:.1f} MB, read in"
            f" {seconds:.1f} s"
        )
        if self.is_good:
            return f"{head}: as the manifest says{how}"
        more = (
            [f"  and {self.num_problems - len(self.problems)} more"]
            if self.num_problems > len(self.problems)
            else []
        )
        return "\n".join(
            [
                f"{head}: {self.num_problems} problems",
                *(f"  {line}" for line in self.problems),
                *more,
            ]
        )

    def add_problem(self, text: str) -> None:
        """Count a problem, and list it if it is among the first `MAX_PROBLEMS`."""
        self.num_problems += 1
        if len(self.problems) < MAX_PROBLEMS:
            self.problems.append(text)


@dataclass(frozen=True)
class Verifier:
    """A planned verification."""

    dataset: Dataset
    deep: bool
    source: Source | None
    workers: int | None

    def run(self, advance: Advance = lambda _: None) -> Verification:
        """Read all records; problems are listed in the result."""
        labels_from = (
            "the wnids in the names of the images, where they have one" if self.deep else None
        )
        found = Verification(
            self.dataset,
            self.deep,
            labels_from=labels_from if self.source is None else "the source",
        )
        digest = RecordDigest()
        expected = self._expected()
        try:
            for fact in self._facts(advance):
                self._check(found, fact, next(expected, None))
                digest.add_hashed(fact.label, fact.length, fact.sha256)
                found.records += 1
                found.bytes += fact.length
        except DatasetError as error:
            found.add_problem(str(error))
        found.digest = digest.text()
        self._compare_totals(found)
        return found

    def _facts(self, advance: Advance) -> Iterator[RecordFacts]:
        with contextlib.closing(_RecordChecker(self.dataset, self.deep)) as work:
            pieces = work.pieces()
            results = local(self.workers)(work, pieces, len(pieces))
            with contextlib.closing(results):
                for facts in results:
                    yield from facts
                    advance(len(facts))

    def _check(
        self, found: Verification, fact: RecordFacts, expected: tuple[str, int] | None
    ) -> None:
        where = f"record {found.records} ({fact.name})"
        if not 0 <= fact.label < len(self.dataset.classes):
            found.add_problem(
                f"{where}: label {fact.label}, but there are {len(self.dataset.classes)} classes"
            )
        if fact.problem:
            found.add_problem(f"{where}: {fact.problem}")
        if self.source is not None and expected != (fact.name, fact.label):
            name, label = expected or ("nothing", "none")
            found.add_problem(
                f"{where}: label {fact.label}; the source has {name} with label {label} at this"
                " index"
            )
        if self.deep and self.source is None:
            wnid = _WNID.match(fact.name)
            classes = self.dataset.classes
            found_wnid = classes[fact.label].wnid if wnid and 0 <= fact.label < len(classes) else ""
            # Where classes are not named like ImageNet's, file names need not contain the class.
            if wnid and found_wnid != wnid[1] and re.fullmatch(r"n\d{8}", found_wnid):
                found.add_problem(f"{where}: label {fact.label} is {found_wnid}")

    def _expected(self) -> Iterator[tuple[str, int]]:
        if self.source is None:
            return
        dataset = self.dataset
        name = file_namer(self.source.images, dataset.image)
        labels = {wnid: label for label, wnid in enumerate(self.source.wnids)}
        left_out = {entry["name"] for entry in dataset.quarantined}
        order = self.source.order(dataset.shuffle_seed)
        for number in order.between(0, min(len(order), dataset.records + len(left_out))):
            origin = self.source.images[number]
            if f"{origin.wnid}/{origin.name}" not in left_out:
                yield name(origin), labels[origin.wnid]

    def _compare_totals(self, found: Verification) -> None:
        for name in ("records", "bytes", "digest"):
            actual, expected = getattr(found, name), getattr(self.dataset, name)
            # of an index nothing else is known
            if actual != expected and (self.dataset.is_read or name == "records"):
                found.add_problem(f"{name}: {actual}, the manifest says {expected}")
        if self.source is not None and self.source.wnids != tuple(
            entry.wnid for entry in self.dataset.classes
        ):
            found.add_problem("the source has other classes")


def plan_verification(
    path: Path, deep: bool = False, source: Path | None = None, workers: int | None = None
) -> Verifier:
    """Check dataset and source; raises `CommandError` or `DatasetError`."""
    dataset = Dataset.load(path)
    if source is not None and dataset.scale != 1:
        raise CommandError(
            f"{path}: was scaled by {dataset.scale}, and differs from its source; leave out"
            " --source"
        )
    return Verifier(
        dataset,
        deep or source is not None,
        open_source(source, dataset.split, on_error="quarantine") if source else None,
        workers,
    )


class _RecordChecker(StoredRecords):
    """Reads pieces, and returns the facts of their records."""

    def __init__(self, dataset: Dataset, deep: bool) -> None:
        super().__init__(dataset)
        self._deep = deep

    def __getstate__(self) -> dict[str, object]:
        return {**super().__getstate__(), "_deep": self._deep}

    def __call__(self, piece: Piece) -> list[RecordFacts]:
        image = self._dataset.image
        return [
            RecordFacts(
                name,
                label,
                len(data),
                hashlib.sha256(data).digest(),
                decoding_problem(data, image) if self._deep else None,
            )
            for name, label, data in self.read(piece)
        ]


def decoding_problem(data: bytes, image: ImageFormat) -> str | None:
    """Why these bytes are not an image of this format; None if they are."""
    side = image.size or 0
    if image.encoding == "raw":
        return (
            None
            if len(data) == 3 * side * side
            else f"{len(data)} bytes, {3 * side * side} expected"
        )
    try:
        check_jpeg(data, jpeg.installed())
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            warnings.simplefilter("error", Image.DecompressionBombWarning)
            with Image.open(io.BytesIO(data)) as decoded:
                decoded.load()
                size, mode, kind = decoded.size, decoded.mode, decoded.format
    except MemoryError:
        raise
    except BadImageError as error:
        return str(error)
    except Exception as error:  # a decoder can raise nearly anything for hostile bytes
        return f"cannot be decoded ({error or type(error).__name__})"
    if image.transform == "original":
        return None
    expected = {"jpeg": "JPEG", "png": "PNG"}.get(image.encoding)
    wrong = min(size) != side if image.resize == "short" else size != (side, side)
    return (
        f"{kind}, {size[0]} x {size[1]}, {mode}"
        if wrong or mode != "RGB" or kind != expected
        else None
    )
