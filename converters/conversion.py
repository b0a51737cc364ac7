"""The conversion: one source, one shuffled order, many hands, one writer in order, and the manifest at the end."""

import contextlib
import os
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Iterator
from dataclasses import asdict, dataclass
from functools import cached_property
from itertools import chain, groupby, tee
from operator import attrgetter
from pathlib import Path
from typing import Any, Final

import numpy as np

from ioprof.converters.destination import SPACE_MARGIN, checked_destination, require_space
from ioprof.converters.engines import Engine, local, versions
from ioprof.converters.halfmade import HalfMade
from ioprof.converters.layouts import LAYOUTS
from ioprof.converters.options import ConvertOptions
from ioprof.converters.origin import Order, Source
from ioprof.converters.parts import MadePart, Part, part_job, part_options, read_part
from ioprof.converters.reading import Asked, ImageWork, Made
from ioprof.converters.record_files import RecordFiles
from ioprof.converters.source_image import SourceImage
from ioprof.converters.sources import open_source
from ioprof.converters.writing import CHUNK_IMAGES, Advance, Job, Outcome, Writing, dataset_job, in_chunks
from ioprof.dataset import Dataset, ImageClass, ImageFormat, is_plain_name
from ioprof.errors import CommandError, DatasetError

_RECORD_OVERHEAD_BYTES: Final = 4096  # the unused end of a file's last block, or of an LMDB value's last page
_SURELY_SHORT: Final = 60  # characters: not 255 bytes, whatever they are and whatever the suffix
_SUFFIXES: Final = {"jpeg": ".JPEG", "png": ".png", "raw": ".rgb"}
# Bytes of a 256 × 256 JPEG by quality: what photographs took, and a fifth.
_RGB256_QUALITIES: Final = (1, 50, 75, 90, 95)
_RGB256_BYTES: Final = (1_500, 11_000, 16_000, 26_500, 37_500)
_PNG_RATIO: Final = 0.6  # of the pixels of a photograph
_MOST_CHUNK_IMAGES: Final = 32
_CHUNK_BYTES: Final = 1 << 20
_CHUNKS_PER_WORKER: Final = 8
_NOT_OF_THE_BYTES: Final = ("workers", "on_error", "force", "stripe", "check_md5")
"""Options that change nothing about the dataset: a job goes on from where it was with others."""


