"""`ioprof study`: makes a published study again, and prints its table."""

from pathlib import Path
from typing import Annotated, Any

from typer import Option

import ioprof
from ioprof.cli.console import next_command, output, reporter, say
from ioprof.cli.options import takes_options
from ioprof.jobs.options import StudyOptions


@takes_options(StudyOptions)
def study(
    given: dict[str, Any],
    json: Annotated[
        bool, Option("--json", help="Print the table as JSON, and nothing else.")
    ] = False,
) -> int:
    """Train with a preset several times, with another number of ranks or another scale of the
    dataset each, and print a table.

    The page OUT/study.html has the table and a figure, OUT/study.json the numbers. A study of
    dataset scales begins each run with a cold page cache and predicts the epochs of its preset,
    unless --cache, --steps, --epochs or --predict-epochs say otherwise.
    """
    folder = given.setdefault("out", Path(f"study-{Path(given['preset']).stem}"))
    found = ioprof.study(**given, reporter=reporter)
    if json:
        output.file.write(found.to_json() + "\n")
        return 0
    # the jobs are started before these libraries are loaded
    from ioprof.report.study import (
        study_notes,
        study_table,
    )

    for note in study_notes(found):
        output.print(note, markup=False)
    output.print()
    output.print(study_table(found))
    say(f"the same with a figure: {folder / 'study.html'}")
    next_command("ioprof", "compare", *(row.run for row in found.rows))
    return 0
