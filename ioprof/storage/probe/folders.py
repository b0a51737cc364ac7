"""What there is to read in a folder that is no dataset."""

import os
from collections.abc import Iterator
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np

from ioprof.clock import monotonic_ns
from ioprof.errors import CommandError
from ioprof.storage.probe.material import Material, regular_size
from ioprof.storage.probe.ranges import Ranges
from ioprof.storage.probe.sizes import RecordSizes
from ioprof.storage.probe.whole_files import WholeFiles

USUAL_RECORD_BYTES: Final = 112 << 10
"""Where nothing is known of the records: a mean image of ImageNet, which has 114,667 bytes."""
LARGE_BYTES: Final = 4 << 20
"""Files whose median is larger are read in ranges, as containers of records."""
LISTING_S: Final = 5.0
"""No new folder is opened after so long, once there are files: a thousand class folders over a network take longer."""
_MOST_FILES: Final = 50_000
_SAMPLE: Final = 64
_AT_A_TIME: Final = 1_000


class Found(NamedTuple):
    """Files at and below a folder."""

    paths: list[str]
    is_all: bool
    """Else those of folders drawn by chance."""


def regular_files(folder: str, random: np.random.Generator, most: int = _MOST_FILES, seconds: float = LISTING_S) -> Found:
    """Up to `most` files at and below the folder, links left out. Asks for no file's status, which would have it known."""
    paths: list[str] = []
    end_ns = monotonic_ns() + round(seconds * 1e9)
    for files in _walk(folder, random):
        paths += files
        if len(paths) > most:
            return Found(paths[:most], is_all=False)
        if paths and monotonic_ns() >= end_ns:
            return Found(paths, is_all=False)
    return Found(paths, is_all=True)


def material_of(
    path: str, sizes: RecordSizes | None, random: np.random.Generator, readahead: bool = False
) -> tuple[Material, bool]:
    """The file, or the files of the folder: whole, or in ranges of `sizes` where these are given or the files are large.

    And whether that is all that lies there. Raises `CommandError` where nothing is there to be read.
    """
    if not Path(path).is_dir():
        return Ranges([path], sizes or RecordSizes.fixed(USUAL_RECORD_BYTES), random, readahead), True
    found, is_all = regular_files(path, random)
    if not found:
        raise CommandError(f"{path}: holds no file to read; have some written, and removed again, with --scratch 1G")
    known = {} if sizes else _lengths(found, -(-len(found) // 4), random)
    if not known or np.median(list(known.values())) > LARGE_BYTES:
        sizes = sizes or RecordSizes.fixed(USUAL_RECORD_BYTES)
        lengths = _lengths(found, len(found), random)
        large = [name for name, length in lengths.items() if length >= sizes.values[-1]]
        return Ranges(large or list(lengths), sizes, random, readahead), is_all
    return WholeFiles(found, random, known.keys()), is_all


def _lengths(paths: list[str], most: int, random: np.random.Generator) -> dict[str, int]:
    """Of some, drawn by chance."""
    chosen = random.choice(len(paths), min(most, _SAMPLE), replace=False)
    return {paths[place]: regular_size(paths[place]) for place in chosen}


def _walk(folder: str, random: np.random.Generator) -> Iterator[list[str]]:
    """Some files at a time of one folder after the other, each drawn from those that are known by then."""
    folders = [folder]
    while folders:
        place = int(random.integers(len(folders)))
        folders[place], folders[-1] = folders[-1], folders[place]
        with suppress(OSError), os.scandir(folders.pop()) as entries:  # somebody else's, or removed meanwhile
            while some := list(islice(entries, _AT_A_TIME)):
                folders += [entry.path for entry in some if entry.is_dir(follow_symlinks=False)]
                yield [entry.path for entry in some if entry.is_file(follow_symlinks=False)]
