"""The summary of a run in trackers of experiments, each by its own library.

    run = ioprof.load("runs/first")
    to_tensorboard(run, "logs/first")      # a folder of event files
    to_wandb(run, wandb.run)               # into a run of Weights & Biases, online or offline
    to_mlflow(run, mlflow.active_run())    # into a run of MLflow, of whatever store it is

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


def to_mlflow(run: "Run", tracked: Any) -> None:
    """Log the numbers as metrics of `tracked`, what `mlflow.start_run` returns, and the report as
    its artifact `ioprof/report.md`.

    Raises ImportError where MLflow is not installed.
    """
    from mlflow.tracking import MlflowClient

    client, run_id = MlflowClient(), tracked.info.run_id
    for name, value in scalars(run.summary).items():
        client.log_metric(run_id, name, value)
    client.log_text(run_id, _report(run), "ioprof/report.md")


def _report(run: "Run") -> str:
    return markdown(run.summary, run.analysed.steps)
