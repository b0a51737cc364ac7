"""A callback of transformers' Trainer that records a training.

    from ioprof.integrations.transformers import ProfileCallback
    trainer = transformers.Trainer(..., callbacks=[ProfileCallback("runs/train")])

It records as `ioprof.profile` does: without reads, and of the process in which it runs; rank 0 of
several. `ioprof record -- python train.py` records everything, and needs no callback.
"""

from pathlib import Path
from typing import TYPE_CHECKING, Any

from transformers import TrainerCallback

from ioprof.integrations.block import TrainingBlock
from ioprof.integrations.scalars import scalars

if TYPE_CHECKING:
    from ioprof.report.explore import Run


class ProfileCallback(TrainerCallback):
    """Records each call of `train` in the run folder `out`, and adds its shares to the state's
    `log_history`.

    `run` is the run afterwards; None where nothing was recorded, as under `ioprof record`. `force`
    replaces an earlier run.
    """

    def __init__(self, out: Path | str, force: bool = False) -> None:
        self._block = TrainingBlock(out, force)
        self.run: Run | None = None
        """Of the last training."""

    def on_train_begin(self, args: Any, state: Any, control: Any, **more: Any) -> None:
        """Called by transformers."""
        if state.is_world_process_zero:
            self._block.begin()

    def on_train_end(self, args: Any, state: Any, control: Any, **more: Any) -> None:
        """Called by transformers."""
        self.run = self._block.end()
        if self.run is not None:
            state.log_history.append({"step": state.global_step, **scalars(self.run.summary)})
