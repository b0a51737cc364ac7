"""Models divided among ranks: as stages of a pipeline, or with the parameters in parts (FSDP)."""

from typing import Final

from faults.case import Case

_PROGRAM: Final = "train_in_parts.py"
_TWO: Final = ("{python}", "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")

CASES = (
    Case(
        name="a first stage that computes ten times as much",
        program=_PROGRAM,
        arguments=("slow-stage", "{fast}", 30),
        launcher=_TWO,
        bound_by="straggler",
        says=("rank 0",),
        advises="that of rank 0 computed",
        names=("bubble, rank 0: compute",),
        num_cores=2,
    ),
    Case(
        name="a first stage that waits for images that one worker decodes",
        program=_PROGRAM,
        arguments=("stage-data", "{fast}", 25),
        launcher=_TWO,
        bound_by="decode",
        advises="Decode less",
        names=("bubble, rank 0: decode",),
        num_cores=2,
    ),
    Case(
        name="equal stages with as many microbatches as stages",
        program=_PROGRAM,
        arguments=("stage-alone", "{fast}", 30),
        launcher=_TWO,
        bound_by="straggler",
        says=("bubbles of the pipeline",),
        advises="Use more microbatches",
        names=(
            (
                "Use more microbatches (n_microbatches=): with 2 and 2 stages of the same time"
                " bubbles take 33.3%"
            ),
        ),
        num_cores=2,
    ),
    Case(
        name="stages divided by hand that send each other whole batches",
        program=_PROGRAM,
        arguments=("by-hand", "{fast}", 60),
        launcher=_TWO,
        bound_by="straggler",
        says=("waiting for messages of ranks that were computing",),
        advises="Let the ranks compute at the same time",
        names=("about as long",),
        num_cores=2,
    ),
    Case(
        name="sharded parameters, and a rank that waits for images that one worker decodes",
        program=_PROGRAM,
        arguments=("sharded-data", "{fast}", 25),
        launcher=_TWO,
        bound_by="decode",
        says=("rank 1, which the others waited for",),
        advises="Decode less",
        names=("rank 1: decode",),
        num_cores=2,
    ),
    Case(
        name="sharded parameters of 32 MB and little to compute",
        program=_PROGRAM,
        arguments=("sharded-exchange", "{fast}", 20),
        launcher=_TWO,
        bound_by="exchange",
        advises="less often",
        num_cores=2,
    ),
)