@dataclass(frozen=True)
class Conversion:
    """A conversion that was found possible, and has not begun."""

    source: Source
    destination: Path
    options: ConvertOptions
    stored_name: Callable[[SourceImage], str]
    """What the file of an image is called."""
    part: Part | None = None
    """Which part of the images; null: all of them."""
    engine: Engine | None = None
    """Who does the work; null: processes of this machine."""

    @property
    def total(self) -> int:
        """How many images all parts together read."""
        return min(len(self.source.images), self.options.limit or len(self.source.images))

    @cached_property
    def places(self) -> range:
        """Which of them this one reads."""
        return self.part.places(self.total) if self.part else range(self.total)

    @property
    def images(self) -> int:
        """How many images it will read."""
        return len(self.places)

    @property
    def stored_as(self) -> ConvertOptions:
        """How the records are stored: of a part not as those of the dataset will be."""
        return self.options if self.part is None else part_options(self.options)

    @cached_property
    def mean_record_bytes(self) -> float:
        """About how large a record will be."""
        image = self.options.image_format
        pixels = (image.size or 0) ** 2
        if image.encoding == "source":
            return self.source.mean_image_bytes
        if image.quality is not None:
            return float(np.interp(image.quality, _RGB256_QUALITIES, _RGB256_BYTES)) * pixels / 256**2
        return 3 * pixels * (_PNG_RATIO if image.encoding == "png" else 1)

    @cached_property
    def done_before(self) -> int:
        """How many of them the same job had done when this one was planned."""
        return self.done()

    def done(self) -> int:
        """How many of them the same job has done before it was interrupted."""
        work = HalfMade.beside(self.destination)
        return work.images_done if work.job() == self._job.identity else 0

    def run(self, advance: Advance = lambda _: None) -> Dataset | MadePart:
        """Do it, from the start or from where the same job was interrupted.

        Raises `CommandError` for an image that cannot be used (unless those are quarantined), a full disk, or a worker that died.
        """
        self._job.run(self._outcomes, advance)
        return Dataset.load(self.destination) if self.part is None else read_part(self.destination)

    @cached_property
    def _job(self) -> Job:
        classes = tuple(ImageClass(wnid, self.source.class_names.get(wnid, wnid)) for wnid in self.source.wnids)
        writing = Writing(
            destination=self.destination,
            options=self.stored_as,
            classes=classes,
            source=self.source.description,
            first=self.places.start,
            images=self.images,
            total=self.total,
        )
        identity = {**output_options(self.options), "source": self.source.images.fingerprint(), "versions": versions()}
        return dataset_job(writing, identity) if self.part is None else part_job(self.part, writing, identity, self.options)

    def _outcomes(self, first: int) -> Generator[list[Outcome]]:
        engine = self.engine or local(self.options.workers)
        size = self._chunk_images(engine)
        chunks, tasks = tee(in_chunks(self._asked(first), size))
        num_tasks = -(-(self.places.stop - first) // size)
        with (
            contextlib.closing(ImageWork(self.options.image_format, self._files(engine))) as work,
            contextlib.closing(engine(work, tasks, num_tasks, views=True)) as results,
        ):
            for chunk, found in zip(chunks, results, strict=True):
                yield [_outcome(asked, made) for asked, made in zip(chunk, found, strict=True)]

    def _asked(self, first: int) -> Iterator[Asked]:
        split = self.options.split
        for place in range(first, self.places.stop):
            image = self.source.images[int(self._order[place])]
            yield Asked(image, f"{split}/{image.wnid}/{self.stored_name(image)}")

    def _chunk_images(self, engine: Engine) -> int:
        # Many at a time: each time this process wakes up, the workers have had its part of the caches. Few enough for all to have
        # something to do, and for their results to stay small.
        if engine.workers_here is None:
            return CHUNK_IMAGES
        most = min(_MOST_CHUNK_IMAGES, round(_CHUNK_BYTES / max(1, self.mean_record_bytes)))
        return max(1, min(most, self.images // (_CHUNKS_PER_WORKER * engine.workers_here)))

    def _files(self, engine: Engine) -> RecordFiles | None:
        # Processes of this machine write files themselves: they wait for the storage, and nobody has to copy the bytes.
        if engine.workers_here is None or self.stored_as.layout != "files":
            return None
        return RecordFiles(HalfMade.beside(self.destination).data)

    @cached_property
    def _order(self) -> Order:
        return self.source.order(self.options.shuffle_seed)


def _outcome(asked: Asked, made: Made | str) -> Outcome:
    image = asked.image
    return Outcome(image.wnid, image.name if isinstance(made, str) else asked.path.rpartition("/")[2], image, made)


def plan_conversion(
    source: Path, destination: Path, options: ConvertOptions, part: Part | None = None, engine: Engine | None = None
) -> Conversion:
    """Look at source, destination and free space; raises `CommandError` or `DatasetError` for what would stop the work.

    A part is made beside `destination`, where `plan_merge` finds it.
    """
    if options.layout not in LAYOUTS:
        raise CommandError(f"--layout {options.layout!r}: choose one of {', '.join(LAYOUTS)}")
    wanted = destination if part is None else part.beside(destination)
    target = checked_destination(wanted, force=True)
    work = HalfMade.beside(target)
    work.sweep()
    if not work.is_in_place:  # else killed before it could remove what it no longer needs, which is what remains to be done
        checked_destination(wanted, options.force)
    _check_apart(source, target)
    found = open_source(source, options.split, options.check_md5)
    _check_outside(found, target)
    conversion = Conversion(found, target, options, name_giver(found.images, options.image_format), part, engine)
    if not conversion.images:
        raise CommandError(f"--part {part}: there are only {conversion.total} images; make fewer parts")
    left = conversion.images - conversion.done_before
    needed = left * (conversion.mean_record_bytes + _RECORD_OVERHEAD_BYTES) * SPACE_MARGIN
    require_space(target, round(needed), left if conversion.stored_as.layout == "files" else 1)
    return conversion


def output_options(options: ConvertOptions) -> dict[str, Any]:
    """The options that decide what the dataset holds."""
    return {key: value for key, value in asdict(options).items() if key not in _NOT_OF_THE_BYTES}


def name_giver(images: Iterable[SourceImage], image: ImageFormat) -> Callable[[SourceImage], str]:
    """What the file of each image is called: its own name, with the suffix of the new encoding if there is one.

    Where `x.png` and `x.jpg` would both become `x.JPEG`, they become `x.png.JPEG` and `x.jpg.JPEG`. Images come class after class.
    """
    suffix = _SUFFIXES.get(image.encoding)
    if suffix is None:
        return attrgetter("name")  # a name that cannot be used has been refused with its source
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
            raise DatasetError(f"{images[0].wnid}: {count} images would be called {taken}; rename one of them")
    for origin in images:
        if len(origin.name) > _SURELY_SHORT and not is_plain_name(name(origin)):
            raise DatasetError(f"{origin}: would be called {name(origin)}, more than 255 bytes; rename it")


def _stem(name: str) -> str:
    # As `PurePath.stem`, which takes ten times as long.
    dot = name.rfind(".")
    return name[:dot] if 0 < dot < len(name) - 1 else name


def _check_apart(source: Path, destination: Path) -> None:
    origin = Path(os.path.realpath(source))
    if origin == destination or destination in origin.parents:
        raise _holds(source, destination)
    if destination.parent == origin:
        raise CommandError(f"{destination}: would be a class folder of the source {source}; give a place outside of it")


def _check_outside(source: Source, destination: Path) -> None:
    # Links can lead from a source that lies apart to a folder that --force would remove.
    root = os.path.realpath(source.root)
    if _is_within(str(destination), root):
        raise CommandError(f"{destination}: lies in the source {root}; give a place outside of it")
    for file in chain([root], source.images.places, _links(source) if os.path.lexists(destination) else ()):
        if _is_within(os.path.realpath(file), str(destination)):
            raise _holds(file, destination)


def _links(source: Source) -> Iterator[str]:
    return (image.file for image in source.images if image.size is None and Path(image.file).is_symlink())


def _is_within(path: str, folder: str) -> bool:
    return path == folder or path.startswith(folder + os.sep)


def _holds(source: Path | str, destination: Path) -> CommandError:
    return CommandError(f"{destination}: holds the source {source}; give another place for the dataset")
