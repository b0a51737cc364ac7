"""What `ioprof compare --json` says of each run against the first."""

from ioprof.format.run_record.record import Record


class CauseDifference(Record, frozen=True):
    """The time of one cause in two runs, in seconds per step, or per sample."""

    cause: str
    """One of `ioprof.format.schema.CAUSES`, or `step` for all of them."""
    first_s: float
    other_s: float
    low_s: float
    """Of the interval of 95 % for `other_s` - `first_s`."""
    high_s: float
    differs: bool
    """0 is further from the difference than twice the half interval, and the difference is at least
    2 % of the first run's step."""


class RunDifference(Record, frozen=True):
    """A run against the first, over steady steps (after the warm-up).

    Intervals are those of means over blocks of steps that follow each other. They say how certain
    the means of these two runs are, and not how much a run would differ from another one with the
    same settings.
    """

    per: str
    """`step`, or `sample` where batches have different sizes."""
    step: CauseDifference | None
    """Null: see `reason`."""
    causes: tuple[CauseDifference, ...] = ()
    """Those that were measured in both, in the order of `ioprof.format.schema.CAUSES`; their
    differences sum to that of the step."""
    ratio: float | None = None
    """`step.other_s` over `step.first_s`: above 1 the run is slower than the first."""
    reason: str | None = None
    """Why the runs cannot be compared."""
