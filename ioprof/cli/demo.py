"""`ioprof demo`: generate, convert, run and compare in one command, on any machine, in minutes."""

import os
import sys
from pathlib import Path
from typing import Annotated

from typer import Option

from ioprof.cli.console import exit_code, next_command, output, reporter, say
from ioprof.jobs.demo import make_demo
from ioprof.report.texts.text import comparison_text


def demo(
    out: Annotated[Path, Option(help="Folder for the images, the datasets and the runs.")] = Path(
        "ioprof-demo"
    ),
    images: Annotated[int, Option(min=8, help="Synthetic images to make.")] = 600,
    steps: Annotated[int, Option(min=4, help="Steps of each run.")] = 100,
    device: Annotated[str, Option(help="cpu or emulated:NAME.")] = "emulated:a100",
    force: Annotated[
        bool, Option("--force", help="Replace the folder of an earlier demo.")
    ] = False,
) -> int:
    """Generate images, convert them three ways, train on each with two ranks, and compare."""
    summaries = []
    for run in make_demo(
        out, images, steps, device, force, ["ioprof", *sys.argv[1:]], os.environ, reporter
    ):
        if code := exit_code(run):
            return code
        summaries.append(run.summary)
    output.print(comparison_text(summaries))
    for summary in summaries:
        say(f"report: {out / 'runs' / summary.run.name / 'report.html'}")
    next_command("ioprof", "report", out / "runs" / "files")
    return 0
