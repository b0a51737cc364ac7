"""What a job learned: the loss of its steps, and what its evaluations found."""

from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Final

from ioprof.clock import monotonic_ns
from ioprof.format.dataset import write_json_atomically

MOST_LOSSES: Final = 1000
"""Points of the curve that are kept; of a longer job each is the mean of several steps."""


def curve_path(spool: Path) -> Path:
    """Where rank 0 leaves the curve."""
    return spool / "learning.json"


@dataclass(frozen=True)
class Evaluation:
    """One evaluation, over all ranks."""

    step: int
    """Steps done before it."""
    epoch: float | None
    seconds: float
    """From the start of the first step of this job to its end."""
    samples: int
    loss: float | None
    """Mean of the predictions. None: an emulated device learns nothing."""
    accuracy: float | None
    """Share of right predictions, 0 to 1."""


@dataclass
class Curve:
    """Collects what rank 0 learned."""

    path: Path
    first_step: int = 0
    losses: list[float] = field(default_factory=list)
    """Of the batches of rank 0, from `first_step` on."""
    evaluations: list[Evaluation] = field(default_factory=list)
    checkpoints: list[int] = field(default_factory=list)
    """Steps after which a checkpoint was written."""
    _begin_ns: int = field(default_factory=monotonic_ns)

    @property
    def seconds(self) -> float:
        """Since the first step of this job began."""
        return (monotonic_ns() - self._begin_ns) / 1e9

    def save(self) -> None:
        """Write it; the last one counts."""
        stride = -(-len(self.losses) // MOST_LOSSES) or 1
        groups = [
            self.losses[first : first + stride] for first in range(0, len(self.losses), stride)
        ]
        record = {
            "first_step": self.first_step,
            "steps_per_loss": stride,
            "losses": [sum(group) / len(group) for group in groups],
            "evaluations": [asdict(each) for each in self.evaluations],
            "checkpoints": self.checkpoints,
        }
        write_json_atomically(self.path, record)
