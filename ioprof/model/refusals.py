"""Why a run cannot be replayed."""

from enum import Enum

from ioprof.errors import RunError


class Refusal(Enum):
    """A reason, and its text; `{}` is what was found."""

    NO_TIMES = "nothing but the steps themselves was recorded of its ranks"
    FEW_STEPS = "it made only {} steps, and a replay needs 4 or more; record a longer run"
    BESIDE_LOOP = (
        "threads of its ranks read or decode beside the loop, and no record says when the loop"
        " waits for them; pass what gives it batches through ioprof.batches(...)"
    )
    NO_STEP = "it has no training steps; record a job that trains, or mark its steps"
    NOT_COMPLETE = (
        "its status is {}: a job that did not end by itself has no end to compare with; record it"
        " again"
    )
    FEW_BATCHES = "it took only {} batches, and a replay needs 4 or more; record a longer run"
    UNKNOWN_BATCHES = (
        "of {} batches it is not recorded who made them, so what the workers did cannot be replayed"
    )
    ONE_RANK_LOADS = "one rank loads the batches of all ranks, which is not modelled"
    THREADS = (
        "{} of its batches were made by threads of the rank, which share its interpreter lock, and"
        " the replay of thread workers is not modelled; record it with worker processes"
    )
    STAGES = (
        "its ranks send messages to one another, as the stages of a pipeline do, which is not"
        " modelled"
    )
    STUCK = (
        "in the replay each process waits for another one, so the recorded order of batches is not"
        " one that the model knows"
    )
    FAILED = "the replay failed ({})"

    def text(self, found: str = "") -> str:
        """The reason as the end of a sentence."""
        return self.value.format(found)


class ReplayError(RunError):
    """A run that cannot be replayed; `refusal` says why, and `found` is what was found."""

    def __init__(self, refusal: Refusal, found: str = "") -> None:
        super().__init__(f"this run cannot be replayed: {refusal.text(found)}")
        self.refusal = refusal
        self.found = found
