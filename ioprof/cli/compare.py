"""`ioprof compare`: runs beside each other."""

from pathlib import Path
from typing import Annotated

import typer

from ioprof.analysis.summary import summarise
from ioprof.cli.console import next_command, output
from ioprof.errors import CommandError
from ioprof.report.text import comparison_text
from ioprof.trace import Trace


def compare(
    runs: Annotated[list[Path], typer.Argument(help="Two or more run folders; the first is the yardstick.", show_default=False)],
    json: Annotated[bool, typer.Option("--json", help="Print the summaries as a JSON array, and nothing else.")] = False,
) -> int:
    """Compare runs: rates against the first, and what each waited for."""
    if len(runs) < 2:
        raise CommandError(f"compare needs two runs or more; name another one, or see one run with: ioprof report {runs[0]}")
    summaries = [summarise(Trace.load(run)) for run in runs]
    if json:
        output.file.write("[" + ",\n".join(summary.to_json() for summary in summaries) + "]\n")
    else:
        output.print(comparison_text(summaries))
        next_command("ioprof", "report", runs[-1], "--html", "report.html")
    return 0
