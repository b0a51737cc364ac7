"""The conversion: one source, one shuffled order, a pool of processes, one writer in order, and the manifest at the end."""

import contextlib
import itertools
import os
from collections import Counter
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import numpy as np

from ioprof import __version__
from ioprof.converters.destination import checked_destination, new_folder, require_space, sync_file_system
from ioprof.converters.layouts import LAYOUTS, Layout, Record, Target
from ioprof.converters.options import ConvertOptions
from ioprof.converters.pool import num_cores, ordered_map
from ioprof.converters.reading import ImageWork
from ioprof.converters.sources import Source, SourceImage, open_source
from ioprof.converters.transforms import OTHER_FORM
from ioprof.dataset import Dataset, ImageClass, ImageFormat, RecordDigest, is_plain_name, quantiles_of
from ioprof.errors import CommandError, DatasetError

Advance = Callable[[int], object]
"""Is told how many more images are done."""

_CHUNK_IMAGES: Final = 8
_SPACE_MARGIN: Final = 1.05
_RECORD_OVERHEAD_BYTES: Final = 4096  # the unused end of a file's last block, or of an LMDB value's last page
_SURELY_SHORT: Final = 60  # characters: not 255 bytes, whatever they are and whatever the suffix
_SUFFIXES: Final = {"jpeg": ".JPEG", "raw": ".rgb"}
# Bytes of a 256 × 256 JPEG by quality: what photographs took, and a fifth.
_RGB256_QUALITIES: Final = (1, 50, 75, 90, 95)
_RGB256_BYTES: Final = (1_500, 11_000, 16_000, 26_500, 37_500)


