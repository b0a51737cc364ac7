"""Multiples of a dataset, as datasets of their own: every record several times under new names or keys, and some once more.

Copies are written byte by byte, never linked, so that they take their own place on the disk and in the page cache. They go through
the writer of a conversion: an interrupted one goes on, and the manifest comes last.

Less than one whole copy needs none where each record is a file of its own: the index names the chosen ones, and their folder is a
link. In the other layouts a reader gets the neighbours of what it asks for (read-ahead of an LMDB, the sequence of a tar), and DALI
takes all that is there; so the chosen records are copied.
"""

import contextlib
import hashlib
import os
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from ioprof import __version__, tensorprotos
from ioprof.converters import shards
from ioprof.converters.destination import checked_destination, new_folder, require_space, sync_file_system
from ioprof.converters.engines import local
from ioprof.converters.halfmade import HalfMade
from ioprof.converters.options import ConvertOptions
from ioprof.converters.reading import Made
from ioprof.converters.stored import Piece, Stored, StoredRecords
from ioprof.converters.writing import Advance, Job, Outcome, Tally, Writing, in_chunks
from ioprof.dataset import MANIFEST_NAME, Dataset, RecordDigest, is_plain_name, quantiles_of, read_index
from ioprof.errors import CommandError, DatasetError

_SPACE_MARGIN: Final = 1.05
_FILE_OVERHEAD_BYTES: Final = 4096
_LEAST_SHARD_BYTES: Final = 1 << 16

Indices = npt.NDArray[np.int64]


class Task(NamedTuple):
    """What one process reads at a time."""

    piece: Piece
    copy: int
    """How often the dataset comes before this."""
    chosen: Sequence[int]
    """Which records of the piece, ascending."""


class Found(NamedTuple):
    """One record, hashed where it was read."""

    name: str
    label: int
    made: Made


