"""`Source`, the common form of every kind of source: a list of images that can be read in any
order, and the labelled classes.
"""

import os
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from ioprof.converters.sources.listing import Listing, ListingWriter, StoredNumbers
from ioprof.converters.sources.refusals import Refusals, Refused
from ioprof.errors import DatasetError
from ioprof.format.dataset import is_plain_name

IMAGE_SUFFIXES: Final = (
    ".jpeg",
    ".jpg",
    ".jpe",
    ".jfif",
    ".png",
    ".bmp",
    ".ppm",
    ".tif",
    ".tiff",
    ".webp",
)
"""Suffixes of images, compared without case; other files are skipped and counted."""

MAX_TEXT_BYTES: Final = 1 << 24
"""A larger file is not read as a list of names or labels."""

_CLASS_NAME_FILES: Final = ("synset_words.txt", "LOC_synset_mapping.txt")
_SAMPLED_FILES: Final = 1000

_Order = NDArray[np.uint32]
"""Numbers of images, each once."""


@dataclass(frozen=True)
class Source:
    """All images that a conversion starts from."""

    description: str
    """A text for the manifest."""
    images: Listing
    wnids: tuple[str, ...]
    """Sorted; the index of a wnid is its label."""
    class_names: dict[str, str]
    """wnid → readable class name, where the source has one."""
    root: Path
    """The folder of the class folders, or the archive."""
    passed_over: dict[str, int] = field(default_factory=dict)
    """Files in the class folders or tars without an image suffix: suffix → count, the most frequent
    first."""
    refused: tuple[Refused, ...] = ()
    """Names and members that cannot be used, and are not in `images`; empty unless they are to be
    quarantined."""

    @property
    def mean_image_bytes(self) -> float:
        """Mean size of an image; of class folders, estimated from a thousand files."""
        images = self.images
        if images.kind == "parquet":
            return sum(os.stat(place).st_size for place in images.places) / len(images)
        if images[0].size is not None:
            return images.num_bytes / len(images)
        sampled = range(0, len(images), max(1, len(images) // _SAMPLED_FILES))
        return sum(os.stat(images[number].file).st_size for number in sampled) / len(sampled)

    def order(self, seed: int) -> StoredNumbers:
        """The numbers of the images in the shuffled order of the records; raises `CommandError`
        when the disk is full.
        """
        return StoredNumbers(self._shuffled(seed))

    def _shuffled(self, seed: int) -> _Order:
        """`RandomState` because NumPy guarantees that its stream never changes (NEP 19).

        Images that can only be read as a group stay together: the groups are shuffled, and the
        images within each group.
        """
        images, random = self.images, np.random.RandomState(seed)
        if images.kind != "parquet":
            order = np.arange(len(images), dtype=np.uint32)
            random.shuffle(order)  # as `permutation`, which needs three times the memory
            return order
        rank = {place: number for number, place in enumerate(sorted(images.places))}
        keys = np.fromiter(
            (rank[image.place] << 32 | image.group for image in images), np.int64, len(images)
        )
        order = np.argsort(keys, kind="stable").astype(np.uint32)
        # one per file and row group
        groups = np.split(order, np.flatnonzero(np.diff(keys[order])) + 1)
        shuffled = [groups[place] for place in random.permutation(len(groups))]
        return np.concatenate([group[random.permutation(len(group))] for group in shuffled])


def make_source(
    description: str,
    images: ListingWriter,
    folder: Path,
    root: Path,
    *,
    wnids: Iterable[str] | None = None,
    class_names: dict[str, str] | None = None,
    passed_over: Counter[str] | None = None,
) -> Source:
    """A source of `images`. Give `wnids` if classes can be without images, `class_names` if no file
    in `folder` lists them.
    """
    listing = images.finish()
    if not len(listing):
        raise DatasetError(f"{folder}: no images")
    classes = tuple(sorted(set(wnids))) if wnids is not None else listing.wnids
    names = read_class_names(folder) if class_names is None else class_names
    return Source(
        description, listing, classes, names, root, dict((passed_over or Counter()).most_common())
    )


def check_name(name: str, where: str) -> str:
    """`name`, if it is valid as the name of a file; raises `DatasetError` otherwise."""
    if not is_plain_name(name):
        raise DatasetError(
            f"{where}: the name {name!r} cannot be used (a path, a control character, or no UTF-8);"
            " rename it"
        )
    return name


def is_usable(name: str, where: str, refusals: Refusals) -> bool:
    """Whether `name` is valid as the name of a file; otherwise it is refused."""
    try:
        check_name(name, where)
    except DatasetError as error:
        refusals.add(name, error)
        return False
    return True


def is_image(name: str) -> bool:
    """Whether the name of a file is that of an image."""
    return name.lower().endswith(IMAGE_SUFFIXES) and not name.startswith(".")


def suffix_of(name: str) -> str:
    """The suffix under which a skipped file is counted."""
    suffix = Path(name).suffix.lower()
    return (
        suffix if suffix.isprintable() and suffix else "hidden" if name.startswith(".") else "other"
    )


def read_class_names(*folders: Path) -> dict[str, str]:
    """Class names by wnid, from the first list of class names in one of `folders`; empty without
    one.
    """
    files: Sequence[Path] = [folder / name for folder in folders for name in _CLASS_NAME_FILES]
    file = next((file for file in files if file.is_file()), None)
    if file is None or file.stat().st_size > MAX_TEXT_BYTES:
        return {}
    names = {}
    for line in file.read_text(encoding="utf-8", errors="replace").splitlines():
        if line.strip():
            wnid, _, name = line.strip().partition(" ")
            names[wnid] = " ".join(name.split())
    return names
