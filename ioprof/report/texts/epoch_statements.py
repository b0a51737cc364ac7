"""The predicted time of a job of more epochs, what its checkpoints and its start take, and how
often it should save, in words.
"""

from collections.abc import Sequence
from typing import Final

from ioprof.analysis.cpu.code_lines import shortened
from ioprof.analysis.ledger import TO_FIRST_STEP
from ioprof.analysis.save_interval import save_interval
from ioprof.format.run_record import EpochPrediction, Ledger, Phase, Saves, Summary
from ioprof.report.texts.units import amount, clean, count, duration, percent
from ioprof.report.texts.whole_job import length

_LEAST_PART: Final = 0.01  # of a checkpoint, or of the start, for a part that is named
_LONGEST_FILE: Final = 60


def saves_text(found: Saves) -> str:
    """How many checkpoints there were, and what one took, in parts that sum to it."""
    size = f" of {amount(found.bytes)}" if found.bytes else ""
    ranks = f" by each of {count(found.ranks)} ranks" if found.ranks > 1 else ""
    many = f"{count(found.number)} checkpoint{'' if found.number == 1 else 's'}{size}{ranks}"
    if found.every_s and found.every_steps:
        many += f", every {count(found.every_steps)} steps ({duration(found.every_s)})"
    text = f"{many}; one stops the training for {duration(found.seconds)}: {_parts(found.parts)}"
    if found.background_s:
        text += f"; it goes on for {duration(found.background_s)} beside the steps"
        text += (
            f", which take {duration(found.slowed_s)} longer"
            if found.slowed_s >= _LEAST_PART * found.background_s
            else ", which take no longer"
        )
    return text


def interval_text(summary: Summary, mtbf_s: float | None) -> str:
    """How often the job should save; empty: it did not."""
    if summary.saves is None:
        return ""
    if mtbf_s is None:
        return (
            "depends on how often the job fails; give the mean time between failures: ioprof report"
            " RUN --mtbf 24h"
        )
    found = save_interval(summary, mtbf_s)
    if found is None:
        return "not known: no checkpoint took time"
    steps = f" ({count(found.steps)} steps)" if found.steps else ""
    text = (
        f"save every {duration(found.seconds)}{steps}: with a failure every {length(mtbf_s)},"
        f" {duration(found.cost_s)} for a checkpoint and {duration(found.restart_s)} for a restart,"
        f" {percent(found.lost_ratio)} of the time is then lost"
    )
    return text if found.now_ratio is None else f"{text}, {percent(found.now_ratio)} as it is now"


def start_text(ledger: Ledger) -> str:
    """What came before the first step, in parts that sum to it; empty: that is not known."""
    phases = [phase for phase in ledger.phases if phase.name in TO_FIRST_STEP]
    whole_s = sum(phase.seconds for phase in phases)
    if not whole_s:
        return ""
    text = f"{duration(whole_s)} to the first step: {_parts(phases)}"
    if weights := ledger.weights:
        rate = (
            amount(weights.bytes / weights.ranks / weights.reading_s) if weights.reading_s else ""
        )
        by_map = (
            f", {percent(weights.mapped_bytes / weights.bytes)} by map"
            if weights.mapped_bytes and weights.bytes
            else ""
        )
        name = clean(shortened(weights.file, _LONGEST_FILE), _LONGEST_FILE)
        more = f" and {weights.files - 1} more" if weights.files > 1 else ""
        text += f"; weights: {amount(weights.bytes)} of {name}{more}{by_map}"
        text += f", {duration(weights.reading_s)} of reading ({rate}/s)" if rate else ""
    return text


def _parts(phases: Sequence[Phase]) -> str:
    whole_s = sum(phase.seconds for phase in phases)
    shown = [phase for phase in phases if phase.seconds >= _LEAST_PART * whole_s]
    rest_s = whole_s - sum(phase.seconds for phase in shown)
    texts = [f"{phase.name} {duration(phase.seconds)}" for phase in shown]
    return ", ".join([*texts, *([f"the rest {duration(rest_s)}"] if rest_s > 1e-9 else [])])


def epochs_text(prediction: EpochPrediction) -> str:
    """How long the job would take with more epochs, and of what that is made."""
    seconds, error = duration(prediction.seconds), duration(prediction.error_s)
    first, *later = [
        _from_storage(each, prediction.dataset_bytes) for each in prediction.storage_bytes
    ] or [""]
    parts = [
        f"start and end {duration(prediction.fixed_s)}",
        f"first epoch {duration(prediction.first_epoch_s)}{first}",
        (
            f"{count(prediction.epochs - 1)} later epochs of"
            f" {duration(prediction.later_epoch_s)}{later[-1] if later else ''}"
        ),
    ]
    for number, what in (
        (prediction.evaluations, "evaluations"),
        (prediction.checkpoints, "checkpoints"),
    ):
        if number:
            parts.append(f"{count(number)} {what}")
    if prediction.between_s:
        parts.append(f"{duration(prediction.between_s)} for these")
    made = f"from {count(prediction.made)} epochs"
    return (
        f"{count(prediction.epochs)} epochs take {seconds}, within {error}: {', '.join(parts)}"
        f" ({made})"
    )


def _from_storage(num_bytes: int, of_bytes: int | None) -> str:
    return (
        f" ({percent(min(1.0, num_bytes / of_bytes))} of the dataset from storage)"
        if of_bytes
        else ""
    )
