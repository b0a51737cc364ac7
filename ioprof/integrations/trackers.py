"""The summary of a run in trackers of experiments, each by its own library.

    run = ioprof.load("runs/first")
    to_tensorboard(run, "logs/first")      # a folder of event files
    to_wandb(run, wandb.run)               # into a run of Weights & Biases, online or offline

Each gets the numbers of `scalars`, and the report as text.
"""

from pathlib import Path
from typing import TYPE_CHECKING, Any

from ioprof.integrations.scalars import scalars
from ioprof.report.texts.markdown import markdown

if TYPE_CHECKING:
    from ioprof.report.explore import Run


def to_tensorboard(run: "Run", folder: Path | str, step: int = 0) -> None:
    """Write an event file of TensorBoard into `folder`; `step` is its place on the time axis.

    Raises ImportError where TensorBoard is not installed.
    """
    from torch.utils.tensorboard import SummaryWriter

    with SummaryWriter(str(folder)) as writer:
        for name, value in scalars(run.summary).items():
            writer.add_scalar(name, value, step)
        writer.add_text("ioprof/report", _report(run), step)


def to_wandb(run: "Run", tracked: Any) -> None:
    """Put the numbers into the summary of `tracked`, what `wandb.init` returns, and the report into
    its notes.
    """
    tracked.summary.update(scalars(run.summary))
    tracked.notes = "\n\n".join(filter(None, (tracked.notes, _report(run))))


def _report(run: "Run") -> str:
    return markdown(run.summary, run.analysed.steps)