@dataclass(frozen=True)
class Multiple:
    """A multiple of a dataset that can be made, and has not been."""

    dataset: Dataset
    destination: Path
    copies: int
    chosen: Indices
    """Which records come once more, ascending."""
    scale: float
    source: str
    """What the manifest says that it was made from."""
    workers: int | None

    @property
    def records(self) -> int:
        """How many it will have."""
        return self.copies * self.dataset.records + len(self.chosen)

    @property
    def is_view(self) -> bool:
        """Whether it names records of the dataset instead of holding copies."""
        return self.dataset.layout == "files" and not self.copies

    def done(self) -> int:
        """How many of them the same job has written before it was interrupted."""
        work = HalfMade.beside(self.destination)
        return work.images_done if work.job() == self._job.identity else 0

    def run(self, advance: Advance = lambda _: None) -> Dataset:
        """Make it, from the start or from where it was interrupted; raises `CommandError` or `DatasetError`."""
        if self.is_view:
            self._make_view(advance)
        else:
            self._job.run(self._outcomes, advance)
        return Dataset.load(self.destination)

    # ---- copies

    @cached_property
    def _job(self) -> Job:
        dataset = self.dataset
        options = _options(dataset, self.workers)
        writing = Writing(self.destination, options, dataset.classes, self.source, 0, self.records, self.records)
        identity = {"multiple": self.source, "options": repr(options.image_format), "version": __version__}

        def manifest(told: Tally) -> dict[str, Any]:
            return self._described(writing.manifest(self.destination, told)).manifest()

        return Job(writing, identity, MANIFEST_NAME, manifest)

    def _described(self, made: Dataset) -> Dataset:
        kept = {key: getattr(self.dataset, key) for key in ("image", "label_convention", "shuffle_seed")}
        return replace(made, scale=self.scale, **kept)

    def _outcomes(self, first: int) -> Generator[list[Outcome]]:
        with contextlib.closing(self._each(first)) as outcomes:
            yield from in_chunks(outcomes)

    def _each(self, first: int) -> Generator[Outcome]:
        with contextlib.closing(_Reading(self.dataset)) as work:
            tasks = list(_without(first, self._tasks(work)))
            digest, place = RecordDigest(), first
            with contextlib.closing(local(self.workers)(work, tasks, max(1, len(tasks)))) as results:
                for task, found in zip(tasks, results, strict=True):
                    for record in found:
                        yield self._outcome(task.copy, record)
                        digest.add_hashed(record.label, len(record.made.data), record.made.sha256)
                        place += 1
                        if first == 0 and place == self.dataset.records and self.copies:
                            self._check(digest)

    def _tasks(self, work: "_Reading") -> Iterator[Task]:
        pieces = list(work.pieces())
        for copy in range(self.copies):
            yield from (Task(piece, copy, range(piece.start, piece.stop)) for piece in pieces)
        yield from _chosen_tasks(pieces, self.chosen, self.copies)

    def _outcome(self, copy: int, found: Found) -> Outcome:
        if not 0 <= found.label < len(self.dataset.classes):
            raise DatasetError(
                f"{self.dataset.path}: {found.name[:80]!r} has label {found.label}; see: ioprof verify {self.dataset.path}"
            )
        name = f"{found.name}" if not copy else self._copied_name(found.name, copy)
        if not is_plain_name(name):
            raise DatasetError(
                f"{self.dataset.path}: a copy of {found.name[:80]!r} would be called {name[:80]!r}, which no file can be"
            )
        return Outcome(self.dataset.classes[found.label].wnid, name, name, found.made)

    def _copied_name(self, name: str, copy: int) -> str:
        stem, dot, suffix = name.rpartition(".")
        return f"{stem}{self._mark}{copy + 1}{dot}{suffix}" if stem else f"{name}{self._mark}{copy + 1}"

    @cached_property
    def _mark(self) -> str:
        # What no name holds yet, so that no copy bears the name of another record. LMDB keys and tar members are numbered anyway.
        names = read_index(self.dataset)[0] if self.dataset.layout == "files" else []
        mark = ".x"
        while any(mark in name for name in names):
            mark += "x"
        return mark

    def _check(self, digest: RecordDigest) -> None:
        if digest.text() != self.dataset.digest:
            path = self.dataset.path
            raise DatasetError(f"{path}: its records are not those of its manifest ({digest.text()}); see: ioprof verify {path}")

    # ---- a view

    def _make_view(self, advance: Advance) -> None:
        dataset = self.dataset
        paths, labels = read_index(dataset)
        digest, lengths = RecordDigest(), []
        with contextlib.closing(_Lengths(dataset)) as work:
            tasks = list(_chosen_tasks(list(work.pieces()), self.chosen, 0))
            with contextlib.closing(local(self.workers)(work, tasks, max(1, len(tasks)))) as results:
                for found in results:
                    for label, length, sha256 in found:
                        digest.add_hashed(label, length, sha256)
                        lengths.append(length)
                    advance(len(found))
        with new_folder(self.destination) as folder:
            lines = (f"{paths[index]} {labels[index]}\n" for index in self.chosen)
            (folder / dataset.index_path.name).write_text("".join(lines), encoding="utf-8", newline="\n")
            link = os.path.relpath(os.path.realpath(dataset.data_path), self.destination.parent)
            (folder / dataset.split).symlink_to(os.path.join("..", link))
            made = replace(
                dataset,
                path=folder,
                name=self.destination.name,
                records=len(lengths),
                bytes=sum(lengths),
                record_bytes_quantiles=quantiles_of(lengths),
                digest=digest.text(),
                source=self.source,
                version=__version__,
                scale=self.scale,
                quarantined=(),
            )
            made.save()
            sync_file_system(folder)


def plan_multiple(
    dataset: Dataset, destination: Path, copies: int, chosen: Indices, scale: float, source: str, workers: int | None = None
) -> Multiple:
    """Look at destination and free space; raises `CommandError` for what would stop the work."""
    target = checked_destination(destination, HalfMade.beside(destination.absolute()).is_in_place)
    multiple = Multiple(dataset, target, copies, chosen, scale, source, workers)
    left = 1 - multiple.done() / multiple.records
    if not multiple.is_view:
        needed = _bytes_on_disk(dataset) * multiple.records / dataset.records * _SPACE_MARGIN * left
        require_space(target, round(needed), round(multiple.records * left) if dataset.layout == "files" else 1)
    return multiple


def stored_labels(dataset: Dataset, workers: int | None = None, advance: Advance = lambda _: None) -> Indices:
    """Label of every record, in order, (records,) int64; reads no more of the images than it must. Raises `DatasetError`."""
    if dataset.layout == "files":
        return np.array(read_index(dataset)[1], dtype=np.int64)
    labels: list[int] = []
    with contextlib.closing(_Labels(dataset)) as work:
        pieces = list(work.pieces())
        with contextlib.closing(local(workers)(work, pieces, len(pieces))) as results:
            for found in results:
                labels += found
                advance(len(found))
    return np.array(labels, dtype=np.int64)


