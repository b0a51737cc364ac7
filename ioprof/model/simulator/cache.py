"""What of an epoch comes from the memory of the nodes.

The page cache of a node keeps the records that were used last. An epoch reads every record once, in
a new order; each node reads its share of them.
"""

from dataclasses import dataclass
from typing import Final

import numpy as np

CACHE_RATIO: Final = (0.6, 0.8, 0.95)
"""Of a node's memory, that the page cache may hold beside the job: worst, usual, best. Assumed:
what the processes of the job take is not known."""

_PLACES: Final = 256
"""Of an epoch, over which the probability is summed."""
_MOST_EPOCHS: Final = 200
"""Of a job, over which hits are averaged; after that they hardly grow."""


@dataclass(frozen=True)
class Hits:
    """Share of the reads of a later epoch that the page cache answers."""

    worse: float
    value: float
    better: float


def hit_ratio(ratio: float, nodes: int = 1, before: int | None = None) -> float:
    """Share of the reads of a node that its cache answers, of all data in each epoch or, with
    several nodes, of a part that is drawn anew in each; `ratio` is the room of one node over all
    data, `before` the number of earlier epochs (None: many).

    A node reads a record again after j epochs with probability (1/n)(1 - 1/n)^(j-1), first at
    place u of an epoch and then at place v of another. The record is still there if the others that
    it has read between fit: none of them, with probability
    (1 - (1-u)/n)(1 - 1/n)^(j-1)(1 - v/n), which must be at least 1 - ratio.
    """
    if ratio <= 0 or before == 0:
        return 0.0
    left, stays = max(0.0, 1.0 - ratio), 1.0 - 1.0 / nodes
    most = 1 if nodes == 1 else before if not left else 1 + int(np.log(left) / np.log(stays))
    if most is None:
        return 1.0
    unread = np.power(stays, np.arange(most if before is None else min(most, before)))
    rest = 1.0 - (np.arange(_PLACES) + 0.5) / _PLACES / nodes
    fits = np.clip(nodes * (1.0 - left / (unread[:, None] * rest[None, :])), 0.0, 1.0).mean(1)
    return float((unread / nodes * fits).sum())


def hits(dataset_bytes: float, memory_bytes: float, nodes: int, shuffles: str, epochs: int) -> Hits:
    """Share of hits in the later ones of so many epochs, or in the second one. `shuffles` is
    `global` if a record may be read by another node in each epoch, so that the nodes' caches fill
    only after many of them, and `node` if each node has its own records.
    """
    found = []
    for part in CACHE_RATIO:
        room = part * memory_bytes / dataset_bytes
        if shuffles == "node":
            found.append(hit_ratio(room * nodes))
        else:
            later = range(1, max(2, min(epochs, _MOST_EPOCHS)))
            found.append(float(np.mean([hit_ratio(room, nodes, each) for each in later])))
    return Hits(*found)
