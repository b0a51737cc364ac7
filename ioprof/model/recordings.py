"""A prediction from several recordings of one job, which show how much the job itself differs from
run to run.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Protocol, TypeVar

from ioprof.errors import CommandError
from ioprof.format.run_record import RunRecord
from ioprof.format.trace import Trace
from ioprof.model.assumptions import Assumption
from ioprof.model.prediction import Prediction, Range, Recording


class Recorded(Protocol):
    """A run that was loaded."""

    @property
    def trace(self) -> Trace:
        """What was recorded."""


Run = TypeVar("Run", bound=Recorded)


def predicted(recordings: Sequence[Run], ask: Callable[[Run], Prediction]) -> Prediction:
    """See `of_recordings`; `ask` predicts from one recording. CommandError, before any is asked, if
    they are of different jobs.
    """
    runs = [each.trace.run for each in recordings]
    check_same_job(runs)
    return of_recordings([ask(each) for each in recordings], runs)


def check_same_job(runs: Sequence[RunRecord]) -> None:
    """CommandError for a run of another job than the first one, whose differences would be taken
    for noise.
    """
    for place, run in enumerate(runs, 1):
        for what, value in _facts(run).items():
            wanted = _facts(runs[0])[what]
            if value != wanted:
                raise CommandError(
                    f"run {place} is of another job than the first one: its {what} is {value}, not"
                    f" {wanted}; name recordings of one job, or compare two jobs with: ioprof"
                    " compare RUN RUN2"
                )


def _facts(run: RunRecord) -> dict[str, object]:
    """What recordings of one job have in common."""
    config, dataset = run.config, run.dataset
    return {
        "loader": config.loader,
        "dataset": dataset.to_dict() if dataset else None,
        "device": run.device_name,
        "number of ranks": config.ranks,
        "number of workers": config.workers,
        "batch size": config.batch_size,
    }


def of_recordings(found: Sequence[Prediction], runs: Sequence[RunRecord]) -> Prediction:
    """The prediction from the recording whose predicted step is the middle one; of an even number,
    the shorter of the two.

    Its range holds those of all recordings, widened by how much the steps of the recordings differ
    from their middle one, since a run with the change differs as much. One prediction is returned
    as it is. `runs` are what was recorded, see `check_same_job`.
    """
    if len(found) == 1:
        return found[0]
    middle = (len(found) - 1) // 2
    steps_s = sorted(each.measured.step_s for each in found)
    low, high = (
        min(each.speedup_range.low for each in found),
        max(each.speedup_range.high for each in found),
    )
    chosen = sorted(found, key=lambda each: each.predicted.step_s)[middle]
    return replace(
        chosen,
        speedup_range=Range(
            low * (steps_s[middle] / steps_s[-1]), high * (steps_s[middle] / steps_s[0])
        ),
        assumptions=(*chosen.assumptions, *_of_commands(runs)),
        recordings=tuple(Recording(each.measured.step_s, each.speedup) for each in found),
    )


def _of_commands(runs: Sequence[RunRecord]) -> Iterator[Assumption]:
    if len({run.command for run in runs}) > 1:
        yield Assumption("recordings")
