"""`ioprof doctor`: what ioprof can and cannot see on this machine."""

import os
import socket
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

from typer import Argument, Option

import ioprof
from ioprof.cli.console import output, say
from ioprof.doctor import Finding, Surroundings, examine
from ioprof.doctor.finding import STATES
from ioprof.doctor.wording import closing, findings_json, findings_table
from ioprof.errors import CommandError


def doctor(
    paths: Annotated[
        list[Path] | None,
        Argument(
            help="Files or folders that training data is read from (default: the current folder).",
            show_default=False,
        ),
    ] = None,
    json: Annotated[
        bool, Option("--json", help="Print the findings as JSON, and nothing else.")
    ] = False,
) -> int:
    """Report what can be recorded on this machine, and what to type where something cannot. Changes
    nothing; exits with 0.
    """
    chosen = tuple(paths or [Path()])
    for path in chosen:
        if not path.exists():
            raise CommandError(
                f"{path}: no such file or folder; name one that training data is read from, or none"
            )
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
    """Print the findings, what does not work first with what to type, or as JSON."""
    if json:
        output.file.write(findings_json(findings, socket.gethostname()) + "\n")
    else:
        output.print(closing(findings), markup=False)
        for finding in sorted(findings, key=lambda each: -STATES.index(each.state)):
            # on lines of their own, which no table breaks, so that they can be copied
            if finding.to_type:
                output.print(
                    f"\n{finding.name} ({finding.state}): {finding.seen}; {finding.means}",
                    markup=False,
                )
                output.print(f"    {finding.to_type}", markup=False)
        if (works := findings_table(findings)).row_count:
            output.print("\nWhat works:")
            output.print(works, soft_wrap=False)
