"""What every kind of source is made into: a list of images that can be read in any order, and the classes with their labels."""

import os
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from operator import attrgetter
from pathlib import Path
from typing import Final, Protocol

import numpy as np

from ioprof.dataset import is_plain_name
from ioprof.errors import DatasetError

IMAGE_SUFFIXES: Final = (".jpeg", ".jpg", ".jpe", ".jfif", ".png", ".bmp", ".ppm", ".tif", ".tiff", ".webp")
"""Files that end otherwise, in whatever case, are no images; they are passed over, and counted."""

MAX_TEXT_BYTES: Final = 1 << 24
"""A larger list of names or labels is none."""

_CLASS_NAME_FILES: Final = ("synset_words.txt", "LOC_synset_mapping.txt")
_SAMPLED_FILES: Final = 1000


@dataclass(frozen=True, slots=True)
class SourceImage:
    """One image, and where its bytes lie."""

    wnid: str
    name: str
    place: str
    """The archive that holds it; of one that is a file of its own, the folder, which all its neighbours share."""
    offset: int = 0
    """Of its first byte; of `parquet` the row; of `synthetic` the number."""
    size: int | None = None
    """Null: all of the file, or not known."""
    kind: str = "file"
    """A key of `sources.READERS`, or `file`: the bytes lie in the file as they are."""
    group: int = 0
    """Of images that can only be read together, the number of the group in the file."""

    @property
    def file(self) -> str:
        """The file that holds it."""
        return self.place if self.size is not None or self.kind != "file" else f"{self.place}/{self.name}"

    @property
    def where(self) -> str:
        """For messages: the image's file, or its place in the archive."""
        if self.kind == "parquet":
            return f"{self.file} (row {self.offset}, {self.name})"
        return self.file if self.size is None else f"{self.file} ({self.wnid}, {self.name})"


class Reader(Protocol):
    """Reads the images of one kind of source. Made anew in each process."""

    def read(self, image: SourceImage) -> bytes:
        """The bytes of the image's file; raises OSError when the storage fails."""

    def close(self) -> None:
        """Close what is open."""


@dataclass(frozen=True)
class Source:
    """All images that a conversion starts from."""

    description: str
    """In words, for the manifest."""
    images: list[SourceImage]
    """Sorted by wnid and name."""
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
        if self.images[0].kind == "parquet":
            return sum(os.stat(file).st_size for file in {image.file for image in self.images}) / len(self.images)
        images = self.images[:: max(1, len(self.images) // _SAMPLED_FILES)] if self.images[0].size is None else self.images
        return sum(os.stat(image.file).st_size if image.size is None else image.size for image in images) / len(images)

    def order(self, seed: int) -> list[SourceImage]:
        """The order of the records, by one shuffle. NumPy promises that this old generator's stream never changes (NEP 19).

        Images that can only be read together stay together: their groups are shuffled, and each of them in itself.
        """
        random = np.random.RandomState(seed)
        if not any(image.group for image in self.images):
            return [self.images[place] for place in random.permutation(len(self.images))]
        by_group = attrgetter("file", "group")
        groups = [list(images) for _, images in groupby(sorted(self.images, key=by_group), by_group)]
        shuffled = (groups[place] for place in random.permutation(len(groups)))
        return [group[place] for group in shuffled for place in random.permutation(len(group))]


def made_source(
    description: str,
    images: list[SourceImage],
    folder: Path,
    root: Path,
    *,
    wnids: Iterable[str] | None = None,
    class_names: dict[str, str] | None = None,
    passed_over: Counter[str] | None = None,
) -> Source:
    """A source of `images`; `wnids` where there may be classes without images, `class_names` where no file in `folder` has them."""
    if not images:
        raise DatasetError(f"{folder}: no images")
    images.sort(key=attrgetter("wnid", "name"))
    classes = tuple(sorted(set(wnids) if wnids is not None else {image.wnid for image in images}))
    names = class_names_in(folder) if class_names is None else class_names
    return Source(description, images, classes, names, root, dict((passed_over or Counter()).most_common()))


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
