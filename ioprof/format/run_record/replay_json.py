"""What summary.json says of the replay of a run."""

from ioprof.format.run_record.reasons import NoGain
from ioprof.format.run_record.record import Record


class CauseGain(Record, frozen=True):
    """What the job would gain if a cause cost nothing, by a replay of its recorded pipeline."""

    seconds: float
    """Of the time from the first wait for a batch to the end of the last step. Low where
    `CauseShare.seconds` is high: something else would be waited for instead."""
    share: float
    """Of a steady step's time, 0 to 1."""
    low: float
    """`share` at least, with 95 % probability, as far as the variation of the steps, the replay's
    own error, and the errors of earlier predictions say, which were compared with runs."""
    high: float
    """`share` at most."""


class ReplayRecord(Record, frozen=True):
    """The replay on which the gains rest."""

    baseline_error: float | None = None
    """Of the replayed time of a steady step, without any change, against the measured one: 0.02 is
    2 % too long."""
    reason: str | None = None
    """Why there are no gains of causes."""
    reason_code: NoGain | None = None
    """`reason` as a code."""
