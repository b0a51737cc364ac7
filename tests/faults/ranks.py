"""Ranks: jobs in which one process loads for all of them."""

from typing import Final

from faults.case import Case

_TWO: Final = ("{python}", "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")

CASES = (
    Case(
        name="rank 0 loads for both (accelerate)",
        program="train_from_rank_0.py",
        arguments=("accelerate", "{data}", 8),
        launcher=_TWO,
        says=("Rank 0 loads",),
        advises="rank load its own batches",
        needs=("accelerate",),
    ),
    Case(
        name="rank 0 loads for both (broadcast)",
        program="train_from_rank_0.py",
        arguments=("broadcast", "{data}", 12),
        launcher=_TWO,
        says=("rank 0",),
    ),
)
