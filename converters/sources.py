"""What can be converted: folders of class folders, and the tar of tars that ImageNet comes as.

A source is found by asking each entry of `SOURCES` in turn. Every name in it is untrusted.
"""

import os
import stat
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from operator import attrgetter
from pathlib import Path
from typing import Final

from ioprof.converters import archive
from ioprof.converters.destination import SYNTHETIC_NAME
from ioprof.dataset import MANIFEST_NAME, is_plain_name
from ioprof.errors import CommandError, DatasetError

IMAGE_SUFFIXES: Final = (".jpeg", ".jpg", ".jpe", ".jfif", ".png", ".bmp", ".ppm", ".tif", ".tiff", ".webp")
"""Files that end otherwise, in whatever case, are no images; they are passed over, and counted."""

_CLASS_NAME_FILES: Final = ("synset_words.txt", "LOC_synset_mapping.txt")
_SAMPLED_FILES: Final = 1000
_MAX_TEXT_BYTES: Final = 1 << 24


@dataclass(frozen=True, slots=True)
class SourceImage:
    """One image, and where its bytes lie."""

    wnid: str
    name: str
    file: str
    """The file that holds it."""
    offset: int = 0
    size: int | None = None
    """Null: all of the file."""

    @property
    def where(self) -> str:
        """For messages: the image's file, or its place in the tar."""
        return self.file if self.size is None else f"{self.file} ({self.wnid}.tar, {self.name})"


