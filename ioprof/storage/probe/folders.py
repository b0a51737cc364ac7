"""What there is to read in a folder that is no dataset."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import numpy as np

from ioprof.errors import CommandError
from ioprof.storage.probe.material import Material, regular_size
from ioprof.storage.probe.ranges import Ranges
from ioprof.storage.probe.sizes import RecordSizes
from ioprof.storage.probe.whole_files import WholeFiles

USUAL_RECORD_BYTES: Final = 112 << 10
"""Where nothing is known of the records: a mean image of ImageNet, which has 114,667 bytes."""
LARGE_BYTES: Final = 4 << 20
"""Files whose median is larger are read in ranges, as containers of records."""
_MOST_FILES: Final = 50_000
_SAMPLE: Final = 64


def regular_files(folder: str, most: int = _MOST_FILES) -> list[str]:
    """The first `most` files at and below the folder, links left out. Asks for no file's status, which would have it known."""
    return [path for path, _ in zip(_walk(folder), range(most), strict=False)]


def material_of(path: str, sizes: RecordSizes | None, random: np.random.Generator, readahead: bool = False) -> Material:
    """The file, or the files of the folder: whole, or in ranges of `sizes` where these are given or the files are large.

    Raises `CommandError` where nothing is there to be read.
    """
    if not Path(path).is_dir():
        return Ranges([path], sizes or RecordSizes.fixed(USUAL_RECORD_BYTES), random, readahead)
    found = regular_files(path)
    if not found:
        raise CommandError(f"{path}: holds no file to read; have some written, and removed again, with --scratch 1G")
    known = {} if sizes else _lengths(found, -(-len(found) // 4), random)
    if not known or np.median(list(known.values())) > LARGE_BYTES:
        sizes = sizes or RecordSizes.fixed(USUAL_RECORD_BYTES)
        lengths = _lengths(found, len(found), random)
        large = [name for name, length in lengths.items() if length >= sizes.values[-1]]
        return Ranges(large or list(lengths), sizes, random, readahead)
    return WholeFiles(found, random, known.keys())


def _lengths(paths: list[str], most: int, random: np.random.Generator) -> dict[str, int]:
    """Of some, drawn by chance."""
    chosen = random.choice(len(paths), min(most, _SAMPLE), replace=False)
    return {paths[place]: regular_size(paths[place]) for place in chosen}


def _walk(folder: str) -> Iterator[str]:
    folders = [folder]
    while folders:
        try:
            with os.scandir(folders.pop()) as entries:
                for entry in entries:
                    if entry.is_dir(follow_symlinks=False):
                        folders.append(entry.path)
                    elif entry.is_file(follow_symlinks=False):
                        yield entry.path
        except OSError:  # somebody else's, or removed meanwhile
            continue
