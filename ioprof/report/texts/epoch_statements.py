"""The predicted time of a whole training, in words."""

from collections.abc import Iterator
from typing import Final

from ioprof.format.run_record import EpochPrediction, NextRecording
from ioprof.report.texts.units import amount, count, duration, percent

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
            f"The range is wider than 15 %. To make it smaller, record"
            f" {'; '.join(map(_next, found.record_next))}."
        )


def _time(found: EpochPrediction) -> str:
    if found.low_s is None:  # of a summary of before
        return f"{duration(found.seconds)}, within {duration(found.error_s)}"
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