@dataclass(frozen=True)
class Conversion:
    """A conversion that was found possible, and has not begun."""

    source: Source
    destination: Path
    options: ConvertOptions
    stored_name: Callable[[SourceImage], str]
    """What the file of an image is called."""

    @property
    def images(self) -> int:
        """How many images it will read."""
        return min(len(self.source.images), self.options.limit or len(self.source.images))

    def run(self, advance: Advance = lambda _: None) -> Dataset:
        """Do it; nothing is left behind when it fails.

        Raises `CommandError` for an image that cannot be used (unless those are quarantined), a full disk, or a worker that died.
        """
        with new_folder(self.destination, self.options.force) as folder:
            dataset = self._write(folder, advance)
            sync_file_system(folder)
            dataset.save()
        return replace(dataset, path=self.destination)

    def _write(self, folder: Path, advance: Advance) -> Dataset:
        tally = _Tally()
        image = self.options.image_format
        labels = {wnid: label for label, wnid in enumerate(self.source.wnids)}
        layout: Layout = LAYOUTS[self.options.layout](Target(folder, self.options.split, image, self.source.wnids))
        with layout, contextlib.closing(self._results()) as results:
            for chunk, outcomes in results:
                for origin, outcome in zip(chunk, outcomes, strict=True):
                    if isinstance(outcome, str):
                        tally.quarantine(origin, outcome, self.options)
                        continue
                    record = Record(tally.records, origin.wnid, self.stored_name(origin), labels[origin.wnid], outcome)
                    layout.add(record)
                    tally.add(record)
                advance(len(chunk))
            layout.finish()
        return self._manifest(folder, tally)

    def _results(self) -> Generator[tuple[list[SourceImage], list[bytes | str]]]:
        chunks, tasks = itertools.tee(_chunks(shuffled(self.source.images, self.options.shuffle_seed)[: self.images]))
        with contextlib.closing(ImageWork(self.options.image_format)) as work:
            results = ordered_map(work, tasks, min(self.options.workers or num_cores(), -(-self.images // _CHUNK_IMAGES)))
            with contextlib.closing(results):
                yield from zip(chunks, results, strict=True)

    def _manifest(self, folder: Path, tally: "_Tally") -> Dataset:
        if not tally.lengths:
            raise CommandError(
                f"all {len(tally.quarantined)} images are bad (the first: {tally.quarantined[0]['name']}, "
                f"{tally.quarantined[0]['reason']}); nothing to make a dataset of",
                exit_code=1,
            )
        return Dataset(
            path=folder,
            name=self.destination.name,
            split=self.options.split,
            layout=self.options.layout,
            image=self.options.image_format,
            records=tally.records,
            bytes=sum(tally.lengths),
            classes=tuple(ImageClass(wnid, self.source.class_names.get(wnid, wnid)) for wnid in self.source.wnids),
            label_convention="sorted_wnid",
            record_bytes_quantiles=quantiles_of(tally.lengths),
            digest=tally.digest.text(),
            source=self.source.description,
            version=__version__,
            shuffle_seed=self.options.shuffle_seed,
            quarantined=tuple(tally.quarantined),
        )


def plan_conversion(source: Path, destination: Path, options: ConvertOptions) -> Conversion:
    """Look at source, destination and free space; raises `CommandError` or `DatasetError` for what would stop the work."""
    if options.layout not in LAYOUTS:
        raise CommandError(f"--layout {options.layout!r}: choose one of {', '.join(LAYOUTS)}")
    target = checked_destination(destination, options.force)
    _check_apart(source, target)
    found = open_source(source, options.split)
    _check_outside(found, target)
    conversion = Conversion(found, target, options, name_giver(found.images, options.image_format))
    require_space(target, _needed_bytes(conversion), conversion.images if options.layout == "files" else 1)
    return conversion


def shuffled(images: list[SourceImage], seed: int) -> list[SourceImage]:
    """The order of the records. NumPy promises that this old generator's stream never changes (NEP 19)."""
    return [images[place] for place in np.random.RandomState(seed).permutation(len(images))]


def name_giver(images: Sequence[SourceImage], image: ImageFormat) -> Callable[[SourceImage], str]:
    """What the file of each image is called: its own name, with the suffix of the new encoding if there is one.

    Where `x.png` and `x.jpg` would both become `x.JPEG`, they become `x.png.JPEG` and `x.jpg.JPEG`.
    """
    suffix = _SUFFIXES.get(image.encoding)
    if suffix is None:
        return lambda origin: origin.name  # a name that cannot be used has been refused with its source
    stems = Counter((origin.wnid, Path(origin.name).stem) for origin in images)
    clashing = {key for key, count in stems.items() if count > 1}

    def name(origin: SourceImage) -> str:
        stem = Path(origin.name).stem
        return (origin.name if (origin.wnid, stem) in clashing else stem) + suffix

    if clashing:
        names = Counter((origin.wnid, name(origin)) for origin in images)
        for (wnid, taken), count in names.items():
            if count > 1:
                raise DatasetError(f"{wnid}: {count} images would be called {taken}; rename one of them")
    for origin in images:
        if len(origin.name) > _SURELY_SHORT and not is_plain_name(name(origin)):
            raise DatasetError(f"{origin.where}: would be called {name(origin)}, more than 255 bytes; rename it")
    return name


class _Tally:
    """What the manifest says about the records, gathered as they are written."""

    def __init__(self) -> None:
        self.digest = RecordDigest()
        self.lengths: list[int] = []
        self.quarantined: list[dict[str, str]] = []

    @property
    def records(self) -> int:
        return len(self.lengths)

    def add(self, record: Record) -> None:
        self.digest.add(record.label, record.data)
        self.lengths.append(len(record.data))

    def quarantine(self, origin: SourceImage, reason: str, options: ConvertOptions) -> None:
        if options.on_error == "fail":
            hint = "" if reason.endswith(OTHER_FORM) else "; to leave such images out: --on-error quarantine"
            raise CommandError(f"{origin.where}: {reason}{hint}", exit_code=1)
        self.quarantined.append({"name": f"{origin.wnid}/{origin.name}", "reason": reason})


def _chunks(images: list[SourceImage]) -> Iterator[list[SourceImage]]:
    for start in range(0, len(images), _CHUNK_IMAGES):
        yield images[start : start + _CHUNK_IMAGES]


def _needed_bytes(conversion: Conversion) -> int:
    image = conversion.options.image_format
    if image.encoding == "source":
        mean = conversion.source.mean_image_bytes
    elif image.quality is not None:
        mean = float(np.interp(image.quality, _RGB256_QUALITIES, _RGB256_BYTES))
    else:
        mean = 3 * (image.size or 0) ** 2
    return round(conversion.images * (mean + _RECORD_OVERHEAD_BYTES) * _SPACE_MARGIN)


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
    files = {image.file if image.size is not None else image.file.rpartition("/")[0] for image in source.images}
    if os.path.lexists(destination):
        files |= {image.file for image in source.images if image.size is None and Path(image.file).is_symlink()}
    for file in [root, *files]:
        if _is_within(os.path.realpath(file), str(destination)):
            raise _holds(file, destination)


def _is_within(path: str, folder: str) -> bool:
    return path == folder or path.startswith(folder + os.sep)


def _holds(source: Path | str, destination: Path) -> CommandError:
    return CommandError(f"{destination}: holds the source {source}; give another place for the dataset")
