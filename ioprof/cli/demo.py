"""`ioprof demo`: generate, convert, run and compare in one command, on any machine, in minutes."""

import os
import sys
from pathlib import Path
from typing import Annotated

from typer import Option

from ioprof.cli.console import exit_code, next_command, output, reporter
from ioprof.jobs.demo import make_demo
from ioprof.report.texts.brief import answers
from ioprof.report.texts.text import comparison_text


def demo(
    out: Annotated[Path, Option(help="Folder for the images, the datasets and the runs.")] = Path(
        "ioprof-demo"
    ),
    images: Annotated[int, Option(min=8, help="Synthetic images to make.")] = 600,
    steps: Annotated[int, Option(min=4, help="Steps of each run.")] = 100,
    device: Annotated[
        str | None,
        Option(
            help=(
                "cpu or emulated:NAME, which trains ResNet-50. [default: the emulated device that"
                " lies between what this machine decodes of original and of small images]"
            ),
            show_default=False,
        ),
    ] = None,
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
    output.print("\n".join(answers(summaries)), markup=False)
    next_command("ioprof", "open", out / "runs" / "files")
    return 0
