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
    """Time in these reads and faults, mean over the ranks that made them; the rest of the phase is
    decoding and copying."""
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
    folder: str | None = None
    """In which most files were opened meanwhile. Null: not known."""

    @property
    def cost_s(self) -> float:
        """What one costs the training."""
        return self.seconds + self.slowed_s


class ExtrapolatedPart(Record, frozen=True):
    """A part of the time of a whole training."""

    name: str
    """`start and end`, `first epoch`, `later epochs`, `epoch starts`, `validations` or
    `checkpoints`."""
    seconds: float
    low_s: float
    high_s: float | None = None
    """Null: it has no bound that is known."""


class NextRecording(Record, frozen=True):
    """What to record so that a prediction becomes surer."""

    what: str
    """`cold`, `two epochs`, `epochs`, `steps`, `validations` or `checkpoints`."""
    steps: int | None = None
    """About how many."""


class EpochPrediction(Record, frozen=True):
    """How long a whole training would take, of more epochs or more data than were recorded."""

    epochs: int
    made: int
    """Complete epochs that were recorded, on which the prediction rests."""
    seconds: float
    """From the start of the job's command to its end."""
    error_s: float
    """The larger distance of `seconds` to `low_s` and `high_s`; 0 where there is no upper bound."""
    fixed_s: float
    """Before the first step and after the last."""
    first_epoch_s: float
    later_epoch_s: float
    """With its start, and without validations and checkpoints, as the first."""
    evaluations: int
    checkpoints: int
    between_s: float
    """Of all validations and checkpoints."""
    storage_bytes: tuple[int, ...] = ()
    """Read from storage for the batches of each complete epoch that was made."""
    dataset_bytes: int | None = None
    """Of all records of the whole training's dataset."""
    records: int | None = None
    steps_per_epoch: int | None = None
    recorded_steps: int | None = None
    low_s: float | None = None
    """95 % bounds of what was recorded, and of what is not known. They know nothing of what was not
    there: other users, a warmer machine."""
    high_s: float | None = None
    """Null: there is none; what later epochs read from storage was never read in the recording."""
    later_basis: str | None = None
    """Of a later epoch's steps: `measured`, or `predicted` where only the first epoch, which reads
    more from storage, was recorded."""
    memory_ratio: float | None = None
    """Share of a later epoch's bytes that memory has, predicted from its size."""
    is_cold: bool | None = None
    """Whether the first epoch read from storage. Null: the sources of its bytes are not known."""
    parts: tuple[ExtrapolatedPart, ...] = ()
    """Whose seconds sum to `seconds`."""
    not_seen: tuple[str, ...] = ()
    """`validation`, `checkpoint`: none was recorded. Their time, if a whole training has them, is
    not in the prediction."""
    record_next: tuple[NextRecording, ...] = ()
    """Empty: neither side of the range is wider than `model.extrapolation.whole.WANTED_ERROR`."""
