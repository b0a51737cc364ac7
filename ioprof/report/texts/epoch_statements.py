"""The predicted time of a whole training, what checkpoints and the start of a job take, and how
often it should save, in words.
"""

from collections.abc import Iterator, Sequence
from typing import Final

from ioprof.analysis.cpu.code_lines import shortened
from ioprof.analysis.ledger import TO_FIRST_STEP
from ioprof.analysis.save_interval import save_interval
from ioprof.format.run_record import (
    EpochPrediction,
    NextRecording,
    Phase,
    Saves,
    Summary,
)
from ioprof.model.extrapolation.whole import WANTED_ERROR
from ioprof.report.texts.units import amount, clean, count, duration, percent
from ioprof.report.texts.whole_job import length

_LEAST_PART: Final = 0.01  # of a checkpoint, or of the start, for a part that is named
_LONGEST_FILE: Final = 60

_NAMES: Final = {"start-up": "the job's own code"}
"""Of phases by other words than their own."""
_SURE: Final = 0.995
"""Share that is printed as 100 %."""
_NEXT: Final = {
    "cold": "a first epoch that reads from storage (run --cache cold, or after echo 3 >"
    " /proc/sys/vm/drop_caches)",
    "two epochs": "two epochs, or the beginning of the second one",
    "epochs": "more epochs",
    "steps": "more steps",
    "validations": "more than one validation",
    "checkpoints": "more than one checkpoint",
}
"""By `NextRecording.what`."""


def epochs_text(found: EpochPrediction) -> str:
    """How long the whole training takes, within which range, and of what that is made."""
    parts = [
        f"start and end {duration(found.fixed_s)}",
        f"first epoch {duration(found.first_epoch_s)}{_cold(found)}",
        f"{count(found.epochs - 1)} later epochs of {duration(found.later_epoch_s)}{_kept(found)}",
    ]
    for number, what in ((found.evaluations, "validations"), (found.checkpoints, "checkpoints")):
        if number:
            parts.append(f"{count(number)} {what}")
    if found.between_s:
        parts.append(f"{duration(found.between_s)} for these")
    made = f"from {count(found.made)} epochs"
    if found.recorded_steps and found.made < 2:
        made = f"from {count(found.recorded_steps)} steps"
    of = f" of {count(found.records)} samples" if found.records else ""
    return f"{count(found.epochs)} epochs{of} take {_time(found)}: {', '.join(parts)} ({made})"


def extrapolation_lines(found: EpochPrediction) -> Iterator[str]:
    """One sentence per line: the time, what is not in it, and what would make it surer."""
    yield f"Predicted: {epochs_text(found)}."
    if found.later_basis == "predicted":
        yield (
            "Later epochs were not recorded with what memory would have of this data: they are the"
            " recorded ones with less reading."
        )
    if found.is_cold is None:
        yield (
            "Whether the first epoch read from storage is not known here: all epochs are taken to"
            " read as it did."
        )
    elif not found.is_cold and found.dataset_bytes:
        yield (
            "The first epoch did not read from storage; it takes longer where the data are not in"
            " memory. To know how long: record it with --cache cold."
        )
    for what in found.not_seen:
        yield f"No {what} was recorded: the time of any is not in this."
    if found.record_next:
        yield (
            f"The range is wider than {percent(WANTED_ERROR, 0)}. To make it smaller, record"
            f" {'; '.join(map(_next, found.record_next))}."
        )


def _time(found: EpochPrediction) -> str:
    if found.high_s is None:
        return f"at least {duration(found.low_s)}"
    error = percent(found.error_s / found.seconds) if found.seconds else ""
    return (
        f"{duration(found.seconds)} ± {error} ({duration(found.low_s)} to {duration(found.high_s)})"
    )


def _cold(found: EpochPrediction) -> str:
    if found.is_cold is None:
        return ""
    return " (from storage)" if found.is_cold else " (from memory)"


def _kept(found: EpochPrediction) -> str:
    """What memory has of the data, where that matters."""
    if found.memory_ratio is None or not found.dataset_bytes:
        return ""
    size = amount(found.dataset_bytes)
    if found.memory_ratio >= _SURE:
        return f" ({size} fit in memory)"
    return f" (memory has {percent(found.memory_ratio, 0)} of {size})"


def _next(each: NextRecording) -> str:
    return _NEXT[each.what] + (f" (about {count(each.steps)})" if each.steps else "")


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


def to_first_step(summary: Summary) -> list[Phase]:
    """The phases of the job before its first step; none, if it made none."""
    phases = summary.ledger.phases if summary.steps.count else ()
    return [phase for phase in phases if phase.name in TO_FIRST_STEP]


def start_text(summary: Summary) -> str:
    """What came before the first step, in parts that sum to it; empty: that is not known."""
    ledger, phases = summary.ledger, to_first_step(summary)
    whole_s = sum(phase.seconds for phase in phases)
    if not whole_s:
        return ""
    text = f"{duration(whole_s)} to the first step: {_parts(phases)}"
    longest = ledger.imports[0] if ledger.imports else None
    if longest is not None and longest.seconds >= _LEAST_PART * whole_s:
        text += f"; of the imports {clean(longest.name, 40)} {duration(longest.seconds)}"
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
        by = f"by each of {count(weights.ranks)} ranks" if weights.ranks > 1 else "by one rank"
        text += f", {duration(weights.reading_s)} of reading {by} ({rate}/s)" if rate else ""
    return text


def _parts(phases: Sequence[Phase]) -> str:
    whole_s = sum(phase.seconds for phase in phases)
    shown = [phase for phase in phases if phase.seconds >= _LEAST_PART * whole_s]
    rest_s = whole_s - sum(phase.seconds for phase in shown)
    texts = [f"{_NAMES.get(phase.name, phase.name)} {duration(phase.seconds)}" for phase in shown]
    return ", ".join([*texts, *([f"other {duration(rest_s)}"] if rest_s > 1e-9 else [])])
