"""The part of summary.json about the job as a whole: what its time went to, and how long one of
more epochs would take.
"""

from ioprof.format.run_record.record import Record


class Phase(Record, frozen=True):
    """A part of the whole job, mean over its ranks."""

    name: str
    """One of `ioprof.analysis.ledger.PHASES`, or the name of a module that was imported."""
    seconds: float
    share: float | None
    """Of the whole job, 0 to 1. Null: a part of another part."""


class LoadedWeights(Record, frozen=True):
    """What the threads of the steps read of files of weights before the first wait or step."""

    file: str
    """Of which most was read."""
    files: int
    bytes: int
    """By all ranks together. Several times the size of the files: each rank reads all."""
    mapped_bytes: int
    """Of these, by page faults of mapped files."""
    reading_s: float
    """Time in these reads and faults, mean over ranks; the rest of the phase is decoding and
    copying."""
    ranks: int
    """That read them."""


class Ledger(Record, frozen=True):
    """What the time of the whole job went to, from the start of the command to its end."""

    wall_s: float | None = None
    """Null: no rank was recorded."""
    is_whole: bool = False
    """Whether start and end of the command are known; else the job is what its ranks recorded."""
    phases: tuple[Phase, ...] = ()
    """In about the order of time; the seconds sum to `wall_s`."""
    imports: tuple[Phase, ...] = ()
    """The longest imports of the phase `imports`."""
    weights: LoadedWeights | None = None
    """Null: no read of a file of weights was recorded."""


class Saves(Record, frozen=True):
    """The checkpoints that a job wrote: the mean of one, over all of them and all ranks."""

    number: int
    """Of each rank."""
    ranks: int
    """That wrote them."""
    bytes: int | None
    """Of one, by one rank. Null: not known."""
    seconds: float
    """For which one stopped the training."""
    parts: tuple[Phase, ...] = ()
    """Of that, by `ioprof.analysis.charge.saves.PARTS`; they sum to it."""
    background_s: float = 0.0
    """For which it went on beside the training."""
    slowed_s: float = 0.0
    """By which steps took longer meanwhile than the median of the others, derived."""
    every_s: float | None = None
    """From one to the next, median. Null: there is one."""
    every_steps: float | None = None

    @property
    def cost_s(self) -> float:
        """What one costs the training."""
        return self.seconds + self.slowed_s


class EpochPrediction(Record, frozen=True):
    """How long the job would take with more epochs than it made."""

    epochs: int
    made: int
    """Epochs on which the prediction rests; the first is cold."""
    seconds: float
    """From the start of the job's command to its end."""
    error_s: float
    """95 % bound of the error that the spread of the later epochs' steps leaves. It knows nothing
    of what was not there in those: other users, a warmer machine."""
    fixed_s: float
    """Before the first step and after the last."""
    first_epoch_s: float
    later_epoch_s: float
    """Without evaluations and checkpoints, as the first."""
    evaluations: int
    checkpoints: int
    between_s: float
    """Of all evaluations and checkpoints."""
    storage_bytes: tuple[int, ...] = ()
    """Read from storage in each epoch that was made."""
    dataset_bytes: int | None = None
