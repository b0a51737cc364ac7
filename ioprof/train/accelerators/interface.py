"""What all accelerators have in common: their methods, and the numbers of their streams in
spans.
"""

from typing import Any, Final, NamedTuple, Protocol

from ioprof.loaders.base import Batch

COMPUTE_STREAM: Final = 0
COPY_STREAM: Final = 1
COMM_STREAM: Final = 2


class Score(NamedTuple):
    """What a model made of samples; None: nothing was learned that could be evaluated."""

    samples: int
    predictions: int = 0
    """Of an image one; of tokens as many as there are."""
    loss_sum: float | None = None
    """Over predictions."""
    correct: int | None = None


class Accelerator(Protocol):
    """One rank's device. Work is launched and runs asynchronously; its spans are recorded when it
    ends.
    """

    def launch(self, batch: Batch, step: int) -> None:
        """Start the copy of `batch` and the training step on it; returns once `batch` may be
        overwritten.
        """

    def synchronize(self, step: int) -> float | None:
        """Wait until `step` has been computed and its gradients exchanged; its loss, or None where
        nothing learns.

        Raises what went wrong on the device.
        """

    def evaluate(self, batch: Batch, step: int) -> Score:
        """What the model makes of `batch` after `step`, which is done; waits for it."""

    def state(self) -> dict[str, Any]:
        """All that a checkpoint must have of this rank; of an emulated device as many bytes."""

    def restore(self, state: dict[str, Any]) -> None:
        """Go on from what `state` returned."""

    def close(self) -> None:
        """Stop the device's threads; operations that have not ended are dropped."""