@dataclass(frozen=True)
class Source:
    """All images that a conversion starts from."""

    description: str
    """In words, for the manifest."""
    images: list[SourceImage]
    """Sorted by wnid and name."""
    wnids: tuple[str, ...]
    """Sorted; the place of a wnid is its label. Each has at least one image."""
    class_names: dict[str, str]
    """Names of classes in words, where the source has them."""
    root: Path
    """The folder of the class folders, or the tar."""
    passed_over: dict[str, int]
    """Files in the class folders or tars that are no images by their names: suffix → how many, the most frequent first."""

    @property
    def mean_image_bytes(self) -> float:
        """Mean size of an image; of a tree, estimated from a thousand of its files."""
        images = self.images[:: max(1, len(self.images) // _SAMPLED_FILES)] if self.images[0].size is None else self.images
        return sum(os.stat(image.file).st_size if image.size is None else image.size for image in images) / len(images)


def open_source(path: Path, split: str) -> Source:
    """The source at `path`; raises `CommandError` or `DatasetError` with what is wrong with it."""
    try:
        return _found(path, split)
    except OSError as error:
        raise CommandError(f"{error.filename or path}: cannot be read ({error.strerror})") from None


def _found(path: Path, split: str) -> Source:
    if not path.exists():
        raise CommandError(f"{path}: no such file or folder; give the folder of the class folders, or {_tar_name(split)}")
    if (path / MANIFEST_NAME).exists():
        raise CommandError(f"{path}: already a dataset of ioprof ({MANIFEST_NAME}); give the images that it was made from")
    for opener in SOURCES.values():
        source = opener(path, split)
        if source is not None:
            return source
    raise CommandError(f"{path}: neither a folder of class folders with images nor {_tar_name(split)}")


def _tar_name(split: str) -> str:
    return f"ILSVRC2012_img_{split}.tar"


# ------------------------------------------------------------------------------------------------ a tar of tars


def _open_tar(path: Path, split: str) -> Source | None:
    file = path / _tar_name(split) if path.is_dir() else path
    if not file.exists():
        return None
    others: Counter[str] = Counter()
    descriptor = os.open(file, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)  # a named pipe must not block here
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode) or not archive.is_tar(descriptor):
            raise CommandError(f"{file}: not a tar (a compressed one must be unpacked first: gunzip, unxz, ...)")
        images = _tar_images(descriptor, str(file.absolute()), status.st_size, others)
    finally:
        os.close(descriptor)
    name = file.name.encode(errors="replace").decode()
    return _source(f"{name}, a tar of one tar per class", images, file.parent, file, others)


def _tar_images(descriptor: int, file: str, size: int, others: Counter[str]) -> list[SourceImage]:
    images: list[SourceImage] = []
    seen: set[str] = set()
    for inner in archive.members(descriptor, file, 0, size):
        wnid = _checked_name(inner.name.removesuffix(".tar"), file, inner.name)
        if not inner.name.endswith(".tar"):
            raise DatasetError(f"{file}: holds {inner.name}, where one tar per class is expected")
        if wnid in seen:
            raise DatasetError(f"{file}: holds {inner.name} twice; which of the two is meant cannot be known")
        seen.add(wnid)
        images += _class_images(descriptor, file, wnid, inner, others)
    return images


def _class_images(descriptor: int, file: str, wnid: str, inner: archive.Member, others: Counter[str]) -> list[SourceImage]:
    where = f"{file} ({inner.name})"
    images: dict[str, SourceImage] = {}
    for member in archive.members(descriptor, where, inner.offset, inner.offset + inner.size):
        name = _checked_name(member.name, where, member.name)
        if name in images:
            raise DatasetError(f"{where}: holds {name} twice; which of the two is meant cannot be known")
        if _is_image(name):
            images[name] = SourceImage(wnid, name, file, member.offset, member.size)
        else:
            others[_suffix(name)] += 1
    if not images:
        raise DatasetError(f"{where}: holds no image; every class takes a label, so a class without images is refused")
    return list(images.values())


# ------------------------------------------------------------------------------------------------ a tree of class folders


def _open_tree(path: Path, split: str) -> Source | None:
    if not path.is_dir():
        return None
    root = path / split if (path / split).is_dir() else path
    folders = [entry.name for entry in os.scandir(root) if not entry.name.startswith(".") and entry.is_dir()]
    if not folders:
        return None
    images: list[SourceImage] = []
    others: Counter[str] = Counter()
    empty = []
    for folder in folders:
        wnid = _checked_name(folder, str(root), folder)
        found = _folder_images(str((root / folder).absolute()), wnid, others)
        images += found
        if not found:
            empty.append(folder)
    if len(empty) == len(folders):
        return None
    if empty:
        more = f" (and {len(empty) - 1} more)" if len(empty) > 1 else ""
        raise DatasetError(f"{root / min(empty)}{more}: a class folder without an image; it would take a label: remove or fill it")
    name = Path(os.path.realpath(root)).name.encode(errors="replace").decode()
    return _source(f"{_kind_of_tree(path)} {name}", images, path, root, others)


def _folder_images(folder: str, wnid: str, others: Counter[str]) -> list[SourceImage]:
    with os.scandir(folder) as entries:
        files = [entry.name for entry in entries if entry.is_file()]
    names = [name for name in files if _is_image(name)]
    others.update(_suffix(name) for name in files if not _is_image(name))
    return [SourceImage(wnid, _checked_name(name, folder, name), f"{folder}/{name}") for name in names]


def _kind_of_tree(path: Path) -> str:
    return "tree of synthetic images" if (path / SYNTHETIC_NAME).exists() else "image tree"


# ------------------------------------------------------------------------------------------------ both


def _source(description: str, images: list[SourceImage], folder: Path, root: Path, others: Counter[str]) -> Source:
    if not images:
        raise DatasetError(f"{folder}: no images")
    images.sort(key=attrgetter("wnid", "name"))
    wnids = tuple(sorted({image.wnid for image in images}))
    return Source(description, images, wnids, _class_names(folder), root, dict(others.most_common()))


def _checked_name(name: str, where: str, whole: str) -> str:
    if not is_plain_name(name):
        raise DatasetError(f"{where}: the name {whole!r} cannot be used (a path, a control character, or no UTF-8); rename it")
    return name


def _is_image(name: str) -> bool:
    return name.lower().endswith(IMAGE_SUFFIXES) and not name.startswith(".")


def _suffix(name: str) -> str:
    suffix = Path(name).suffix.lower()
    return suffix if suffix.isprintable() and suffix else "hidden" if name.startswith(".") else "other"


def _class_names(folder: Path) -> dict[str, str]:
    file = next((folder / name for name in _CLASS_NAME_FILES if (folder / name).is_file()), None)
    if file is None or file.stat().st_size > _MAX_TEXT_BYTES:
        return {}
    lines = file.read_text(encoding="utf-8", errors="replace").splitlines()
    return dict(_split_line(line) for line in lines if line.strip())


def _split_line(line: str) -> tuple[str, str]:
    wnid, _, name = line.strip().partition(" ")
    return wnid, " ".join(name.split())


SOURCES: Final[dict[str, Callable[[Path, str], Source | None]]] = {"tars": _open_tar, "tree": _open_tree}
"""Each returns null when `path` is not of its kind, and raises when it is and cannot be used."""
