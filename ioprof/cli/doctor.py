"""`ioprof doctor`: what ioprof can and cannot see on this machine."""

import json as json_text
import os
import socket
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Final

import typer
from rich import box
from rich.table import Table
from rich.text import Text

import ioprof
from ioprof.cli.console import output, say
from ioprof.doctor import STATES, Finding, Surroundings, examine
from ioprof.errors import CommandError

SCHEMA: Final = "ioprof.doctor/1"
_STYLES: Final = {"ok": "green", "limited": "yellow", "missing": "red"}


def doctor(
    paths: Annotated[
        list[Path] | None,
        typer.Argument(help="Files or folders that training data is read from (default: the current folder).", show_default=False),
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print the findings as JSON, and nothing else.")] = False,
) -> int:
    """Report what can be recorded on this machine, and what to type where something cannot. Changes nothing; exits with 0."""
    chosen = tuple(paths or [Path()])
    for path in chosen:
        if not path.exists():
            raise CommandError(f"{path}: no such file or folder; name one that training data is read from, or none")
    if not json:
        say("trying what can be recorded here (some seconds) ...")
    findings = examine(
        Surroundings(
            environment=dict(os.environ),
            package=Path(ioprof.__file__).parent,
            python=sys.executable,
            paths=tuple(path.resolve() for path in chosen),
        )
    )
    show_findings(findings, json)
    return 0


def show_findings(findings: Sequence[Finding], json: bool) -> None:
    """Print the findings as a table with what to type, or as JSON."""
    if json:
        rows = [asdict(finding) for finding in findings]
        output.file.write(json_text.dumps({"schema": SCHEMA, "host": socket.gethostname(), "findings": rows}, indent=1) + "\n")
    else:
        output.print(_table(findings), soft_wrap=False)
        for finding in findings:
            if finding.to_type:  # on lines of their own, which no table breaks, so that they can be copied
                output.print(f"\n{finding.name} ({finding.state}): {finding.means}\n    {finding.to_type}", markup=False)
        output.print(f"\n{_closing(findings)}", markup=False)


def _table(findings: Sequence[Finding]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    table.add_column("what")
    table.add_column("state")
    table.add_column("seen here", overflow="fold")
    for finding in findings:
        # What has something to type is explained below the table.
        seen = finding.seen if finding.to_type else f"{finding.seen}: {finding.means}"
        table.add_row(Text(finding.name), Text(finding.state, style=_STYLES[finding.state]), Text(seen))
    return table


def _closing(findings: Sequence[Finding]) -> str:
    """One sentence: how much can be seen, and what cannot."""
    names = {state: [finding.name for finding in findings if finding.state == state] for state in STATES}
    if len(names["ok"]) == len(findings):
        return f"All {len(findings)} things that ioprof looks at can be seen here."
    rest = "; ".join(f"{state}: {', '.join(names[state])}" for state in STATES[1:] if names[state])
    return f"{len(names['ok'])} of {len(findings)} things that ioprof looks at can be seen in full here; {rest}."
