"""A probe's result for the terminal: a table of the levels, and what has to be known to read it."""

from typing import Any, Final

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from ioprof.cli.console import output
from ioprof.report.probing import HEADINGS, NUMERIC, notes, rows
from ioprof.report.units import clean

_PATH_LENGTH: Final = 200
_WIDTH: Final = 160
"""Characters that a line of the table may have: a narrow terminal breaks it, which is better read than cells broken one by one."""


def show(found: dict[str, Any]) -> None:
    """Print the facts of a probe, as `ioprof probe --json` has them."""
    output.print(f"{clean(found['path'], _PATH_LENGTH)}: {clean(found['read'], _PATH_LENGTH)}", markup=False)
    for label, text in found["storage_lines"]:
        output.print(f"  {label:<14}{text}", markup=False)
    Console(file=output.file, width=max(output.width, _WIDTH), highlight=False).print(_table(found))
    for note in notes(found):
        output.print(note, markup=False)


def _table(found: dict[str, Any]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    for place, heading in enumerate(HEADINGS):
        table.add_column(heading, justify="right" if place in NUMERIC else "left")
    for line in rows(found):
        table.add_row(*map(Text, line))
    return table
