"""Files that are read whole, each opened for it: a dataset of single images."""

import os
from collections.abc import Collection, Iterable
from dataclasses import replace
from itertools import islice
from typing import Final

import numpy as np

from ioprof.clock import monotonic_ns
from ioprof.storage.probe.material import Circle, Cold, Limits, page_ends, regular_size, together
from ioprof.storage.probe.outcomes import Kind, Numbers, Pieces, places_of
from ioprof.storage.residency import Residency, evict

_MOST_OPENS: Final = 20_000
_LEAST_OPENS: Final = 4
_OPENS_SHARE: Final = 3
"""One in so many files is kept for the test of opening, which nothing may have opened before."""
_CHUNK_FILES: Final = 256


class WholeFiles:
    """Files in an order of chance, none read again before all were."""

    def __init__(self, paths: list[str], random: np.random.Generator, known: Collection[str] = ()) -> None:
        """`known`: those whose status somebody has just asked for; they come last."""
        self.paths, self._random = paths, random
        order = random.permutation(len(paths))
        self._order = order[np.argsort([paths[place] in known for place in order], kind="stable")] if known else order
        self._fresh, self._circle = len(paths) - len(known), Circle(len(paths))

    def prepare(self) -> None:
        """As Material: nothing, for none of the files may be opened yet."""

    def random(self, direct: bool, limits: Limits) -> Cold:
        """As Material."""
        numbers = (int(self._order[self._circle.next(1)[0]]) for _ in self.paths)
        return self._cold(numbers, direct, limits)

    def sequential(self, direct: bool, clients: int, limits: Limits) -> Cold:
        """As Material: files one after the other as they are listed; the parts begin at equal distances."""
        each, first = len(self.paths) // clients, int(self._random.integers(len(self.paths)))
        # By turns, so that each client has as many where the limits do not allow for all.
        turns = ((first + client * each + step) % len(self.paths) for step in range(each) for client in range(clients))
        cold = self._cold(turns, direct, limits)
        whole = len(cold.pieces.places) // clients * clients
        places = cold.pieces.places[:whole].reshape(-1, clients).T.ravel()
        return replace(cold, pieces=replace(cold.pieces, places=places, in_order=True))

    def opens(self, shares: int) -> Cold | None:
        """As Material."""
        number = min(self._fresh // _OPENS_SHARE // shares, _MOST_OPENS)
        if number < _LEAST_OPENS:
            return None
        targets = tuple(os.fsencode(self.paths[place]) for place in self._order[self._circle.next(number)])
        return Cold(Pieces(Kind.OPENS, targets, places_of(np.arange(number), 0, 0)), None)

    def close(self) -> None:
        """As Material."""

    def _cold(self, numbers: Iterable[int], direct: bool, limits: Limits) -> Cold:
        targets: list[bytes] = []
        lengths: list[int] = []
        stayed: list[Residency] = []
        waiting, left, cut_by = iter(numbers), limits.bytes, None
        while cut_by is None and (chunk := [self.paths[number] for number in islice(waiting, _CHUNK_FILES)]):
            sizes = _lengths(chunk, direct)
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
        return Cold(Pieces(Kind.FILES, tuple(targets), places, direct=direct), together(stayed), cut_by)


def _lengths(paths: list[str], direct: bool) -> Numbers:
    sizes = np.array([regular_size(path) for path in paths], np.int64)
    return page_ends(sizes) if direct else sizes
