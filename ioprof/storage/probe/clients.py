"""Clients that read in a closed loop: each the next place as soon as it has the last one.

In C (native/probe.c), or by Python's threads where that is not built. Those share one interpreter: sixteen of them read 4 KiB by
O_DIRECT 36,600 times a second with a p99 of 2.4 ms, where fio's read it 55,300 times (2 cores), and the time of one that waits for
the interpreter cannot be told from that of the storage. So `ENGINE` is part of every result.
"""

from collections.abc import Callable
from contextlib import suppress
from typing import Final

import numpy as np

from ioprof.storage.probe import threads
from ioprof.storage.probe.outcomes import OUTCOME, Ending, Pieces, Visit

_visit: Callable[..., tuple[int, int, int]] = threads.visit
with suppress(ImportError):
    from ioprof import _probe

    _visit = _probe.visit

ENGINE: Final = "Python threads" if _visit is threads.visit else "C threads"
"""What reads. Python threads are slower than fast storage."""
MAX_CLIENTS: Final = 256
"""Of native/probe.c: more threads of one process only wait for each other."""
_LONGEST_NS: Final = 10**18


def visit(pieces: Pieces, clients: int, limit_ns: int = _LONGEST_NS, limit_bytes: int = 1 << 62) -> Visit:
    """Let `clients` read until the time is over, the bytes are used up, or every place was read once.

    More than `limit_bytes` are never read. What the kernel reads beyond them (readahead) ends the level as well once it
    exceeds `limit_bytes`, but only then. A read that has begun is waited for.
    """
    outcomes = np.zeros(len(pieces.places), OUTCOME)
    start_ns, idle_ns, ending = _visit(
        int(pieces.kind),
        pieces.targets,
        pieces.places,
        outcomes,
        clients,
        pieces.direct,
        not pieces.direct,
        pieces.in_order,
        min(limit_ns, _LONGEST_NS),
        limit_bytes,
    )
    return Visit(outcomes[outcomes["start_ns"] > 0], start_ns, idle_ns, Ending(ending), clients)
