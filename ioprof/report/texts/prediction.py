"""A prediction in words: the replay's own error first, then what the change would bring, and what
that rests on.
"""

import math
import shlex
from collections.abc import Iterator, Sequence
from typing import Final

from ioprof.format.run_record import Finding, Summary
from ioprof.model.changes import Change
from ioprof.model.prediction import Prediction
from ioprof.model.proof import Proof
from ioprof.report.texts.catalogue.filling import tell
from ioprof.report.texts.units import ADVICE_LENGTH, clean, duration, percent, rate

_GAIN: Final = (
    "[[{advice.is_least:if}at least ]{advice.gain:.2f} × as fast[{advice.is_bound:if}"
    "[{advice.change:if} at most|{advice.cause:if} if that cost nothing| at most]][ (95 %:"
    " {advice.low:.2f} to {advice.high:.2f})|, ± {advice.error:percent}][; costs:"
    " {advice.price}]|gain not predicted: {advice.reason:clean200}]"
)
_CHANGES: Final = {
    "workers": "{} workers",
    "ranks": "{} ranks",
    "cores": "{:g} cores",
    "prefetch": "prefetch {}",
    "batch": "batches of {}",
    "persistent_workers": "persistent workers",
    "skip_discarded": "no discarded batches",
    "cache": "{} page cache",
    "layout": "the layout {}",
    "image": "images as {}",
    "like": "batches like those of {}",
    "device": "the device {}",
    "copy": "{} copies",
}
"""Of a `Change`, its fields in words."""
_MOST_SPREAD: Final = 4
"""Between the ends of what pairs of runs measured, above which they decide nothing."""
LARGE_ERROR: Final = 0.1
"""Error of the baseline, from which on a prediction is called unsure."""


def prediction_lines(found: Prediction) -> Iterator[str]:
    """One sentence per line, the most important first."""
    if found.recordings:
        steps = ", ".join(duration(each.step_s) for each in found.recordings)
        yield (
            f"{len(found.recordings)} recordings: {steps} per batch. Predicted from the middle one:"
        )
    yield (
        f"Baseline: replayed {duration(found.baseline.step_s)} per batch, measured"
        f" {duration(found.measured.step_s)} (error {_signed(found.baseline_error)}); the whole"
        f" loop {duration(found.baseline.total_s)}, measured {duration(found.measured.total_s)}."
    )
    rates = ""
    if found.samples_per_s is not None and found.measured_samples_per_s is not None:
        rates = (
            f", {rate(found.samples_per_s)} samples/s instead of"
            f" {rate(found.measured_samples_per_s)}"
        )
    yield (
        f"Predicted with {change_text(found.change)}: {duration(found.predicted.step_s)} per"
        f" batch{rates}: {found.speedup:.2f} × as fast (95 %: {found.speedup_range.low:.2f} to"
        f" {found.speedup_range.high:.2f})."
    )
    yield (
        f"The whole loop would take {duration(found.predicted.total_s)}, start-up and epoch"
        " boundaries included."
    )
    between = (
        f", how much the {len(found.recordings)} recordings differ" if found.recordings else ""
    )
    yield (
        f"The range covers how steps vary within this run{between}, the error of the"
        f" replay{_of_kind(found)}"
    )
    if abs(found.baseline_error) >= LARGE_ERROR:
        yield (
            "Unsure: the replay does not reproduce the run itself within"
            f" {percent(LARGE_ERROR, 0)}."
        )
    for each in found.assumptions:
        yield f"Assumes: {each.text}."


def change_text(change: Change) -> str:
    """The change, as in `4 workers, decode 2 times as fast`."""
    parts = [
        text.format(value)
        for name, text in _CHANGES.items()
        if (value := getattr(change, name)) is not None
        and value is not False
        and not (name == "like" and (change.layout or change.image))
    ]
    parts += [
        f"{cause} at no cost" if math.isinf(speed) else f"{cause} {speed:g} times as fast"
        for cause, speed in change.speeds.items()
    ]
    return ", ".join(parts) or "nothing changed"


def _signed(error: float) -> str:
    """Never minus zero."""
    return f"{round(error, 3) + 0.0:+.1%}"


def _of_kind(found: Prediction) -> str:
    """How far predictions like this one were from runs, as the end of a sentence about its
    range.
    """
    kind = "how far predictions of such changes were from runs made with them"
    if not found.is_compared:
        kind = "an assumed error, since such changes were not compared with runs"
    more = (
        f"; {percent(found.further_error, 0)} more, since the cores, the storage or those who make"
        " batches are not known well"
        if found.further_error
        else ""
    )
    return f", and {kind} ({percent(found.kind_error, 0)}{more})."


def gain_text(advice: Finding) -> str:
    """What an advice would bring, and what it costs, or why that is not predicted. Empty: the run
    was not replayed.
    """
    return tell(_GAIN, advice=advice)


def proof_hint(advice: Sequence[Finding]) -> str | None:
    """How to measure what advice brings, by its numbers. None: ioprof can carry out none of it."""
    numbers = [str(number) for number, each in enumerate(advice, 1) if each.can_be_proved]
    if not numbers:
        return None
    others = f" (or {', '.join(numbers[1:])})" if numbers[1:] else ""
    return f"To measure the gain in runs: ioprof prove RUN --advice {numbers[0]}{others}"


def proof_lines(found: Proof) -> Iterator[str]:
    """One sentence per line."""
    yield f"Advice: {clean(found.action, ADVICE_LENGTH)}"
    if found.command is not None:
        yield f"Run again, recorded: {clean(shlex.join(found.command), 300)}"
        yield f"Changed in half of the runs: {clean(found.changed or '', 300)}."
    if found.predicted is None or found.predicted_range is None:
        yield f"Predicted: nothing; {clean(found.reason or 'it is not known why', 200)}."
    else:
        low, high = found.predicted_range.low, found.predicted_range.high
        most = "at most " if found.is_bound else ""
        yield f"Predicted: {most}{found.predicted:.2f} × as fast (95 %: {low:.2f} to {high:.2f})."
    between = "one pair of runs, so it is not known how much runs vary"
    if found.measured_range is not None:
        between = (
            f"95 %: {found.measured_range.low:.2f} to {found.measured_range.high:.2f};"
            f" {len(found.pairs)} pairs of runs"
        )
    yield f"Measured: {found.measured:.2f} × as fast ({between})."
    spread = found.measured_range
    if spread is not None and spread.high > _MOST_SPREAD * spread.low:
        yield (
            "Not decided: the pairs of runs differ too much for that; use more of them (--pairs),"
            " on a machine on which nothing else runs."
        )
    elif found.error is not None:
        where = "within" if found.agrees else "outside of"
        yield (
            f"That is {where} the predicted range; the prediction itself is"
            f" {abs(found.error):.1%} too {'high' if found.error >= 0 else 'low'}."
        )
    elif found.agrees is not None:
        yield (
            "That is no more than predicted."
            if found.agrees
            else "That is more than predicted at most."
        )
    for note in found.notes:
        yield f"Note: {clean(note, 300)}."


def replay_note(summary: Summary) -> str | None:
    """What the columns of the replay mean, or why there are no gains. None: the run was not
    replayed.
    """
    if summary.replay is None or not summary.steps.count:
        return None
    if summary.replay.reason:
        return f"no gains: {clean(summary.replay.reason, 300)}"
    error = _signed(summary.replay.baseline_error or 0.0)
    return (
        "gain: of a step's time, if that cause cost nothing, and in brackets where it lies with 95"
        f" % probability (predicted by replay, whose own error is {error}; the range has the errors"
        " of earlier predictions)"
    )
