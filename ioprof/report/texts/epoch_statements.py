"""The predicted time of a job of more epochs, in words."""

from ioprof.format.run_record import EpochPrediction
from ioprof.report.texts.units import count, duration, percent


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
