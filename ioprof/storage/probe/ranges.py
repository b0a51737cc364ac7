"""Ranges of large files: records of an LMDB environment or a tar, as far as the storage can tell."""

import os
from collections.abc import Sequence
from typing import Final

import numpy as np

from ioprof.errors import CommandError
from ioprof.storage.probe.material import Circle, Cold, Limits, page_ends, regular_size
from ioprof.storage.probe.outcomes import Kind, Numbers, Pieces, Places, places_of
from ioprof.storage.probe.sizes import RecordSizes
from ioprof.storage.residency import evict

BLOCK_BYTES: Final = 1 << 20
"""Of one read of the sequential test."""
MOST_FILES: Final = 64
"""Of so many files, drawn by chance, the ranges are read; each is open all the time."""
_MOST_RANGES: Final = 500_000


class Ranges:
    """Ranges with the lengths of records, laid end to end at page boundaries, with gaps where there is room for many more."""

    def __init__(self, paths: Sequence[str], sizes: RecordSizes, random: np.random.Generator, readahead: bool = False) -> None:
        """`readahead`: give the kernel no hint, as a loader does that gives none; else POSIX_FADV_RANDOM, as fio does."""
        chosen = np.sort(random.choice(len(paths), min(len(paths), MOST_FILES), replace=False))
        self.paths = [paths[place] for place in chosen]
        lengths = [regular_size(path) for path in self.paths]
        self.places = random.permutation(_laid_out(lengths, sizes, random))
        if not len(self.places):
            held = f"{len(lengths)} files of {sum(lengths)} bytes hold" if len(lengths) > 1 else f"its {lengths[0]} bytes hold"
            raise CommandError(f"{self.paths[0]}: {held} no record of {sizes.mean:.0f} bytes; give --record-bytes or --scratch")
        self._blocks = _blocks(lengths)
        self._random, self._hint = random, os.POSIX_FADV_NORMAL if readahead else os.POSIX_FADV_RANDOM
        self._circle = Circle(len(self.places))
        self._descriptors: dict[tuple[bool, int], tuple[int, ...]] = {}

    def prepare(self) -> None:
        """As Material: a large file that is in memory takes seconds to be dropped."""
        evict(self.paths)

    def random(self, direct: bool, limits: Limits) -> Cold:
        """As Material."""
        ahead = np.roll(page_ends(self.places["length"]), -self._circle.at % self._circle.size)
        fits = int(np.searchsorted(np.cumsum(ahead), limits.bytes, "right"))
        return self._cold(self.places[self._circle.next(fits)], direct, self._hint, cut=fits < len(ahead))

    def sequential(self, direct: bool, clients: int, limits: Limits) -> Cold:
        """As Material: blocks of 1 MiB; the parts begin at equal distances."""
        blocks = len(self._blocks)
        fits = limits.bytes // BLOCK_BYTES
        each = min(fits, blocks) // clients
        starts = self._random.integers(blocks) + np.arange(clients)[:, None] * blocks // clients
        chosen = self._blocks[((starts + np.arange(each)) % blocks).ravel()]
        return self._cold(chosen, direct, os.POSIX_FADV_NORMAL, in_order=True, cut=fits < blocks)

    def opens(self, shares: int) -> Cold | None:
        """As Material: there are too few, and they are open."""
        return None

    def close(self) -> None:
        """As Material."""
        while self._descriptors:
            _close(self._descriptors.popitem()[1])

    def _cold(self, places: Places, direct: bool, hint: int, in_order: bool = False, cut: bool = False) -> Cold:
        descriptors = self._opened(direct, hint)
        if direct:
            places = places_of(places["target"], places["offset"], page_ends(places["length"]))
        pieces = Pieces(Kind.RANGES, descriptors, places, in_order, direct)
        return Cold(pieces, evict(self.paths), "bytes" if cut else None)

    def _opened(self, direct: bool, hint: int) -> tuple[int, ...]:
        key = (direct, hint)
        if key not in self._descriptors:
            opened: list[int] = []
            try:
                for path in self.paths:
                    opened.append(_open(path, direct, hint))
            except OSError:
                _close(opened)
                raise
            self._descriptors[key] = tuple(opened)
        return self._descriptors[key]


def _open(path: str, direct: bool, hint: int) -> int:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | (os.O_DIRECT if direct else 0))
    os.posix_fadvise(descriptor, 0, 0, hint)
    if not direct:
        os.pread(descriptor, 1, 0)  # the first read of a file asks for its layout and its locks as well
    return descriptor


def _close(descriptors: Sequence[int]) -> None:
    for descriptor in descriptors:
        os.close(descriptor)


def _laid_out(lengths: Sequence[int], sizes: RecordSizes, random: np.random.Generator) -> Places:
    gap = max(0.0, sum(lengths) / _MOST_RANGES - sizes.mean)
    parts = []
    for target, length in enumerate(lengths):
        drawn = sizes.draw(int(length / (sizes.mean + gap) * 1.1) + 16, random)
        taken = page_ends(drawn) + page_ends(random.uniform(0, 2 * gap, len(drawn)).astype(np.int64))
        offsets = np.cumsum(taken) - taken
        fits = offsets + drawn <= length
        parts.append(places_of(np.full(int(fits.sum()), target), offsets[fits], drawn[fits]))
    return np.concatenate(parts)


def _blocks(lengths: Sequence[int]) -> Places:
    parts = []
    for target, length in enumerate(lengths):
        offsets: Numbers = np.arange(0, length, BLOCK_BYTES, dtype=np.int64)
        parts.append(places_of(target, offsets, np.minimum(BLOCK_BYTES, length - offsets)))
    return np.concatenate(parts)