# ------------------------------------------------------------------------------------------------ what processes read


class _Reading(StoredRecords):
    """Reads the chosen records of a piece, and hashes them."""

    def __call__(self, task: Task) -> list[Found]:
        return [Found(name, label, Made.of(data)) for name, label, data in self._read(task)]

    def _read(self, task: Task) -> Iterator[Stored]:
        if len(task.chosen) == task.piece.stop - task.piece.start:
            yield from self.read(task.piece)
        elif task.piece.shard.endswith(".tar"):
            yield from self._of_tar(task)
        else:
            for run in _runs(task.chosen):
                yield from self.read(task.piece._replace(start=run.start, stop=run.stop))

    def _of_tar(self, task: Task) -> Iterator[Stored]:
        chosen, path = set(task.chosen), Path(task.piece.shard)
        with path.open("rb", buffering=0) as stream:
            for number, sample in enumerate(shards.samples(path), task.piece.first):
                if number in chosen:
                    yield Stored(sample.name, sample.label, os.pread(stream.fileno(), sample.size, sample.offset))


class _Lengths(_Reading):
    """Says of the chosen records of a piece what the digest needs."""

    def __call__(self, task: Task) -> list[tuple[int, int, bytes]]:  # type: ignore[override]
        return [(label, len(data), hashlib.sha256(data).digest()) for _, label, data in self._read(task)]


class _Labels(StoredRecords):
    """Reads labels."""

    def __call__(self, piece: Piece) -> list[int]:
        if piece.shard.endswith(".tar"):
            return [sample.label for sample in shards.samples(Path(piece.shard))]
        with self._environment(piece.shard).begin(buffers=True) as transaction, transaction.cursor() as cursor:
            cursor.set_range(b"%08d_" % piece.start)
            values = (value for _, value in zip(range(piece.start, piece.stop), cursor.iternext(keys=False), strict=False))
            return [tensorprotos.decode(value)[2] for value in values]


def _chosen_tasks(pieces: Sequence[Piece], chosen: Indices, copy: int) -> Iterator[Task]:
    for piece in pieces:
        low, high = np.searchsorted(chosen, [piece.start, piece.stop])
        if high > low:
            yield Task(piece, copy, tuple(chosen[low:high].tolist()))


def _without(first: int, tasks: Iterator[Task]) -> Iterator[Task]:
    """The tasks but for their first so many records."""
    for task in tasks:
        count = len(task.chosen)
        if count > first:
            yield task._replace(chosen=task.chosen[first:])
        first = max(0, first - count)


def _runs(ascending: Sequence[int]) -> Iterator[range]:
    start = previous = ascending[0]
    for number in ascending[1:]:
        if number != previous + 1:
            yield range(start, previous + 1)
            start = number
        previous = number
    yield range(start, previous + 1)


# ------------------------------------------------------------------------------------------------ how it is stored


def _options(dataset: Dataset, workers: int | None) -> ConvertOptions:
    image = dataset.image
    of_image: dict[str, Any] = {"image": "original"}
    if image.transform != "original":
        of_image = {"image": image.transform, "encoding": image.encoding, "size": image.size, "resize": image.resize}
        of_image |= {"quality": image.quality} if image.encoding == "jpeg" else {}
    try:
        return ConvertOptions(
            layout=dataset.layout,
            split=dataset.split,
            workers=workers,
            shards=dataset.shards if dataset.layout == "lmdb" else None,
            shard_bytes=_shard_bytes(dataset),
            **of_image,
        )
    except CommandError as error:
        raise DatasetError(f"{dataset.path}: cannot be written again ({error}); convert it with this version of ioprof") from None


def _shard_bytes(dataset: Dataset) -> int | None:
    """So that twice the records make about twice the tars."""
    if dataset.layout != "webdataset":
        return None
    return max(_LEAST_SHARD_BYTES, *(_file_bytes(path) for path in dataset.shard_paths()))


def _bytes_on_disk(dataset: Dataset) -> int:
    if dataset.layout == "files":
        return dataset.bytes + dataset.records * _FILE_OVERHEAD_BYTES
    ending = "data.mdb" if dataset.layout == "lmdb" else ""
    return sum(_file_bytes(path / ending) for path in dataset.shard_paths())


def _file_bytes(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError as error:
        raise DatasetError(f"{path}: cannot be read ({error.strerror}); convert the dataset again") from None
