"""Multiples of a dataset, as datasets of their own: every record several times under new names or
keys, and some once more.

Copies are written byte by byte, never linked, so that they take their own space on the disk and in
the page cache. They use the writer of a conversion, so an interrupted one resumes, and the manifest
is written last.

A fraction below 1 of a `files` dataset needs no copies: its index lists the chosen records, and its
folder is a symbolic link. In the other layouts a reader also reads the neighbours of a record
(readahead of an LMDB, sequential reads of a tar), and DALI reads all records of an environment; so
the chosen records are copied.
"""

import contextlib
import hashlib
import os
from array import array
from collections.abc import Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain, tee
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from ioprof import __version__
from ioprof.converters.job.dataset_writer import DatasetWriter, Job, Outcome, Tally, in_chunks
from ioprof.converters.job.destination import (
    check_destination,
    new_folder,
    require_space,
    sync_file_system,
)
from ioprof.converters.job.engines import local
from ioprof.converters.job.image_converter import RecordData
from ioprof.converters.job.partial_output import PartialOutput
from ioprof.converters.layouts import webdataset_layout
from ioprof.converters.layouts.stored_records import Piece, StoredRecord, StoredRecords
from ioprof.converters.options import ConvertOptions, LayoutOptions
from ioprof.errors import CommandError, DatasetError
from ioprof.foreign import tensorprotos
from ioprof.format.dataset import (
    INDEXED_LAYOUTS,
    MANIFEST_NAME,
    Dataset,
    RecordDigest,
    is_plain_name,
    quantiles_of,
    read_index,
)
from ioprof.format.record_index import RecordIndex
from ioprof.options import values_of
from ioprof.reporter import Advance

_SPACE_MARGIN: Final = 1.05
_FILE_OVERHEAD_BYTES: Final = 4096
_MIN_SHARD_BYTES: Final = 1 << 16

Indices = npt.NDArray[np.int64]


class Task(NamedTuple):
    """The unit of work of one process."""

    piece: Piece
    copy: int
    """Number of complete copies before this one."""
    chosen: Sequence[int]
    """Numbers of the records of the piece to read, ascending."""


class HashedRecord(NamedTuple):
    """One record, hashed by the process that read it."""

    name: str
    label: int
    record: RecordData


