"""Finds files to read in a folder that is not a dataset."""

import os
from collections.abc import Iterator
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np

from ioprof.clock import monotonic_ns
from ioprof.errors import CommandError
from ioprof.storage.probe.ranges import Ranges
from ioprof.storage.probe.sizes import RecordSizes
from ioprof.storage.probe.targets import ReadTargets, regular_size
from ioprof.storage.probe.whole_files import WholeFiles

USUAL_RECORD_BYTES: Final = 112 << 10
"""The default record size: about the mean image of ImageNet, which has 114,667 bytes."""
LARGE_BYTES: Final = 4 << 20
"""Files with a larger median size are read in ranges, as containers of records."""
LISTING_S: Final = 5.0
"""After this time no further folder is listed, once there are files: a thousand class folders over
a network take longer."""
_MAX_FILES: Final = 50_000
_SAMPLE: Final = 64
_LISTING_CHUNK: Final = 1_000


class FileList(NamedTuple):
    """Files in and below a folder."""

    paths: list[str]
    is_all: bool
    """Whether these are all files; otherwise those of randomly chosen folders."""


def regular_files(
    folder: str, random: np.random.Generator, most: int = _MAX_FILES, seconds: float = LISTING_S
) -> FileList:
    """Up to `most` files in and below the folder, without links. Does not stat them, which would
    cache their metadata.
    """
    paths: list[str] = []
    end_ns = monotonic_ns() + round(seconds * 1e9)
    for files in _walk(folder, random):
        paths += files
        if len(paths) > most:
            return FileList(paths[:most], is_all=False)
        if paths and monotonic_ns() >= end_ns:
            return FileList(paths, is_all=False)
    return FileList(paths, is_all=True)


def find_read_targets(
    path: str, sizes: RecordSizes | None, random: np.random.Generator, readahead: bool = False
) -> tuple[ReadTargets, bool]:
    """The file, or the files of the folder: whole, or in ranges of `sizes` where these are given or
    the files are large.

    Also returns whether these are all files. Raises `CommandError` where there is no file to read.
    """
    if not Path(path).is_dir():
        return Ranges(
            [path], sizes or RecordSizes.fixed(USUAL_RECORD_BYTES), random, readahead
        ), True
    found, is_all = regular_files(path, random)
    if not found:
        raise CommandError(
            f"{path}: holds no file to read; let ioprof write temporary files with --scratch 1G"
        )
    known = {} if sizes else _sample_lengths(found, -(-len(found) // 4), random)
    if not known or np.median(list(known.values())) > LARGE_BYTES:
        sizes = sizes or RecordSizes.fixed(USUAL_RECORD_BYTES)
        lengths = _sample_lengths(found, len(found), random)
        large = [name for name, length in lengths.items() if length >= sizes.values[-1]]
        return Ranges(large or list(lengths), sizes, random, readahead), is_all
    return WholeFiles(found, random, known.keys()), is_all


def _sample_lengths(paths: list[str], most: int, random: np.random.Generator) -> dict[str, int]:
    """Lengths of a random sample of the files."""
    chosen = random.choice(len(paths), min(most, _SAMPLE), replace=False)
    return {paths[place]: regular_size(paths[place]) for place in chosen}


def _walk(folder: str, random: np.random.Generator) -> Iterator[list[str]]:
    """The files in chunks, folder by folder; the next folder is chosen randomly among those found
    so far.
    """
    folders = [folder]
    while folders:
        place = int(random.integers(len(folders)))
        folders[place], folders[-1] = folders[-1], folders[place]
        # not readable, or removed meanwhile
        with (
            suppress(OSError),
            os.scandir(folders.pop()) as entries,
        ):
            while some := list(islice(entries, _LISTING_CHUNK)):
                folders += [entry.path for entry in some if entry.is_dir(follow_symlinks=False)]
                yield [entry.path for entry in some if entry.is_file(follow_symlinks=False)]
