"""Why a run cannot be replayed."""

from enum import Enum

from ioprof.errors import RunError


class Refusal(Enum):
    """A reason, and its text; `{}` is what was found."""

    NO_TIMES = "nothing but the steps themselves was recorded of its ranks"
    FEW_STEPS = "it made only {} steps, and a replay needs 4 or more; record a longer run"
    NO_STEP = "it has no training steps; record a job that trains, or mark its steps"
    FEW_BATCHES = "it took only {} batches, and a replay needs 4 or more; record a longer run"
    ONE_RANK_LOADS = "one rank loads the batches of all ranks, which is not modelled"
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
