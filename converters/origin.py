"""What every kind of source is made into: a list of images that can be read in any order, and the classes with their labels."""

import os
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from ioprof.converters.listing import Listing, ListingWriter
from ioprof.dataset import is_plain_name
from ioprof.errors import DatasetError

IMAGE_SUFFIXES: Final = (".jpeg", ".jpg", ".jpe", ".jfif", ".png", ".bmp", ".ppm", ".tif", ".tiff", ".webp")
"""Files that end otherwise, in whatever case, are no images; they are passed over, and counted."""

MAX_TEXT_BYTES: Final = 1 << 24
"""A larger list of names or labels is none."""

_CLASS_NAME_FILES: Final = ("synset_words.txt", "LOC_synset_mapping.txt")
_SAMPLED_FILES: Final = 1000

Order = NDArray[np.uint32]
"""Numbers of images, each once."""


@dataclass(frozen=True)
class Source:
    """All images that a conversion starts from."""

    description: str
    """In words, for the manifest."""
    images: Listing
    wnids: tuple[str, ...]
    """Sorted; the place of a wnid is its label."""
    class_names: dict[str, str]
    """Names of classes in words, where the source has them."""
    root: Path
    """The folder of the class folders, or the archive."""
    passed_over: dict[str, int] = field(default_factory=dict)
    """Files in the class folders or tars that are no images by their names: suffix → how many, the most frequent first."""

    @property
    def mean_image_bytes(self) -> float:
        """Mean size of an image; of a tree, estimated from a thousand of its files."""
        images = self.images
        if images.kind == "parquet":
            return sum(os.stat(place).st_size for place in images.places) / len(images)
        if images[0].size is not None:
            return images.num_bytes / len(images)
        sampled = range(0, len(images), max(1, len(images) // _SAMPLED_FILES))
        return sum(os.stat(images[number].file).st_size for number in sampled) / len(sampled)

    def order(self, seed: int) -> Order:
        """The order of the records, by one shuffle. NumPy promises that this old generator's stream never changes (NEP 19).

        Images that can only be read together stay together: their groups are shuffled, and each of them in itself.
        """
        random = np.random.RandomState(seed)
        if self.images.kind != "parquet":
            return random.permutation(len(self.images)).astype(np.uint32)
        groups = _groups(self.images)
        shuffled = [groups[place] for place in random.permutation(len(groups))]
        return np.concatenate([group[random.permutation(len(group))] for group in shuffled])


def _groups(images: Listing) -> list[Order]:
    # By file and group, the images of each in their order.
    rank = {place: number for number, place in enumerate(sorted(images.places))}
    keys = np.fromiter((rank[image.place] << 32 | image.group for image in images), np.int64, len(images))
    order = np.argsort(keys, kind="stable").astype(np.uint32)
    return np.split(order, np.flatnonzero(np.diff(keys[order])) + 1)


def made_source(
    description: str,
    images: ListingWriter,
    folder: Path,
    root: Path,
    *,
    wnids: Iterable[str] | None = None,
    class_names: dict[str, str] | None = None,
    passed_over: Counter[str] | None = None,
) -> Source:
    """A source of `images`; `wnids` where there may be classes without images, `class_names` where no file in `folder` has them."""
    listing = images.finished()
    if not len(listing):
        raise DatasetError(f"{folder}: no images")
    classes = tuple(sorted(set(wnids))) if wnids is not None else listing.wnids
    names = class_names_in(folder) if class_names is None else class_names
    return Source(description, listing, classes, names, root, dict((passed_over or Counter()).most_common()))


def checked_name(name: str, where: str) -> str:
    """`name`, if it can be that of a file; raises `DatasetError`."""
    if not is_plain_name(name):
        raise DatasetError(f"{where}: the name {name!r} cannot be used (a path, a control character, or no UTF-8); rename it")
    return name


def is_image(name: str) -> bool:
    """Whether a file is an image by its name."""
    return name.lower().endswith(IMAGE_SUFFIXES) and not name.startswith(".")


def suffix_of(name: str) -> str:
    """The suffix under which a file that is passed over is counted."""
    suffix = Path(name).suffix.lower()
    return suffix if suffix.isprintable() and suffix else "hidden" if name.startswith(".") else "other"


def class_names_in(*folders: Path) -> dict[str, str]:
    """Names of classes from the first list of them that lies in one of `folders`."""
    files: Sequence[Path] = [folder / name for folder in folders for name in _CLASS_NAME_FILES]
    file = next((file for file in files if file.is_file()), None)
    if file is None or file.stat().st_size > MAX_TEXT_BYTES:
        return {}
    lines = file.read_text(encoding="utf-8", errors="replace").splitlines()
    return dict(_split_line(line) for line in lines if line.strip())


def _split_line(line: str) -> tuple[str, str]:
    wnid, _, name = line.strip().partition(" ")
    return wnid, " ".join(name.split())
