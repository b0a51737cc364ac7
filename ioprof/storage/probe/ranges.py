"""Ranges of large files: for the storage the same access pattern as records of an LMDB environment
or a tar.
"""

import os
from collections.abc import Sequence
from typing import Final

import numpy as np

from ioprof.errors import CommandError
from ioprof.storage.probe.outcomes import Kind, Numbers, Pieces, Places, places_of
from ioprof.storage.probe.sizes import RecordSizes
from ioprof.storage.probe.targets import ColdPieces, Cycle, Limits, regular_size, round_up_to_pages
from ioprof.storage.residency import evict

BLOCK_BYTES: Final = 1 << 20
"""Size of one read of the sequential test."""
MOST_FILES: Final = 64
"""Maximum number of files, chosen randomly, which stay open."""
_MAX_RANGES: Final = 500_000


class Ranges:
    """Ranges with the lengths of records, one after the other at page boundaries, with gaps in
    files larger than needed.
    """

    def __init__(
        self,
        paths: Sequence[str],
        sizes: RecordSizes,
        random: np.random.Generator,
        readahead: bool = False,
    ) -> None:
        """With `readahead` no hint is given to the kernel, as by most loaders; otherwise
        POSIX_FADV_RANDOM, as by fio.
        """
        chosen = np.sort(random.choice(len(paths), min(len(paths), MOST_FILES), replace=False))
        self.paths = [paths[place] for place in chosen]
        lengths = [regular_size(path) for path in self.paths]
        self.places = random.permutation(_lay_out(lengths, sizes, random))
        if not len(self.places):
            held = (
                f"{len(lengths)} files of {sum(lengths)} bytes hold"
                if len(lengths) > 1
                else f"its {lengths[0]} bytes hold"
            )
            raise CommandError(
                f"{self.paths[0]}: {held} no record of {sizes.mean:.0f} bytes; give --record-bytes"
                " or --scratch"
            )
        self._blocks = _blocks(lengths)
        self._random, self._hint = (
            random,
            os.POSIX_FADV_NORMAL if readahead else os.POSIX_FADV_RANDOM,
        )
        self._circle = Cycle(len(self.places))
        self._descriptors: dict[tuple[bool, int], tuple[int, ...]] = {}

    def prepare(self) -> None:
        """See `ReadTargets`: evicting a large cached file takes seconds."""
        evict(self.paths)

    def random(self, direct: bool, limits: Limits) -> ColdPieces:
        """See `ReadTargets`."""
        ahead = np.roll(
            round_up_to_pages(self.places["length"]), -self._circle.at % self._circle.size
        )
        fits = int(np.searchsorted(np.cumsum(ahead), limits.bytes, "right"))
        return self._cold(
            self.places[self._circle.next(fits)], direct, self._hint, cut=fits < len(ahead)
        )

    def sequential(self, direct: bool, clients: int, limits: Limits) -> ColdPieces:
        """See `ReadTargets`: blocks of 1 MiB; the clients' parts start at equal distances."""
        blocks = len(self._blocks)
        fits = limits.bytes // BLOCK_BYTES
        each = min(fits, blocks) // clients
        starts = self._random.integers(blocks) + np.arange(clients)[:, None] * blocks // clients
        chosen = self._blocks[((starts + np.arange(each)) % blocks).ravel()]
        return self._cold(chosen, direct, os.POSIX_FADV_NORMAL, in_order=True, cut=fits < blocks)

    def opens(self, shares: int) -> ColdPieces | None:
        """See `ReadTargets`: there are too few files, and they are already open."""
        return None

    def close(self) -> None:
        """See `ReadTargets`."""
        while self._descriptors:
            _close(self._descriptors.popitem()[1])

    def _cold(
        self, places: Places, direct: bool, hint: int, in_order: bool = False, cut: bool = False
    ) -> ColdPieces:
        descriptors = self._open_files(direct, hint)
        if direct:
            places = places_of(
                places["target"], places["offset"], round_up_to_pages(places["length"])
            )
        pieces = Pieces(Kind.RANGES, descriptors, places, in_order, direct)
        return ColdPieces(pieces, evict(self.paths), "bytes" if cut else None)

    def _open_files(self, direct: bool, hint: int) -> tuple[int, ...]:
        key = (direct, hint)
        if key not in self._descriptors:
            opened: list[int] = []
            try:
                for path in self.paths:
                    opened.append(
                        os.open(path, os.O_RDONLY | os.O_CLOEXEC | (os.O_DIRECT if direct else 0))
                    )
                    os.posix_fadvise(opened[-1], 0, 0, hint)
                    if not direct:
                        # the first read of a file also requests its layout and locks
                        os.pread(opened[-1], 1, 0)
            except OSError:
                _close(opened)
                raise
            self._descriptors[key] = tuple(opened)
        return self._descriptors[key]


def _close(descriptors: Sequence[int]) -> None:
    for descriptor in descriptors:
        os.close(descriptor)


def _lay_out(lengths: Sequence[int], sizes: RecordSizes, random: np.random.Generator) -> Places:
    gap = max(0.0, sum(lengths) / _MAX_RANGES - sizes.mean)
    parts = []
    for target, length in enumerate(lengths):
        drawn = sizes.draw(int(length / (sizes.mean + gap) * 1.1) + 16, random)
        taken = round_up_to_pages(drawn) + round_up_to_pages(
            random.uniform(0, 2 * gap, len(drawn)).astype(np.int64)
        )
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
