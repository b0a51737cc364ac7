"""The form of tables in a terminal."""

from collections.abc import Collection, Iterable

from rich import box
from rich.table import Table
from rich.text import Text


def plain_table(
    headings: Iterable[str],
    rows: Iterable[Iterable[str | Text]],
    numeric: Collection[int] = (),
    title: str | None = None,
) -> Table:
    """A table with a line below its headings; columns in `numeric` are aligned right."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False, title=title)
    for place, heading in enumerate(headings):
        table.add_column(heading, justify="right" if place in numeric else "left", overflow="fold")
    for row in rows:
        table.add_row(*row)
    return table
