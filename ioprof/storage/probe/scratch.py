"""Temporary files for probing a place that holds no data yet."""

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import numpy as np

from ioprof.errors import CommandError
from ioprof.files import remove_own
from ioprof.reporter import Advance, ignore_progress
from ioprof.storage.probe.sizes import RecordSizes

PREFIX: Final = ".ioprof-probe-"
LEAST_BYTES: Final = 1 << 20
_SPARE_RATIO: Final = 0.05
"""Part of the free space, and of the files' size, that must stay free."""
_PIECE_BYTES: Final = 8 << 20
_LARGE_FILE_BYTES: Final = 1 << 30
_MOST_FILES: Final = 200_000


@contextmanager
def scratch_files(
    folder: str,
    num_bytes: int,
    sizes: RecordSizes | None,
    random: np.random.Generator,
    advance: Advance = ignore_progress,
) -> Iterator[list[str]]:
    """Files of `num_bytes` in total below `folder`, synced to the storage, and removed at the end
    of the block.

    One file per record where `sizes` are given, otherwise files of 1 GiB. Their content is random,
    so that no storage can compress or deduplicate it. Raises `CommandError` where they cannot be
    written, or where there is too little space.
    """
    _check_space(folder, num_bytes)
    try:
        own = tempfile.mkdtemp(prefix=PREFIX, dir=folder)
    except OSError as error:
        raise CommandError(
            f"{folder}: --scratch cannot write there ({error.strerror}); name a folder of your own"
        ) from None
    try:
        yield _write_files(own, _lengths(num_bytes, sizes, random), random, advance)
    finally:
        remove_own(Path(own), lambda path: path.isdigit())


def _check_space(folder: str, num_bytes: int) -> None:
    try:
        found = os.statvfs(folder)
    except OSError as error:
        raise CommandError(
            f"{folder}: {error.strerror}; --scratch needs an existing folder"
        ) from None
    free = found.f_bavail * found.f_frsize
    if free * (1 - _SPARE_RATIO) < num_bytes * (1 + _SPARE_RATIO):
        raise CommandError(
            f"{folder}: {free} bytes are free, too few for --scratch {num_bytes}; give less, or"
            " free some space"
        )


def _lengths(num_bytes: int, sizes: RecordSizes | None, random: np.random.Generator) -> list[int]:
    if sizes is None:
        whole, rest = divmod(num_bytes, _LARGE_FILE_BYTES)
        return [*[_LARGE_FILE_BYTES] * whole, *([rest] if rest else [])]
    drawn = sizes.draw(min(int(num_bytes / sizes.mean) + 1, _MOST_FILES), random)
    lengths: list[int] = drawn[np.cumsum(drawn) <= num_bytes].tolist()
    if not lengths:
        raise CommandError(
            f"--scratch {num_bytes}: too small for one record of {drawn[0]} bytes; give more"
        )
    return lengths


def _write_files(
    own: str, lengths: list[int], random: np.random.Generator, advance: Advance
) -> list[str]:
    paths = []
    for number, length in enumerate(lengths):
        paths.append(f"{own}/{number:06d}")
        try:
            _write(paths[-1], length, random, advance)
        except OSError as error:
            raise CommandError(
                f"{paths[-1]}: cannot be written ({error.strerror}); give less --scratch",
                exit_code=1,
            ) from None
    return paths


def _write(path: str, length: int, random: np.random.Generator, advance: Advance) -> None:
    with open(path, "xb", buffering=0) as stream:
        left = length
        while left:
            piece = memoryview(random.bytes(min(left, _PIECE_BYTES)))
            while piece:
                piece = piece[stream.write(piece) :]
            advance(min(left, _PIECE_BYTES))
            left -= min(left, _PIECE_BYTES)
        os.fsync(stream.fileno())
