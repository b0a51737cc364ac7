"""Folders of class folders, ImageNet's flat folder of validation images, and both as Kaggle lays them out."""

import os
from collections import Counter
from pathlib import Path
from typing import Final

from ioprof.converters.destination import SYNTHETIC_NAME
from ioprof.converters.listing import ListingWriter
from ioprof.converters.origin import Source, checked_name, class_names_in, is_image, made_source, suffix_of
from ioprof.converters.source_image import SourceImage
from ioprof.converters.validation import Labels, labels_in, no_labels
from ioprof.errors import CommandError, DatasetError

_KAGGLE: Final = ("ILSVRC/Data/CLS-LOC", "Data/CLS-LOC", "CLS-LOC")


def open_tree(path: Path, split: str) -> Source | None:
    """The source that is the folder `path`, or the folder of the split in it."""
    if not path.is_dir():
        return None
    root = path / split if (path / split).is_dir() else path
    source = _class_folders(root, path, [path])
    if source is None and (labels := labels_in(path, root, path.parent)):
        return _flat_folder(root, path, labels)
    if source is None and root != path and _image_names(root):
        raise no_labels(str(root), path)
    return source


def open_kaggle(path: Path, split: str) -> Source | None:
    """The source that is the layout of Kaggle's "ImageNet Object Localization Challenge" at `path`, unpacked."""
    data = next((path / inner for inner in _KAGGLE if (path / inner).is_dir()), None)
    if data is None:
        return None
    root = data / split
    if not root.is_dir():
        raise CommandError(f"{data}: has no folder {split}; give one that it has with --split")
    lists = [path, path.parent, data.parent.parent.parent]
    source = _class_folders(root, path, lists)
    if source is not None:
        return source
    labels = labels_in(*lists)
    if labels is None:
        raise no_labels(str(root), path)
    return _flat_folder(root, path, labels)


def _class_folders(root: Path, path: Path, lists: list[Path]) -> Source | None:
    with os.scandir(root) as entries:
        folders = sorted(entry.name for entry in entries if not entry.name.startswith(".") and entry.is_dir())
    images = ListingWriter()
    others: Counter[str] = Counter()
    empty = []
    for folder in folders:
        found = _folder_images(str((root / folder).absolute()), checked_name(folder, str(root)), others)
        images.add_class(folder, found)
        if not found:
            empty.append(folder)
    if len(empty) == len(folders):
        return None
    if empty:
        more = f" (and {len(empty) - 1} more)" if len(empty) > 1 else ""
        raise DatasetError(f"{root / min(empty)}{more}: a class folder without an image; it would take a label: remove or fill it")
    return made_source(
        f"{_kind_of_tree(path)} {_real_name(root)}", images, path, root, class_names=class_names_in(*lists), passed_over=others
    )


def _folder_images(folder: str, wnid: str, others: Counter[str]) -> list[SourceImage]:
    with os.scandir(folder) as entries:
        files = [entry.name for entry in entries if entry.is_file()]
    names = [name for name in files if is_image(name)]
    others.update(suffix_of(name) for name in files if not is_image(name))
    return [SourceImage(wnid, checked_name(name, folder), folder) for name in names]


def _flat_folder(root: Path, path: Path, labels: Labels) -> Source | None:
    names = _image_names(root)
    if not names:
        return None
    folder = str(root.absolute())
    images = ListingWriter()
    images.add(SourceImage(labels.wnid_of(checked_name(name, folder), folder), name, folder) for name in names)
    description = f"folder {_real_name(root)} with labels of {labels.description}"
    return made_source(description, images, path, root, wnids=labels.wnids, class_names=labels.class_names)


def _image_names(root: Path) -> list[str]:
    with os.scandir(root) as entries:
        return [entry.name for entry in entries if is_image(entry.name) and entry.is_file()]


def _kind_of_tree(path: Path) -> str:
    return "tree of synthetic images" if (path / SYNTHETIC_NAME).exists() else "image tree"


def _real_name(root: Path) -> str:
    return Path(os.path.realpath(root)).name.encode(errors="replace").decode()
