"""`ioprof probe`: what a path delivers at a dataset's own record sizes."""

import json as json_text
import os
import signal
from pathlib import Path
from types import FrameType
from typing import Annotated, Any, Final

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text
from typer import Argument, Option

import ioprof
from ioprof.cli.console import next_command, output, reporter
from ioprof.cli.report import check_html_path, write_page
from ioprof.jobs.network_probe import probe_network
from ioprof.recording.interrupts import handle_signals
from ioprof.report.probing import HEADINGS, NUMERIC, notes, rows
from ioprof.report.units import amount, clean, duration, visible

_PATH_LENGTH: Final = 200
_TABLE_WIDTH: Final = 160
"""Characters that a line of the table may have: a narrow terminal breaks it, which reads better than cells broken one by one."""


def probe(
    path: Annotated[Path, Argument(help="A dataset, a folder with any files, or one large file.", show_default=False)],
    dataset: Annotated[
        Path | None,
        Option(help="Read ranges as long as this dataset's records; its own files where it lies at PATH.", show_default=False),
    ] = None,
    clients: Annotated[int, Option(help="Largest number of concurrent clients: 1, 2, 4, ... up to it.")] = 16,
    seconds: Annotated[float, Option(help="Time that all levels together may take.")] = 30.0,
    max_bytes: Annotated[str, Option(help="Bytes that all levels together may read (units are powers of 1024).")] = "2G",
    record_bytes: Annotated[
        str | None, Option(help="Length of a record where there is no dataset (default: 112K).", show_default=False)
    ] = None,
    scratch: Annotated[
        str | None, Option(help="Write files of so many bytes in PATH, read those, and remove them.", show_default=False)
    ] = None,
    readahead: Annotated[bool, Option("--readahead", help="Let the kernel read ahead of random ranges.")] = False,
    network: Annotated[
        bool, Option("--network", help="Measure the network between ranks, or tasks of a launcher, which meet in PATH.")
    ] = False,
    ranks: Annotated[int | None, Option(min=2, help="Of --network: processes here (default: 2).", show_default=False)] = None,
    device: Annotated[str, Option(help="Of --network: cpu (Gloo) or cuda (NCCL).")] = "cpu",
    html: Annotated[Path | None, Option(help="Also write figures and tables as one HTML file.", show_default=False)] = None,
    json: Annotated[bool, Option("--json", help="Print the result as JSON, and nothing else.")] = False,
    force: Annotated[bool, Option("--force", help="Replace the HTML file if it is there.")] = False,
) -> int:
    """Measure what PATH delivers, cold: opening, sequential reads and random record reads, with one client and with many.

    Only reads, unless --scratch is given. The files that are read are dropped from this machine's page cache.
    """
    if network:
        return _probe_network(ranks, device, path, json)
    if html:
        check_html_path(html, force)
    # As Ctrl-C does, a scheduler's or a closing terminal's signal removes the scratch files before the process ends.
    with handle_signals((signal.SIGTERM, signal.SIGHUP), _interrupt):
        found = ioprof.probe(
            path, dataset=dataset, clients=clients, seconds=seconds, max_bytes=max_bytes, record_bytes=record_bytes,
            scratch=scratch, readahead=readahead, reporter=reporter,
        )  # fmt: skip
    facts = found.facts()
    if html:
        write_page(html, found.write_html)
    if json:
        output.file.write(json_text.dumps(facts, indent=1) + "\n")
    else:
        _show(facts)
        shown = visible(os.fspath(path))
        if not html:
            next_command("ioprof", "probe", shown, "--html", "probe.html")
        elif found.request.dataset:
            next_command("ioprof", "run", visible(os.fspath(found.request.dataset.path)))
        else:
            next_command("ioprof", "record", "--help")
    return 0 if found.result.levels else 1


def _probe_network(ranks: int | None, device: str, meeting: Path, json: bool) -> int:
    """Measure, and print; PATH is the folder where the tasks of a launcher meet."""
    found = probe_network(ranks, device, meeting, os.environ)
    if found is None:  # another task prints it
        return 0
    if json:
        output.file.write(json_text.dumps(found.to_dict(), indent=1) + "\n")
        return 0
    output.print(f"{found.ranks} ranks over {found.backend}; a message takes {duration(found.latency_s)} at least", markup=False)
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    for heading in ("bytes", "message", "bytes/s", "all-reduce", "2L(p-1)/p / t"):
        table.add_column(heading, justify="right")
    for sent, reduced in zip(found.messages, found.all_reduces, strict=True):
        cells = (amount(sent.bytes), duration(sent.seconds), amount(sent.bytes_per_s), duration(reduced.seconds))
        table.add_row(*cells, amount(reduced.bytes_per_s))
    output.print(table)
    next_command("ioprof", "run", "--device", device, "--ranks", found.ranks, "--probe-network")
    return 0


def _interrupt(_number: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def _show(facts: dict[str, Any]) -> None:
    output.print(f"{clean(facts['path'], _PATH_LENGTH)}: {clean(facts['read'], _PATH_LENGTH)}", markup=False)
    for label, text in facts["storage_lines"]:
        output.print(f"  {label:<14}{text}", markup=False)
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    for place, heading in enumerate(HEADINGS):
        table.add_column(heading, justify="right" if place in NUMERIC else "left")
    for line in rows(facts):
        table.add_row(*map(Text, line))
    Console(file=output.file, width=max(output.width, _TABLE_WIDTH), highlight=False).print(table)
    for note in notes(facts):
        output.print(note, markup=False)
