"""Files that are opened and read whole, like a dataset of single images."""

import os
from collections.abc import Collection, Iterable
from dataclasses import replace
from itertools import islice
from typing import Final

import numpy as np

from ioprof.clock import monotonic_ns
from ioprof.storage.probe.outcomes import Kind, Numbers, Pieces, places_of
from ioprof.storage.probe.targets import (
    ColdPieces,
    Cycle,
    Limits,
    merge_residency,
    regular_size,
    round_up_to_pages,
)
from ioprof.storage.residency import Residency, evict

_MAX_OPENS: Final = 20_000
_MIN_OPENS: Final = 4
_OPENS_SHARE: Final = 3
"""One file in three is reserved for the open test, and not opened before."""
_CHUNK_FILES: Final = 256


class WholeFiles:
    """Files in random order; no file is read again before all have been read."""

    def __init__(
        self, paths: list[str], random: np.random.Generator, known: Collection[str] = ()
    ) -> None:
        """`known`: files whose status has just been read; they come last."""
        self.paths, self._random = paths, random
        order = random.permutation(len(paths))
        self._order = (
            order[np.argsort([paths[place] in known for place in order], kind="stable")]
            if known
            else order
        )
        self._fresh, self._circle = len(paths) - len(known), Cycle(len(paths))

    def prepare(self) -> None:
        """See `ReadTargets`: does nothing, since no file may be opened yet."""

    def random(self, direct: bool, limits: Limits) -> ColdPieces:
        """See `ReadTargets`."""
        numbers = (int(self._order[self._circle.next(1)[0]]) for _ in self.paths)
        return self._cold(numbers, direct, limits)

    def sequential(self, direct: bool, clients: int, limits: Limits) -> ColdPieces:
        """See `ReadTargets`: files in the order of the listing; the clients' parts start at equal
        distances.
        """
        each, first = len(self.paths) // clients, int(self._random.integers(len(self.paths)))
        # Round-robin, so that the clients get equal numbers of files where the limits do not allow
        # for all.
        turns = (
            (first + client * each + step) % len(self.paths)
            for step in range(each)
            for client in range(clients)
        )
        cold = self._cold(turns, direct, limits)
        whole = len(cold.pieces.places) // clients * clients
        places = cold.pieces.places[:whole].reshape(-1, clients).T.ravel()
        return replace(cold, pieces=replace(cold.pieces, places=places, in_order=True))

    def opens(self, shares: int) -> ColdPieces | None:
        """See `ReadTargets`."""
        number = min(self._fresh // _OPENS_SHARE // shares, _MAX_OPENS)
        if number < _MIN_OPENS:
            return None
        targets = tuple(
            os.fsencode(self.paths[place]) for place in self._order[self._circle.next(number)]
        )
        return ColdPieces(Pieces(Kind.OPENS, targets, places_of(np.arange(number), 0, 0)), None)

    def close(self) -> None:
        """See `ReadTargets`."""

    def _cold(self, numbers: Iterable[int], direct: bool, limits: Limits) -> ColdPieces:
        targets: list[bytes] = []
        lengths: list[int] = []
        stayed: list[Residency] = []
        waiting, left, cut_by = iter(numbers), limits.bytes, None
        while cut_by is None and (
            chunk := [self.paths[number] for number in islice(waiting, _CHUNK_FILES)]
        ):
            sizes: Numbers = np.array([regular_size(path) for path in chunk], np.int64)
            sizes = round_up_to_pages(sizes) if direct else sizes
            fits = int(np.searchsorted(np.cumsum(sizes), left, "right"))
            if fits:
                stayed.append(evict(chunk[:fits]))
            targets += map(os.fsencode, chunk[:fits])
            lengths += sizes[:fits].tolist()
            left -= int(sizes[:fits].sum())
            if fits < len(chunk):
                cut_by = "bytes"
            elif monotonic_ns() >= limits.deadline_ns:
                cut_by = "time"
        places = places_of(np.arange(len(targets)), 0, np.array(lengths, np.int64))
        return ColdPieces(
            Pieces(Kind.FILES, tuple(targets), places, direct=direct),
            merge_residency(stayed),
            cut_by,
        )
