"""`ioprof study`: makes a published study again, and prints its table."""

from pathlib import Path
from typing import Annotated, Any

from typer import Option

import ioprof
from ioprof.analysis.grid import GRID_FILE, Grid
from ioprof.cli.console import next_command, output, print_lines, reporter, say
from ioprof.cli.options import takes_options
from ioprof.jobs.options import StudyOptions
from ioprof.jobs.studies.grid_file import grid_names, load_grid
from ioprof.train.presets import load_preset, preset_names


@takes_options(StudyOptions)
def study(
    given: dict[str, Any],
    json: Annotated[
        bool, Option("--json", help="Print the table as JSON, and nothing else.")
    ] = False,
) -> int:
    """Make a study: its runs or simulations one after the other, and a table. `list` names them.

    A preset is trained with several times, with another number of ranks or another scale of the
    dataset each. A study over several settings runs or simulates each combination; made again, it
    goes on where it stopped. OUT/study.html has tables and a figure, OUT/study.json the numbers.
    Copy a file of ioprof/jobs/studies or ioprof/train/presets to make one of your own.

    A study of dataset scales begins each run with a cold page cache and predicts the epochs of its
    preset, unless --cache, --steps, --epochs or --predict-epochs say otherwise.
    """
    if given["preset"] == "list":
        return _list()
    folder = given.setdefault("out", Path(f"study-{Path(given['preset']).stem}"))
    found = ioprof.study(**given, reporter=reporter)
    if json:
        output.file.write(found.to_json() + "\n")
        return 0
    if isinstance(found, Grid):
        return _show(found, Path(folder))
    # the jobs are started before these libraries are loaded
    from ioprof.report.study import (
        study_notes,
        study_table,
    )

    print_lines(study_notes(found))
    output.print()
    output.print(study_table(found))
    say(f"the same with a figure: {folder / 'study.html'}")
    next_command("ioprof", "compare", *(row.run for row in found.rows))
    return 0


def _list() -> int:
    for name in grid_names():
        grid = load_grid(name)
        output.print(f"{name}: {grid.about if grid else ''}", markup=False)
    for name in preset_names():
        preset = load_preset(name)
        if preset.study:
            output.print(f"{name}: {preset.about}", markup=False)
    return 0


def _show(found: Grid, folder: Path) -> int:
    """Tables and notes of a study over several settings."""
    from ioprof.report.grid import bend_lines, grid_notes, terminal_tables

    print_lines(grid_notes(found))
    for table in terminal_tables(found):
        output.print()
        output.print(table)
    output.print()
    print_lines(bend_lines(found))
    say(f"numbers, page and notebook: {folder / GRID_FILE}, study.html, study.ipynb")
    runs = [cell.run for cell in found.cells if cell.run]
    if runs:
        next_command("ioprof", "report", runs[0])
    return 0
