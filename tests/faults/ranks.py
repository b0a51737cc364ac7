"""Ranks: jobs in which one process loads for all of them, or whose ranks wait for each other in
turn."""

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
    Case(
        name=(
            "garbage collected by two ranks at different steps, with gradients of four batches per"
            " exchange"
        ),
        program="accumulate_on_ranks.py",
        arguments=(150, "staggered"),
        launcher=_TWO,
        num_cores=2,
        bound_by="gc",
        says=("garbage", "a slower rank that the others waited for", "accumulate_on_ranks.py"),
        advises="gc.collect()",
    ),
)
