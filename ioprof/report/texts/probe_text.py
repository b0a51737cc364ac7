"""What `ioprof probe` prints on a terminal: the result of a path, or of a network between ranks."""

from collections.abc import Iterator
from typing import Any, Final

from rich import box
from rich.table import Table
from rich.text import Text

from ioprof.format.run_record import NetworkRecord
from ioprof.report.texts.probing import HEADINGS, NUMERIC, rows
from ioprof.report.texts.units import amount, clean, duration

TABLE_WIDTH: Final = 160
"""Characters that a line of the table may have: a narrow terminal breaks it, which reads better
than cells broken one by one."""
_PATH_LENGTH: Final = 200


def head_lines(found: dict[str, Any]) -> Iterator[str]:
    """The path, what was read of it, and the storage that it lies on."""
    yield f"{clean(found['path'], _PATH_LENGTH)}: {clean(found['read'], _PATH_LENGTH)}"
    yield from (f"  {label:<14}{text}" for label, text in found["storage_lines"])


def probe_table(found: dict[str, Any]) -> Table:
    """A row for each level."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    for place, heading in enumerate(HEADINGS):
        table.add_column(heading, justify="right" if place in NUMERIC else "left")
    for line in rows(found):
        table.add_row(*map(Text, line))
    return table


def network_line(network: NetworkRecord) -> str:
    """How many ranks, over what, and the latency of a message."""
    return (
        f"{network.ranks} ranks over {network.backend}; a message takes"
        f" {duration(network.latency_s)} at least"
    )


def network_table(network: NetworkRecord) -> Table:
    """A row for each size: the time and rate of a message, and of an all-reduce between all
    ranks.
    """
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    for heading in ("bytes", "message", "bytes/s", "all-reduce", "2L(p-1)/p / t"):
        table.add_column(heading, justify="right")
    for sent, reduced in zip(network.messages, network.all_reduces, strict=True):
        cells = (
            amount(sent.bytes),
            duration(sent.seconds),
            amount(sent.bytes_per_s),
            duration(reduced.seconds),
        )
        table.add_row(*cells, amount(reduced.bytes_per_s))
    return table
