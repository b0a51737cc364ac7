"""How much longer a training loop computes on the CPU after a wait than without one.

While a thread waits, its core sleeps, and others use its caches: what it computes then may take a
quarter to twice as long, on virtual machines more than elsewhere (`benchmarks/after_waits.py`). So
a loop that no longer waits may gain more than its waits.
"""

from typing import Final

import numpy as np

from ioprof.model.pipeline import OWN, Op, Pipeline, Rank, Seconds

_COMPUTED: Final = [OWN.index("compute"), OWN.index("host")]
_WAIT_S: Final = 1e-3
"""From which on the thread has left its core."""
_FEWEST: Final = 20
"""Steps of either kind from which on they are compared."""
_ASSUMED: Final = 0.75
"""Time of a step without a wait over that of one after a wait, where they cannot be compared; less
is not believed."""


def unbroken_ratio(recorded: Pipeline) -> float:
    """The time that the loop would compute if it never waited for a batch, over that which it did,
    from `_ASSUMED` to 1: each step after a wait would take as long as those without one.
    """
    if recorded.on_device:
        return 1.0
    waited_s, computed_s = np.concatenate([_steps(rank) for rank in recorded.ranks], axis=1)
    has_waited = waited_s > _WAIT_S
    after, without = computed_s[has_waited], computed_s[~has_waited]
    ratio = _ASSUMED
    if min(len(without), len(after)) >= _FEWEST:
        ratio = float(np.median(without) / max(np.median(after), 1e-9))
    share = after.sum() / max(computed_s.sum(), 1e-9)
    return 1 - float(share) * (1 - float(np.clip(ratio, _ASSUMED, 1.0)))


def _steps(rank: Rank) -> Seconds:
    """Shape (2, steps): for how long the loop waited for each batch of workers, and then
    computed.
    """
    has_workers = [rank.iterations[number].workers > 0 for number in rank.program.iterations]
    takes = np.array([op is Op.TAKE for op in rank.program.ops]) & has_workers
    waited_s = (rank.taken_ns - rank.begun_ns)[takes] / 1e9
    return np.stack([waited_s, rank.program.after_s[takes][:, _COMPUTED].sum(1)])
