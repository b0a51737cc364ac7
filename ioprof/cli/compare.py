"""`ioprof compare`: runs side by side."""

from pathlib import Path
from typing import Annotated

from typer import Argument, Option

import ioprof
from ioprof.cli.console import error_line, next_command, output, say
from ioprof.report.page.page_file import check_page_file, write_page_file
from ioprof.report.texts.units import parse_percentage


def compare(
    runs: Annotated[
        list[Path],
        Argument(
            help=(
                "Two or more run folders; the first is the baseline, or baseline:NAME of a store."
            ),
            show_default=False,
        ),
    ],
    store: Annotated[
        Path | None,
        Option(help="Folder of the store that has the named baseline.", show_default=False),
    ] = None,
    json: Annotated[
        bool, Option("--json", help="Print the summaries as a JSON array, and nothing else.")
    ] = False,
    html: Annotated[
        Path | None,
        Option(
            help="Also write the comparison as one HTML file that opens offline.",
            show_default=False,
        ),
    ] = None,
    force: Annotated[
        bool, Option("--force", help="Replace a file that is not a page of ioprof.")
    ] = False,
    fail_above: Annotated[
        str | None,
        Option(
            "--fail-above",
            help=(
                "End with exit code 1 if a run is slower than the first by more than this, e.g. 5%."
            ),
        ),
    ] = None,
) -> int:
    """Compare runs: rates relative to the first, what each waited for, and which causes differ,
    with intervals.
    """
    most = None if fail_above is None else parse_percentage("--fail-above", fail_above)
    if html:
        check_page_file(html, force)
    comparison = ioprof.compare(*runs, store=store)
    if html:
        say(write_page_file(html, comparison.write_html))
    if json:
        output.file.write(comparison.to_json() + "\n")
    else:
        output.print(comparison)
        next_command("ioprof", "open", html or runs[-1])
    slower = () if most is None else comparison.slower_than(most)
    for line in slower:
        error_line(line)
    return 1 if slower else 0
