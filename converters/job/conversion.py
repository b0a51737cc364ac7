"""The conversion: one source in shuffled order, images converted in parallel, one writer in order,
the manifest last.
"""

import contextlib
import os
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Iterator
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from itertools import chain, groupby, tee
from operator import attrgetter
from pathlib import Path
from typing import Any, Final

import numpy as np

from ioprof.converters.job.dataset_writer import (
    CHUNK_IMAGES,
    DatasetWriter,
    Job,
    Outcome,
    Resumable,
    dataset_job,
    in_chunks,
)
from ioprof.converters.job.destination import SPACE_MARGIN, check_destination, require_space
from ioprof.converters.job.engines import Engine, local, versions
from ioprof.converters.job.image_converter import ImageConverter, ImageTask
from ioprof.converters.job.journal import QuarantineEntry
from ioprof.converters.job.partial_output import PartialOutput
from ioprof.converters.job.parts import (
    FinishedPart,
    Part,
    part_job,
    part_options,
    read_part,
    without_versions,
)
from ioprof.converters.layouts.record_file_writer import RecordFileWriter
from ioprof.converters.layouts.registry import LAYOUTS
from ioprof.converters.options import ConvertOptions
from ioprof.converters.sources.source import Source
from ioprof.converters.sources.source_image import SourceImage
from ioprof.converters.sources.source_kinds import open_source
from ioprof.errors import CommandError, DatasetError
from ioprof.format.dataset import Dataset, ImageClass, ImageFormat, is_plain_name
from ioprof.reporter import Advance

_RECORD_OVERHEAD_BYTES: Final = (
    4096  # the unused end of a file's last block, or of an LMDB value's last page
)
_SAFE_NAME_LENGTH: Final = 60  # characters: with any suffix at most 255 bytes of UTF-8
_SUFFIXES: Final = {"jpeg": ".JPEG", "png": ".png", "raw": ".rgb"}
# Bytes of a 256 × 256 JPEG by quality: measured on photographs, plus 20 %.
_RGB256_QUALITIES: Final = (1, 50, 75, 90, 95)
_RGB256_BYTES: Final = (1_500, 11_000, 16_000, 26_500, 37_500)
_PNG_RATIO: Final = 0.6  # PNG / raw size of a photograph
_MAX_CHUNK_IMAGES: Final = 32
_CHUNK_BYTES: Final = 1 << 20
_CHUNKS_PER_WORKER: Final = 8
_NOT_IN_OUTPUT: Final = ("workers", "on_error", "on_corrupt", "force", "stripe", "check_md5")
"""Options that do not change the dataset: a job can resume with different values."""


