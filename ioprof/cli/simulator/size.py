"""`ioprof size`: what a job needs of a system."""

from pathlib import Path
from typing import Annotated, Any

from typer import Option

import ioprof
from ioprof.cli.console import next_command, output
from ioprof.cli.options import takes_options
from ioprof.model.simulator.asked import SizeAsked
from ioprof.report.texts.sizing import needs_table, size_lines, use_table


@takes_options(SizeAsked)
def size(
    given: dict[str, Any],
    model: Annotated[str, Option(help="Model, such as resnet50.")] = "resnet50",
    like: Annotated[
        Path | None,
        Option(
            help="A run folder: its job, with what its loader and steps took.", show_default=False
        ),
    ] = None,
    json: Annotated[
        bool, Option("--json", help="Print the numbers as JSON, and nothing else.")
    ] = False,
) -> int:
    """Say what a job needs so that no accelerator waits: bytes/s, reads/s, files/s, cores, memory.

    For each layout, and for the next devices. --storage-rate adds staging and when it pays, --watts
    and --price-per-hour what the job takes and costs.
    """
    found = ioprof.size(model, like=like, **given)
    if json:
        output.file.write(found.to_json() + "\n")
        return 0
    for line in size_lines(found):
        output.print(line, markup=False)
    output.print()
    output.print(needs_table(found))
    output.print()
    output.print(use_table(found))
    next_command(
        "ioprof", "simulate", "dgx-h100-pod", "--job", like or model, "--ranks", found.ranks
    )
    return 0
