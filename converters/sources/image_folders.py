"""Image folders: class folders, ImageNet's flat folder of validation images, and both in Kaggle's
layout.
"""

import os
from collections import Counter
from pathlib import Path
from typing import Final

from ioprof.converters.manifests import SYNTHETIC_NAME
from ioprof.converters.sources.listing import ListingWriter
from ioprof.converters.sources.refusals import Refusals
from ioprof.converters.sources.source import (
    Source,
    is_image,
    is_usable,
    make_source,
    read_class_names,
    suffix_of,
)
from ioprof.converters.sources.source_image import SourceImage
from ioprof.converters.sources.validation_labels import Labels, find_labels, missing_labels
from ioprof.errors import CommandError, DatasetError

_KAGGLE: Final = ("ILSVRC/Data/CLS-LOC", "Data/CLS-LOC", "CLS-LOC")


def open_tree(path: Path, split: str, refusals: Refusals) -> Source | None:
    """The folder `path`, or the folder of the split in it, as a source."""
    if not path.is_dir():
        return None
    root = path / split if (path / split).is_dir() else path
    source = _class_folders(root, path, [path], refusals)
    if source is None and (labels := find_labels(path, root, path.parent)):
        return _flat_folder(root, path, labels, refusals)
    if source is None and root != path and _list_images(root):
        raise missing_labels(str(root), path)
    return source


def open_kaggle(path: Path, split: str, refusals: Refusals) -> Source | None:
    """The unpacked download of Kaggle's "ImageNet Object Localization Challenge" at `path`, as a
    source.
    """
    data = next((path / inner for inner in _KAGGLE if (path / inner).is_dir()), None)
    if data is None:
        return None
    root = data / split
    if not root.is_dir():
        raise CommandError(
            f"{data}: has no folder {split}; give the name of an existing one with --split"
        )
    lists = [path, path.parent, data.parent.parent.parent]
    source = _class_folders(root, path, lists, refusals)
    if source is not None:
        return source
    labels = find_labels(*lists)
    if labels is None:
        raise missing_labels(str(root), path)
    return _flat_folder(root, path, labels, refusals)


def _class_folders(root: Path, path: Path, lists: list[Path], refusals: Refusals) -> Source | None:
    with os.scandir(root) as entries:
        folders = sorted(
            entry.name for entry in entries if not entry.name.startswith(".") and entry.is_dir()
        )
    folders = [folder for folder in folders if is_usable(folder, str(root), refusals)]
    images = ListingWriter()
    others: Counter[str] = Counter()
    empty = []
    for folder in folders:
        where = str((root / folder).absolute())
        with os.scandir(where) as entries:
            files = [entry.name for entry in entries if entry.is_file()]
        names = [name for name in files if is_image(name)]
        others.update(suffix_of(name) for name in files if not is_image(name))
        images.add_class(
            folder,
            [
                SourceImage(folder, name, where)
                for name in names
                if is_usable(name, where, refusals)
            ],
        )
        if not names:
            empty.append(folder)
    if len(empty) == len(folders):
        return None
    if empty:
        more = f" (and {len(empty) - 1} more)" if len(empty) > 1 else ""
        raise DatasetError(
            f"{root / min(empty)}{more}: a class folder without images; it would be given a label:"
            " remove it, or add images"
        )
    kind = "tree of synthetic images" if (path / SYNTHETIC_NAME).exists() else "image tree"
    class_names = read_class_names(*lists)
    # A class whose images are all refused keeps its label.
    return make_source(
        f"{kind} {_real_name(root)}",
        images,
        path,
        root,
        wnids=folders,
        class_names=class_names,
        passed_over=others,
    )


def _flat_folder(root: Path, path: Path, labels: Labels, refusals: Refusals) -> Source | None:
    names = _list_images(root)
    if not names:
        return None
    folder = str(root.absolute())
    images = ListingWriter()
    usable = (name for name in names if is_usable(name, folder, refusals))
    images.add(
        SourceImage(wnid, name, folder)
        for name in usable
        if (wnid := labels.known_wnid(name, folder, refusals))
    )
    description = f"folder {_real_name(root)} with labels of {labels.description}"
    return make_source(
        description, images, path, root, wnids=labels.wnids, class_names=labels.class_names
    )


def _list_images(root: Path) -> list[str]:
    with os.scandir(root) as entries:
        return [entry.name for entry in entries if is_image(entry.name) and entry.is_file()]


def _real_name(root: Path) -> str:
    return Path(os.path.realpath(root)).name.encode(errors="replace").decode()
