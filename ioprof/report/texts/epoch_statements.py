"""The predicted time of a job of more epochs, in words."""

from typing import Final

from ioprof.format.run_record import EpochPrediction
from ioprof.report.texts.catalogue.filling import tell

_EPOCHS: Final = (
    "{found.epochs:count} epochs take {found.seconds:duration}, within {found.error_s:duration}:"
    " start and end {found.fixed_s:duration}, first epoch {found.first_epoch_s:duration}["
    " ({first:percent}"
    " of the dataset from storage)], {later:count} later epochs of"
    " {found.later_epoch_s:duration}[ ({last:percent} of the dataset from"
    " storage)][{found.evaluations:if}, {found.evaluations:count}"
    " evaluations][{found.checkpoints:if}, {found.checkpoints:count}"
    " checkpoints][{found.between_s:if}, {found.between_s:duration} for these] (from"
    " {found.made:count} epochs)"
)


def epochs_text(prediction: EpochPrediction) -> str:
    """How long the job would take with more epochs, and of what that is made."""
    size, read = prediction.dataset_bytes, prediction.storage_bytes
    ratios = [min(1.0, num_bytes / size) for num_bytes in read] if size else []
    return tell(
        _EPOCHS,
        found=prediction,
        later=prediction.epochs - 1,
        first=ratios[0] if ratios else None,
        last=ratios[-1] if len(ratios) > 1 else None,
    )