@dataclass(frozen=True)
class Multiple:
    """A planned multiple of a dataset."""

    dataset: Dataset
    destination: Path
    copies: int
    chosen: Indices
    """Numbers of the records that are included once more, ascending."""
    scale: float
    source: str
    """The value of `Dataset.source` in its manifest."""
    workers: int | None

    @property
    def records(self) -> int:
        """Number of records that it will have."""
        return self.copies * self.dataset.records + len(self.chosen)

    @property
    def is_view(self) -> bool:
        """Whether it lists records of the dataset instead of containing copies."""
        return self.dataset.layout == "files" and not self.copies

    def done(self) -> int:
        """Number of records that an interrupted run of the same job has written."""
        return self._job.done()

    def run(self, advance: Advance = lambda _: None) -> Dataset:
        """Write it, from the start or from where it was interrupted; raises `CommandError` or
        `DatasetError`.
        """
        if self.is_view:
            self._write_view(advance)
        else:
            self._job.run(self.outcomes, advance)
        return Dataset.load(self.destination)

    # ---- copies

    @cached_property
    def _job(self) -> Job:
        dataset = self.dataset
        options = storage_options(dataset, self.workers)
        writer = DatasetWriter(
            self.destination, options, dataset.classes, self.source, 0, self.records, self.records
        )
        identity = {
            "multiple": self.source,
            "options": repr(options.image_format),
            "version": __version__,
        }

        def manifest(tally: Tally) -> dict[str, Any]:
            kept = {
                key: getattr(dataset, key) for key in ("image", "label_convention", "shuffle_seed")
            }
            return replace(
                writer.manifest(self.destination, tally), scale=self.scale, **kept
            ).manifest()

        return Job(writer, identity, MANIFEST_NAME, manifest)

    def outcomes(self, first: int) -> Generator[list[Outcome]]:
        """The records from the number `first` on, in chunks; raises `DatasetError` if they are not
        those of the manifest.
        """
        with contextlib.closing(self._read_outcomes(first)) as outcomes:
            yield from in_chunks(outcomes)

    def _read_outcomes(self, first: int) -> Generator[Outcome]:
        dataset = self.dataset
        with contextlib.closing(_RecordReader(dataset)) as work:
            pieces = work.pieces()
            copies = (
                Task(piece, copy, range(piece.start, piece.stop))
                for copy in range(self.copies)
                for piece in pieces
            )
            tasks, sent = tee(
                _skip_records(first, chain(copies, _chosen_tasks(pieces, self.chosen, self.copies)))
            )
            digest, place, num_tasks = RecordDigest(), first, len(pieces) * (self.copies + 1)
            with contextlib.closing(local(self.workers)(work, sent, max(1, num_tasks))) as results:
                for task, found in zip(tasks, results, strict=True):
                    for hashed in found:
                        yield self._outcome(task.copy, hashed)
                        digest.add_hashed(
                            hashed.label, len(hashed.record.data), hashed.record.sha256
                        )
                        place += 1
                        # After the first complete copy, unless resumed: the digest is that of the
                        # manifest.
                        if (
                            first == 0
                            and place == dataset.records
                            and self.copies
                            and dataset.is_read
                            and digest.text() != dataset.digest
                        ):
                            path = dataset.path
                            raise DatasetError(
                                f"{path}: its records differ from its manifest ({digest.text()});"
                                f" see: ioprof verify {path}"
                            )

    def _outcome(self, copy: int, found: HashedRecord) -> Outcome:
        if not 0 <= found.label < len(self.dataset.classes):
            raise DatasetError(
                f"{self.dataset.path}: {found.name[:80]!r} has label {found.label}; see: ioprof"
                f" verify {self.dataset.path}"
            )
        name = found.name
        if copy:
            stem, dot, suffix = name.rpartition(".")
            name = (
                f"{stem}{self._marker}{copy + 1}{dot}{suffix}"
                if stem
                else f"{name}{self._marker}{copy + 1}"
            )
        if not is_plain_name(name):
            raise DatasetError(
                f"{self.dataset.path}: a copy of {found.name[:80]!r} would be called {name[:80]!r},"
                " not a valid file name; rename the image in the source and convert it again"
            )
        return Outcome(self.dataset.classes[found.label].wnid, name, name, found.record)

    @cached_property
    def _marker(self) -> str:
        # A text that no name contains, so that no copy has the name of another record. LMDB keys
        # and tar members are unique anyway.
        names = read_index(self.dataset)[0] if self.dataset.layout == "files" else []
        marker = ".x"
        while any(marker in name for name in names):
            marker += "x"
        return marker

    # ---- a view

    def _write_view(self, advance: Advance) -> None:
        dataset = self.dataset
        paths, labels = read_index(dataset)
        digest, lengths = RecordDigest(), array("I")
        with contextlib.closing(_LengthReader(dataset)) as work:
            pieces = work.pieces()
            tasks = _chosen_tasks(pieces, self.chosen, 0)
            with contextlib.closing(
                local(self.workers)(work, tasks, max(1, len(pieces)))
            ) as results:
                for found in results:
                    for label, length, sha256 in found:
                        digest.add_hashed(label, length, sha256)
                        lengths.append(length)
                    advance(len(found))
        with new_folder(self.destination) as folder:
            lines = (f"{paths[index]} {labels[index]}\n" for index in self.chosen)
            (folder / dataset.index_path.name).write_text(
                "".join(lines), encoding="utf-8", newline="\n"
            )
            link = os.path.relpath(os.path.realpath(dataset.data_path), self.destination.parent)
            (folder / dataset.split).symlink_to(os.path.join("..", link))
            view = replace(
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
            view.save()
            sync_file_system(folder)


def plan_multiple(
    dataset: Dataset,
    destination: Path,
    copies: int,
    chosen: Indices,
    scale: float,
    source: str,
    workers: int | None = None,
) -> Multiple:
    """Check destination and free space; raises `CommandError` for anything that would stop the
    work.
    """
    if dataset.layout == "indexed":
        raise CommandError(
            f"{dataset.source}: is read where it is, and only a dataset of ioprof can be scaled; "
            "convert it first: ioprof convert imagenet"
        )
    target = check_destination(
        destination, PartialOutput.for_destination(destination.absolute()).is_renamed
    )
    multiple = Multiple(dataset, target, copies, chosen, scale, source, workers)
    left = 1 - multiple.done() / multiple.records
    if not multiple.is_view:
        size = dataset.bytes + dataset.records * _FILE_OVERHEAD_BYTES
        if dataset.layout != "files":
            size = sum(_file_bytes(Path(path)) for path in dataset.record_files())
        needed = size * multiple.records / dataset.records * _SPACE_MARGIN * left
        require_space(
            target,
            round(needed),
            round(multiple.records * left) if dataset.layout == "files" else 1,
        )
    return multiple


def stored_labels(
    dataset: Dataset, workers: int | None = None, advance: Advance = lambda _: None
) -> Indices:
    """Label of every record, in order, (records,) int64; reads as little of the images as possible.
    Raises `DatasetError`.
    """
    if dataset.layout == "files":
        return np.array(read_index(dataset)[1], dtype=np.int64)
    if dataset.layout in INDEXED_LAYOUTS:
        return RecordIndex(dataset).entries["label"].astype(np.int64)
    labels = array("q")
    with contextlib.closing(_LabelReader(dataset)) as work:
        pieces = work.pieces()
        with contextlib.closing(local(workers)(work, pieces, len(pieces))) as results:
            for found in results:
                labels.extend(found)
                advance(len(found))
    return np.array(labels, dtype=np.int64)


# --------------------------------------------------------------------- reading, in worker processes


class _RecordReader(StoredRecords):
    """Reads the chosen records of a piece, and hashes them."""

    def __call__(self, task: Task) -> list[HashedRecord]:
        return [
            HashedRecord(name, label, RecordData.of(data))
            for name, label, data in self._read_chosen(task)
        ]

    def _read_chosen(self, task: Task) -> Iterator[StoredRecord]:
        if len(task.chosen) == task.piece.stop - task.piece.start:
            yield from self.read(task.piece)
        elif task.piece.shard.endswith(".tar"):
            chosen, path = set(task.chosen), Path(task.piece.shard)
            with path.open("rb", buffering=0) as stream:
                for number, sample in enumerate(
                    webdataset_layout.read_samples(path), task.piece.first
                ):
                    if number in chosen:
                        yield StoredRecord(
                            sample.name,
                            sample.label,
                            os.pread(stream.fileno(), sample.size, sample.offset),
                        )
        elif task.piece.shard.endswith(".parquet"):
            chosen = set(task.chosen)
            yield from (
                record
                for number, record in enumerate(self.read(task.piece), task.piece.start)
                if number in chosen
            )
        else:
            for run in _consecutive_runs(task.chosen):
                yield from self.read(task.piece._replace(start=run.start, stop=run.stop))


class _LengthReader(_RecordReader):
    """Label, length and sha256 of the chosen records of a piece: the input of the digest."""

    def __call__(self, task: Task) -> list[tuple[int, int, bytes]]:  # type: ignore[override]
        return [
            (label, len(data), hashlib.sha256(data).digest())
            for _, label, data in self._read_chosen(task)
        ]


class _LabelReader(StoredRecords):
    """Reads the labels of a piece."""

    def __call__(self, piece: Piece) -> list[int]:
        if piece.shard.endswith(".tar"):
            return [sample.label for sample in webdataset_layout.read_samples(Path(piece.shard))]
        if piece.shard.endswith(".parquet"):
            return [record.label for record in self.read(piece)]
        with (
            self._environment(piece.shard).begin(buffers=True) as transaction,
            transaction.cursor() as cursor,
        ):
            cursor.set_range(b"%08d_" % piece.start)
            values = (
                value
                for _, value in zip(
                    range(piece.start, piece.stop), cursor.iternext(keys=False), strict=False
                )
            )
            return [tensorprotos.decode(value)[2] for value in values]


def _chosen_tasks(pieces: Sequence[Piece], chosen: Indices, copy: int) -> Iterator[Task]:
    for piece in pieces:
        low, high = np.searchsorted(chosen, [piece.start, piece.stop])
        if high > low:
            yield Task(piece, copy, tuple(chosen[low:high].tolist()))


def _skip_records(first: int, tasks: Iterable[Task]) -> Iterator[Task]:
    """The tasks without their first `first` records."""
    for task in tasks:
        count = len(task.chosen)
        if count > first:
            yield task._replace(chosen=task.chosen[first:])
        first = max(0, first - count)


def _consecutive_runs(ascending: Sequence[int]) -> Iterator[range]:
    start = previous = ascending[0]
    for number in ascending[1:]:
        if number != previous + 1:
            yield range(start, previous + 1)
            start = number
        previous = number
    yield range(start, previous + 1)


# ------------------------------------------------------------------------ storage options and sizes


def storage_options(
    dataset: Dataset, workers: int | None, stored: LayoutOptions | None = None
) -> ConvertOptions:
    """The options of a conversion that stores the records of `dataset` as they are stored now, or
    as `stored` says.
    """
    image = dataset.image
    image_options: dict[str, Any] = {"image": "original"}
    if image.transform != "original":
        resize = {"crop": "strict"} if image.resize == "strict" else {"resize": image.resize}
        image_options = {
            "image": image.transform,
            "encoding": image.encoding,
            "size": image.size,
            **resize,
        }
        image_options |= {"quality": image.quality} if image.encoding == "jpeg" else {}
    if stored is not None:
        own = values_of(LayoutOptions, stored)
        return ConvertOptions(
            split=dataset.split, shuffle_seed=dataset.shuffle_seed, **own, **image_options
        )
    shard_bytes = None
    # The size of the largest tar, so that twice the records make about twice the tars.
    if dataset.layout in ("webdataset", "parquet"):
        shard_bytes = max(_MIN_SHARD_BYTES, *(_file_bytes(path) for path in dataset.shard_paths()))
    try:
        return ConvertOptions(
            layout=dataset.layout,
            split=dataset.split,
            workers=workers,
            shards=dataset.shards if dataset.layout == "lmdb" else None,
            shard_bytes=shard_bytes,
            **image_options,
        )
    except CommandError as error:
        raise DatasetError(
            f"{dataset.path}: cannot be written again ({error}); convert it with this version of"
            " ioprof"
        ) from None


def _file_bytes(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError as error:
        raise DatasetError(
            f"{path}: cannot be read ({error.strerror}); convert the dataset again"
        ) from None
