"""What `ioprof probe` prints on a terminal: the result of a path, or of a network between ranks."""

from collections.abc import Iterator
from typing import Any, Final

from rich.table import Table
from rich.text import Text

from ioprof.format.run_record import NetworkRecord
from ioprof.report.terminal import plain_table
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
    return plain_table(HEADINGS, (map(Text, line) for line in rows(found)), NUMERIC)


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
    headings = ("bytes", "message", "bytes/s", "all-reduce", "2L(p-1)/p / t")
    cells = (
        (
            amount(sent.bytes),
            duration(sent.seconds),
            amount(sent.bytes_per_s),
            duration(reduced.seconds),
            amount(reduced.bytes_per_s),
        )
        for sent, reduced in zip(network.messages, network.all_reduces, strict=True)
    )
    return plain_table(headings, cells, range(len(headings)))
