"""What can be converted: archives of ImageNet, folders of class folders, Kaggle's layout, Parquet shards, synthetic images.

A source is found by asking each entry of `SOURCES` in turn. Every name in it is untrusted.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Final

from ioprof.converters.known_archives import check_archives
from ioprof.converters.origin import Source
from ioprof.converters.parquet_shards import open_parquet
from ioprof.converters.synthetic_source import open_synthetic
from ioprof.converters.tars import archive_name, open_tar
from ioprof.converters.trees import open_kaggle, open_tree
from ioprof.dataset import MANIFEST_NAME
from ioprof.errors import CommandError

SOURCES: Final[dict[str, Callable[[Path, str], Source | None]]] = {
    "tars": open_tar,
    "kaggle": open_kaggle,
    "parquet": open_parquet,
    "tree": open_tree,
}
"""Each returns null when `path` is not of its kind, and raises when it is and cannot be used."""


def open_source(path: Path, split: str, check_md5: bool = False) -> Source:
    """The source at `path`; raises `CommandError` or `DatasetError` with what is wrong with it.

    With `check_md5` the archives of ImageNet in it are read first, and their MD5 compared with what is known.
    """
    try:
        return open_synthetic(path) or _found(path, split, check_md5)
    except OSError as error:
        raise CommandError(f"{error.filename or path}: cannot be read ({error.strerror or error})") from None


def _found(path: Path, split: str, check_md5: bool) -> Source:
    if not path.exists():
        raise CommandError(f"{path}: no such file or folder; give the folder of the class folders, or {archive_name(split)}")
    if (path / MANIFEST_NAME).exists():
        raise CommandError(f"{path}: already a dataset of ioprof ({MANIFEST_NAME}); give the images that it was made from")
    if check_md5:
        check_archives(path, split)
    for opener in SOURCES.values():
        source = opener(path, split)
        if source is not None:
            return source
    raise CommandError(f"{path}: neither a folder of class folders with images nor {archive_name(split)} nor Parquet shards")