@dataclass(frozen=True)
class Conversion(Resumable):
    """A planned conversion: its input, destination and free space have been checked."""

    source: Source
    destination: Path
    options: ConvertOptions
    stored_name: Callable[[SourceImage], str]
    """Maps an image to the name of its file in the dataset."""
    part: Part | None = None
    """The part of the images to convert; None: all."""
    engine: Engine | None = None
    """Where the workers run; None: on this machine."""
    was_done: bool = False
    """The same command has finished before."""

    @property
    def total(self) -> int:
        """Number of images that all parts read together."""
        return min(len(self.source.images), self.options.limit or len(self.source.images))

    @cached_property
    def places(self) -> range:
        """Indices, in the shuffled order, of the images that this conversion reads."""
        return self.part.places(self.total) if self.part else range(self.total)

    @property
    def images(self) -> int:
        """Number of images to read."""
        return len(self.places)

    @property
    def stored_as(self) -> ConvertOptions:
        """The options by which the records are stored; a part is always one LMDB environment."""
        return self.options if self.part is None else part_options(self.options)

    @cached_property
    def mean_record_bytes(self) -> float:
        """Estimated mean size of a record."""
        image = self.options.image_format
        pixels = (image.size or 0) ** 2
        if image.encoding == "source":
            return self.source.mean_image_bytes
        if image.quality is not None:
            return (
                float(np.interp(image.quality, _RGB256_QUALITIES, _RGB256_BYTES)) * pixels / 256**2
            )
        return 3 * pixels * (_PNG_RATIO if image.encoding == "png" else 1)

    def run(self, advance: Advance = lambda _: None) -> Dataset | FinishedPart:
        """Convert, from the start or from where the same job was interrupted.

        `advance` is called with the number of images just finished. Raises `CommandError` for an
        image that cannot be used (unless those are quarantined), a full disk, or a worker that
        died.
        """
        if not self.was_done:
            self._job.run(self._outcomes, advance)
        return Dataset.load(self.destination) if self.part is None else read_part(self.destination)

    @cached_property
    def settings(self) -> dict[str, Any]:
        """Options and source, as they are stored with what they make."""
        return {**output_options(self.options), "source": self.source.images.fingerprint()}

    @cached_property
    def _job(self) -> Job:
        classes = tuple(
            ImageClass(wnid, self.source.class_names.get(wnid, wnid)) for wnid in self.source.wnids
        )
        writing = DatasetWriter(
            destination=self.destination,
            options=self.stored_as,
            classes=classes,
            source=self.source.description,
            first=self.places.start,
            images=self.images,
            total=self.total,
            refused=tuple(QuarantineEntry(*entry) for entry in self.source.refused),
            conversion=self.settings,
        )
        identity = {**self.settings, "versions": versions()}
        return (
            dataset_job(writing, identity)
            if self.part is None
            else part_job(self.part, writing, identity, self.options)
        )

    def _outcomes(self, first: int) -> Generator[list[Outcome]]:
        engine = self.engine or local(self.options.workers)
        size = self._chunk_images(engine)
        chunks, tasks = tee(in_chunks(self._tasks(first), size))
        num_tasks = -(-(self.places.stop - first) // size)
        # Workers on this machine write files themselves: they wait for the storage in parallel, and
        # no process copies the bytes.
        here = engine.workers_here is not None and self.stored_as.layout == "files"
        files = (
            RecordFileWriter(PartialOutput.for_destination(self.destination).data) if here else None
        )
        with (
            contextlib.closing(
                ImageConverter(self.options.image_format, files, self.options.accepts_corrupt)
            ) as work,
            contextlib.closing(engine(work, tasks, num_tasks, views=True)) as results,
        ):
            for chunk, found in zip(chunks, results, strict=True):
                yield [
                    Outcome(
                        image.wnid,
                        image.name if isinstance(record, str) else path.rpartition("/")[2],
                        image,
                        record,
                    )
                    for (image, path), record in zip(chunk, found, strict=True)
                ]

    def _tasks(self, first: int) -> Iterator[ImageTask]:
        split, order = self.options.split, self.source.order(self.options.shuffle_seed)
        for number in order.between(first, self.places.stop):
            image = self.source.images[number]
            yield ImageTask(image, f"{split}/{image.wnid}/{self.stored_name(image)}")

    def _chunk_images(self, engine: Engine) -> int:
        # Large, since the workers evict this process's data from the CPU caches between two of its
        # wake-ups. Small enough that all workers have tasks, and that results stay small.
        if engine.workers_here is None:
            return CHUNK_IMAGES
        most = min(_MAX_CHUNK_IMAGES, round(_CHUNK_BYTES / max(1, self.mean_record_bytes)))
        return max(1, min(most, self.images // (_CHUNKS_PER_WORKER * engine.workers_here)))


def plan_conversion(
    source: Path,
    destination: Path,
    options: ConvertOptions,
    part: Part | None = None,
    engine: Engine | None = None,
) -> Conversion:
    """Check source, destination and free space; raises `CommandError` or `DatasetError` for
    anything that would stop the work.

    A part is made next to `destination`, where `plan_merge` finds it.
    """
    if options.layout not in LAYOUTS:
        raise CommandError(f"--layout {options.layout!r}: choose one of {', '.join(LAYOUTS)}")
    wanted = destination if part is None else part.folder_for(destination)
    target = check_destination(wanted, force=True)
    work = PartialOutput.for_destination(target)
    work.remove_if_empty()
    # A conversion that was killed after the rename has only its folder to remove.
    before = None if options.force or work.is_renamed else finished_settings(target, part)
    is_same = before is not None and {**before, "source": ""} == {
        **output_options(options),
        "source": "",
    }
    if not work.is_renamed and not is_same:
        _check_occupied(wanted, options, before)
    origin = Path(os.path.realpath(source))
    if origin == target or target in origin.parents:
        raise _contains_source(source, target)
    if target.parent == origin:
        raise CommandError(
            f"{target}: would be a class folder of the source {source}; give a place outside of it"
        )
    found = open_source(source, options.split, options.check_md5, options.on_error)
    _check_disjoint(found, target)
    conversion = Conversion(
        found, target, options, file_namer(found.images, options.image_format), part, engine
    )
    if not conversion.images:
        raise CommandError(
            f"--part {part}: there are only {conversion.total} images; make fewer parts"
        )
    if is_same:
        if conversion.settings != before:
            _check_occupied(wanted, options, before)
        return replace(conversion, was_done=True)
    left = conversion.images - conversion.done_before
    needed = left * (conversion.mean_record_bytes + _RECORD_OVERHEAD_BYTES) * SPACE_MARGIN
    require_space(target, round(needed), left if conversion.stored_as.layout == "files" else 1)
    return conversion


def finished_settings(destination: Path, part: Part | None) -> dict[str, Any] | None:
    """Options and source of the dataset or part that is complete at `destination`; None where there
    is none.
    """
    try:
        if part is None:
            return Dataset.load(destination).conversion
        found = read_part(destination)
    except (DatasetError, CommandError):
        return None
    return without_versions(found.identity) if found.part == part else None


def _check_occupied(wanted: Path, options: ConvertOptions, before: dict[str, Any] | None) -> None:
    try:
        check_destination(wanted, options.force)
    except CommandError as error:
        now = output_options(options)
        other = sorted(
            key for key, value in now.items() if before is not None and before.get(key) != value
        )
        if before is None:
            raise
        raise CommandError(
            f"{error}; it was made with other settings ({', '.join(other) or 'of another source'})"
        ) from None


def output_options(options: ConvertOptions) -> dict[str, Any]:
    """The options that determine the content of the dataset."""
    found = {key: value for key, value in asdict(options).items() if key not in _NOT_IN_OUTPUT}
    return {**found, "accepts_corrupt": options.accepts_corrupt}


def file_namer(images: Iterable[SourceImage], image: ImageFormat) -> Callable[[SourceImage], str]:
    """A function that names the file of each image: the image's own name, with the suffix of the
    new encoding if there is one.

    Where `x.png` and `x.jpg` would both become `x.JPEG`, they become `x.png.JPEG` and `x.jpg.JPEG`.
    `images` are sorted by class.
    """
    suffix = _SUFFIXES.get(image.encoding)
    if suffix is None:
        return attrgetter("name")  # the source has already refused invalid names
    clashing: set[tuple[str, str]] = set()

    def name(origin: SourceImage) -> str:
        stem = _stem(origin.name)
        return (origin.name if (origin.wnid, stem) in clashing else stem) + suffix

    for wnid, of_class in groupby(images, attrgetter("wnid")):
        found = list(of_class)
        stems = Counter(_stem(origin.name) for origin in found)
        clashing |= {(wnid, stem) for stem, count in stems.items() if count > 1}
        _check_names(found, name)
    return name


def _check_names(images: list[SourceImage], name: Callable[[SourceImage], str]) -> None:
    for taken, count in Counter(map(name, images)).items():
        if count > 1:
            raise DatasetError(
                f"{images[0].wnid}: {count} images would be called {taken}; rename one of them"
            )
    for origin in images:
        if len(origin.name) > _SAFE_NAME_LENGTH and not is_plain_name(name(origin)):
            raise DatasetError(
                f"{origin}: would be called {name(origin)}, more than 255 bytes; rename it"
            )


def _stem(name: str) -> str:
    # The same as `PurePath.stem`, which takes ten times as long.
    dot = name.rfind(".")
    return name[:dot] if 0 < dot < len(name) - 1 else name


def _check_disjoint(source: Source, destination: Path) -> None:
    # Symbolic links in the source can point into the folder that --force would remove.
    root = os.path.realpath(source.root)
    if _is_within(str(destination), root):
        raise CommandError(f"{destination}: lies in the source {root}; give a place outside of it")
    links: Iterable[str] = ()
    if os.path.lexists(destination):
        links = (
            image.file
            for image in source.images
            if image.size is None and Path(image.file).is_symlink()
        )
    for file in chain([root], source.images.places, links):
        if _is_within(os.path.realpath(file), str(destination)):
            raise _contains_source(file, destination)


def _is_within(path: str, folder: str) -> bool:
    return path == folder or path.startswith(folder + os.sep)


def _contains_source(source: Path | str, destination: Path) -> CommandError:
    return CommandError(
        f"{destination}: holds the source {source}; give another place for the dataset"
    )
