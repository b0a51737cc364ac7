"""`synthetic:N` as a source: the images that `generate` would write, created in memory by the
worker that needs them.
"""

import re
from collections.abc import Iterator
from itertools import groupby
from operator import attrgetter
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np

from ioprof.converters.images.size_distribution import target_bytes
from ioprof.converters.images.synthesis import synthetic_jpeg
from ioprof.converters.options import GenerateOptions
from ioprof.converters.sources.listing import ListingWriter
from ioprof.converters.sources.source import Source, make_source
from ioprof.converters.sources.source_image import SourceImage
from ioprof.errors import CommandError

_FORM: Final = re.compile(r"synthetic:(\d{1,9})")


class SyntheticImage(NamedTuple):
    """One image to create."""

    number: int
    wnid: str
    name: str
    target_bytes: int


def synthetic_images(options: GenerateOptions) -> Iterator[SyntheticImage]:
    """The images that `generate` makes with these options, class after class."""
    wnids = synthetic_classes(options)
    for number, target in enumerate(
        target_bytes(options.images, np.random.default_rng([options.seed, 0]))
    ):
        wnid = wnids[number * options.num_classes // options.images]
        yield SyntheticImage(number, wnid, f"{wnid}_{number}.JPEG", int(target))


def synthetic_classes(options: GenerateOptions) -> list[str]:
    """The wnids of the generated classes, sorted."""
    return [f"n{number:08d}" for number in range(1, options.num_classes + 1)]


def synthetic_image(seed: int, number: int, target: int) -> bytes:
    """The bytes of one image; they depend on the arguments alone."""
    return synthetic_jpeg(target, np.random.default_rng([seed, 1, number]))


def class_name(wnid: str) -> str:
    """The readable name of a synthetic class."""
    return f"synthetic class {wnid[1:].lstrip('0')}"


def open_synthetic(path: Path) -> Source | None:
    """The source that `path` names, if it has the form `synthetic:N`."""
    if not str(path).startswith("synthetic:") or path.exists():
        return None
    match = _FORM.fullmatch(str(path))
    if match is None or int(match[1]) == 0:
        raise CommandError(f"{path}: give the number of images, such as synthetic:1000")
    options = GenerateOptions(images=int(match[1]))
    images = ListingWriter("synthetic")
    for wnid, of_class in groupby(synthetic_images(options), attrgetter("wnid")):
        images.add_class(
            wnid,
            (
                SourceImage(wnid, each.name, str(path), each.number, each.target_bytes)
                for each in of_class
            ),
        )
    names = {wnid: class_name(wnid) for wnid in synthetic_classes(options)}
    return make_source(str(path), images, path, path, class_names=names)


class SyntheticReader:
    """Creates the images."""

    def read(self, image: SourceImage) -> bytes:
        """The bytes of the image's file."""
        return synthetic_image(0, image.offset, image.size or 0)

    def close(self) -> None:
        """Does nothing: no file is open."""
