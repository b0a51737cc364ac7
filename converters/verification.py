"""Is a dataset what its manifest says? Counts, bytes and digest; deeper: every record decodes, and its label is the source's."""

import contextlib
import hashlib
import io
import re
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Final, NamedTuple

from PIL import Image

from ioprof.converters.conversion import name_giver
from ioprof.converters.engines import local
from ioprof.converters.origin import Source
from ioprof.converters.sources import open_source
from ioprof.converters.stored import Piece, StoredRecords
from ioprof.converters.writing import Advance
from ioprof.dataset import Dataset, ImageFormat, RecordDigest
from ioprof.errors import CommandError, DatasetError

MAX_PROBLEMS: Final = 20
"""More are counted, not told."""

_WNID: Final = re.compile(r"(n\d{8})_\d+")


class Fact(NamedTuple):
    """What was read of one record."""

    name: str
    label: int
    length: int
    sha256: bytes
    problem: str | None
    """Why it cannot be decoded."""


@dataclass
class Verification:
    """What was found."""

    dataset: Dataset
    deep: bool
    records: int = 0
    bytes: int = 0
    digest: str = ""
    labels_from: str | None = None
    """What labels were compared with, in words; null: with nothing."""
    num_problems: int = 0
    problems: list[str] = field(default_factory=list)
    """The first of them, one line each."""

    @property
    def is_good(self) -> bool:
        """Whether nothing is wrong."""
        return not self.num_problems

    def add_problem(self, text: str) -> None:
        """Count it, and keep it if it is among the first."""
        self.num_problems += 1
        if len(self.problems) < MAX_PROBLEMS:
            self.problems.append(text)


@dataclass(frozen=True)
class Verifier:
    """A check that can be made."""

    dataset: Dataset
    deep: bool
    source: Source | None
    workers: int | None

    def run(self, advance: Advance = lambda _: None) -> Verification:
        """Read everything; what is wrong is in the result."""
        found = Verification(self.dataset, self.deep, labels_from=self._labels_from())
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
        self._compare(found)
        return found

    def _facts(self, advance: Advance) -> Iterator[Fact]:
        with contextlib.closing(_Facts(self.dataset, self.deep)) as work:
            pieces = list(work.pieces())
            results = local(self.workers)(work, pieces, len(pieces))
            with contextlib.closing(results):
                for facts in results:
                    yield from facts
                    advance(len(facts))

    def _check(self, found: Verification, fact: Fact, expected: tuple[str, int] | None) -> None:
        where = f"record {found.records} ({fact.name})"
        if not 0 <= fact.label < len(self.dataset.classes):
            found.add_problem(f"{where}: label {fact.label}, and there are {len(self.dataset.classes)} classes")
        if fact.problem:
            found.add_problem(f"{where}: {fact.problem}")
        if self.source is not None and expected != (fact.name, fact.label):
            name, label = expected or ("nothing", "none")
            found.add_problem(f"{where}: label {fact.label}; the source has {name} with label {label} in this place")
        if self.deep and self.source is None:
            wnid = _WNID.match(fact.name)
            classes = self.dataset.classes
            if wnid and 0 <= fact.label < len(classes) and classes[fact.label].wnid not in (wnid[1], *self._foreign):
                found.add_problem(f"{where}: label {fact.label} is {classes[fact.label].wnid}")

    @cached_property
    def _foreign(self) -> tuple[str, ...]:
        # Classes that are not named as ImageNet's are: names of files then need not say the class.
        return tuple(entry.wnid for entry in self.dataset.classes if not re.fullmatch(r"n\d{8}", entry.wnid))

    def _labels_from(self) -> str | None:
        if self.source is not None:
            return "the source"
        return "the wnids in the names of the images, where they have one" if self.deep else None

    def _expected(self) -> Iterator[tuple[str, int]]:
        if self.source is None:
            return
        dataset = self.dataset
        name = name_giver(self.source.images, dataset.image)
        labels = {wnid: label for label, wnid in enumerate(self.source.wnids)}
        left_out = {entry["name"] for entry in dataset.quarantined}
        for number in self.source.order(dataset.shuffle_seed)[: dataset.records + len(left_out)]:
            origin = self.source.images[int(number)]
            if f"{origin.wnid}/{origin.name}" not in left_out:
                yield name(origin), labels[origin.wnid]

    def _compare(self, found: Verification) -> None:
        for what in ("records", "bytes", "digest"):
            here, told = getattr(found, what), getattr(self.dataset, what)
            if here != told:
                found.add_problem(f"{what}: {here}, the manifest says {told}")
        if self.source is not None and self.source.wnids != tuple(entry.wnid for entry in self.dataset.classes):
            found.add_problem("the source has other classes")


def plan_verification(path: Path, deep: bool = False, source: Path | None = None, workers: int | None = None) -> Verifier:
    """Look at both; raises `CommandError` or `DatasetError`."""
    dataset = Dataset.load(path)
    if source is not None and dataset.scale != 1:
        raise CommandError(f"{path}: was scaled by {dataset.scale}, and holds other records than its source; leave out --source")
    return Verifier(dataset, deep or source is not None, open_source(source, dataset.split) if source else None, workers)


class _Facts(StoredRecords):
    """Reads pieces, and says what is in them."""

    def __init__(self, dataset: Dataset, deep: bool) -> None:
        super().__init__(dataset)
        self._deep = deep

    def __getstate__(self) -> dict[str, object]:
        return {**super().__getstate__(), "_deep": self._deep}

    def __call__(self, piece: Piece) -> list[Fact]:
        return [
            Fact(name, label, len(data), hashlib.sha256(data).digest(), self._problem(data))
            for name, label, data in self.read(piece)
        ]

    def _problem(self, data: bytes) -> str | None:
        return decoding_problem(data, self._dataset.image) if self._deep else None


def decoding_problem(data: bytes, image: ImageFormat) -> str | None:
    """Why these bytes are no image as the manifest describes it; null if they are."""
    side = image.size or 0
    if image.encoding == "raw":
        return None if len(data) == 3 * side * side else f"{len(data)} bytes, {3 * side * side} expected"
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            warnings.simplefilter("error", Image.DecompressionBombWarning)
            with Image.open(io.BytesIO(data)) as decoded:
                decoded.load()
                size, mode, kind = decoded.size, decoded.mode, decoded.format
    except MemoryError:
        raise
    except Exception as error:  # a decoder that meets hostile bytes can raise nearly anything
        return f"cannot be decoded ({error or type(error).__name__})"
    if image.transform == "original":
        return None
    expected = {"jpeg": "JPEG", "png": "PNG"}.get(image.encoding)
    wrong = min(size) != side if image.resize == "short" else size != (side, side)
    return f"{kind}, {size[0]} x {size[1]}, {mode}" if wrong or mode != "RGB" or kind != expected else None
