"""A callback of Lightning that records a fit.

    from ioprof.integrations.lightning import ProfileCallback
    trainer = lightning.Trainer(callbacks=[ProfileCallback("runs/fit")])

It records as `ioprof.profile` does: without reads, and of the process in which it runs; rank 0 of
several. `ioprof record -- python train.py` records everything, and needs no callback.
"""

from pathlib import Path
from typing import TYPE_CHECKING, Any

from lightning.pytorch.callbacks import Callback

from ioprof.integrations.block import TrainingBlock
from ioprof.integrations.scalars import scalars

if TYPE_CHECKING:
    from ioprof.report.explore import Run


class ProfileCallback(Callback):
    """Records each fit in the run folder `out`, and logs its shares to the trainer's loggers.

    `run` is the run afterwards; None where nothing was recorded, as under `ioprof record`. `force`
    replaces an earlier run.
    """

    def __init__(self, out: Path | str, force: bool = False) -> None:
        super().__init__()
        self._block = TrainingBlock(out, force)
        self.run: Run | None = None
        """Of the last fit."""

    def on_fit_start(self, trainer: Any, pl_module: Any) -> None:
        """Called by Lightning."""
        if trainer.is_global_zero:
            self._block.begin()

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        """Called by Lightning: the run has what was recorded until then, and has failed."""
        self.run = self._block.end(exception)

    def teardown(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """Called by Lightning."""
        run = self._block.end() if stage == "fit" else None
        if run is None:
            return
        self.run = run
        for logger in trainer.loggers:
            logger.log_metrics(scalars(run.summary), step=trainer.global_step)
            logger.save()
