"""`ioprof size`: what a job needs of a system."""

from pathlib import Path
from typing import Annotated, Any

from typer import Option

import ioprof
from ioprof.cli.console import next_command, output, print_lines, say
from ioprof.cli.options import takes_options
from ioprof.files import write_atomically
from ioprof.model.simulator.asked import SizeAsked
from ioprof.report.page.page_file import check_page_file, write_page_file
from ioprof.report.texts.sizing import size_lines, size_tables, terminal_table


@takes_options(SizeAsked)
def size(
    given: dict[str, Any],
    model: Annotated[str, Option(help="Model or workload, such as resnet50 or ssd.")] = "resnet50",
    like: Annotated[
        Path | None,
        Option(
            help="A run folder: its job, with what its loader and steps took.", show_default=False
        ),
    ] = None,
    html: Annotated[
        Path | None,
        Option(help="Write the page with the curves here as well.", show_default=False),
    ] = None,
    force: Annotated[bool, Option("--force", help="Replace that file.")] = False,
    json: Annotated[
        bool, Option("--json", help="Print the numbers as JSON, and nothing else.")
    ] = False,
) -> int:
    """Say what a job needs so that no accelerator waits: bytes/s, reads/s, files/s, cores, memory.

    For each layout, and for the next devices. --storage-rate adds staging and when it pays, --watts
    and --price-per-hour what the job takes and costs.
    """
    if html:
        check_page_file(html, force)
    found = ioprof.size(model, like=like, **given)
    if html:
        # the libraries that draw are loaded for a page alone
        from ioprof.report.size_page import size_page

        say(write_page_file(html, lambda path: write_atomically(path, size_page(found))))
    if json:
        output.file.write(found.to_json() + "\n")
        return 0
    print_lines(size_lines(found))
    output.print()
    for heading, rows in size_tables(found).items():
        output.print(terminal_table(heading, found, rows))
        output.print()
    following = ("ioprof", "simulate", "dgx-h100-pod", "--job", like or model)
    on = ("--device", found.device) if found.device else ()
    next_command(*following, *on, "--ranks", found.ranks)
    return 0
