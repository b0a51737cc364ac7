"""`ioprof probe`: what a path delivers at a dataset's own record sizes."""

import json as json_text
import os
from pathlib import Path
from typing import Annotated, Any

from rich.console import Console
from typer import Option

import ioprof
from ioprof.cli.console import next_command, output, print_lines, reporter, say
from ioprof.cli.options import takes_options
from ioprof.files import check_new_file
from ioprof.jobs.options import ProbeOptions
from ioprof.jobs.probes.network_probe import probe_network
from ioprof.recording.interrupts import interrupted_by_any
from ioprof.report.page.page_file import write_page_file
from ioprof.report.texts.probe_text import (
    TABLE_WIDTH,
    head_lines,
    network_line,
    network_table,
    probe_table,
)
from ioprof.report.texts.probing import notes
from ioprof.report.texts.units import visible


@takes_options(ProbeOptions)
def probe(
    given: dict[str, Any],
    network: Annotated[
        bool,
        Option(
            "--network",
            help="Measure the network between ranks, or tasks of a launcher, which meet in PATH.",
        ),
    ] = False,
    ranks: Annotated[
        int | None,
        Option(min=2, help="Of --network: processes here (default: 2).", show_default=False),
    ] = None,
    device: Annotated[str, Option(help="Of --network: cpu (Gloo) or cuda (NCCL).")] = "cpu",
    html: Annotated[
        Path | None,
        Option(help="Also write figures and tables as one HTML file.", show_default=False),
    ] = None,
    json: Annotated[
        bool, Option("--json", help="Print the result as JSON, and nothing else.")
    ] = False,
    force: Annotated[bool, Option("--force", help="Replace the HTML file if it exists.")] = False,
) -> int:
    """Measure what PATH delivers, cold: opening, sequential reads and random record reads, with one
    client and with many.

    Only reads, unless --scratch is given. The files that are read are dropped from this machine's
    page cache.
    """
    path: Path = given["path"]
    if network:
        return _probe_network(ranks, device, path, json)
    if html:
        check_new_file(html, force, "report.html", "--html")  # what was measured is not made again
    # a scheduler's or a closing terminal's signal, too, removes the scratch files
    with interrupted_by_any():
        found = ioprof.probe(**given, reporter=reporter)
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
    print_lines(head_lines(facts))
    Console(file=output.file, width=max(output.width, TABLE_WIDTH), highlight=False).print(
        probe_table(facts)
    )
    print_lines(notes(facts))
