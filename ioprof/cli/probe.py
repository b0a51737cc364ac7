"""`ioprof probe`: what a path delivers at a dataset's own record sizes."""

import json as json_text
import os
from pathlib import Path
from typing import Annotated, Any

from rich.console import Console
from typer import Argument, Option

import ioprof
from ioprof.cli.console import next_command, output, reporter, say
from ioprof.jobs.network_probe import probe_network
from ioprof.recording.interrupts import interrupted_by_any
from ioprof.report.page_file import check_page_file, write_page_file
from ioprof.report.probe_text import TABLE_WIDTH, head_lines, network_line, network_table, probe_table
from ioprof.report.probing import notes
from ioprof.report.units import visible


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
        check_page_file(html, force)
    with interrupted_by_any():  # a scheduler's or a closing terminal's signal, too, removes the scratch files
        found = ioprof.probe(
            path, dataset=dataset, clients=clients, seconds=seconds, max_bytes=max_bytes, record_bytes=record_bytes,
            scratch=scratch, readahead=readahead, reporter=reporter,
        )  # fmt: skip
    facts = found.facts()
    if html:
        say(write_page_file(html, found.write_html))
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
    output.print(network_line(found), markup=False)
    output.print(network_table(found))
    next_command("ioprof", "run", "--device", device, "--ranks", found.ranks, "--probe-network")
    return 0


def _show(facts: dict[str, Any]) -> None:
    for line in head_lines(facts):
        output.print(line, markup=False)
    Console(file=output.file, width=max(output.width, TABLE_WIDTH), highlight=False).print(probe_table(facts))
    for note in notes(facts):
        output.print(note, markup=False)
